"""Which of the user's files reach the other machines of a cluster, and how they are found there.

Ray copies the folder in which T3D was started to every node, and actors start in their copy. Paths in settings become
paths in it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from t3d.config import Config
from t3d.errors import UserError
from t3d.modules import file_of, find_module, is_editable, is_installed, is_own, is_path
from t3d.world.make import parse_id

NEVER_SENT = [".?*", "__pycache__", "venv"]  # what is hidden, e.g. .git, .venv, .ssh, .env


def env_there(env_id: str, folder: Path | None) -> str:
    """Returns the id by which actors find an environment: in a copy of the folder, or on this disk.

    What belongs to an installed library stays as it is: it must be installed on every node.
    """
    where, name = parse_id(env_id) if env_id else ("", "")
    return env_id if where in ("", "dm") else _moved(env_id, where, name, folder)


def own_there(own: str, folder: Path | None) -> str:
    """Returns the name by which actors find a network or a wrapper, as env_there does."""
    where, _, name = own.rpartition(":")
    return _moved(own, where, name, folder) if is_own(own) else own


def environments_there(cfg: Config, folder: Path | None) -> Config:
    """Returns the configuration by which actors find its environments and their wrappers."""
    wrappers = tuple(own_there(wrapper, folder) for wrapper in cfg.env.wrappers)
    env = replace(cfg.env, id=env_there(cfg.env.id, folder), wrappers=wrappers)
    return replace(cfg, env=env, eval=replace(cfg.eval, env=env_there(cfg.eval.env, folder)))


def runtime_env(cfg: Config, folder: Path) -> dict[str, object]:
    """Returns what Ray is to send to the nodes: the folder, if actors need files of it.

    Ray also leaves out what .gitignore and .rayignore name.
    """
    network = cfg.actor_network
    own_network = own_there(network, folder) != own_there(network, None)
    if not own_network and environments_there(cfg, folder) == environments_there(cfg, None):
        return {}
    runs = _within(Path(cfg.run.root), folder)
    return {
        "working_dir": str(folder),
        "excludes": [*NEVER_SENT, *([f"/{runs}"] if runs not in (None, Path()) else [])],
    }


def _moved(reference: str, where: str, name: str, folder: Path | None) -> str:
    file = file_of(where) if is_path(where) else find_module(where)
    if file is None or file.suffix != ".py" or is_installed(str(file)):
        return reference
    if folder is not None:
        there = _within(file, folder)
        if there is None and not is_path(where) and is_editable(str(file)):
            return reference
        if there is None:
            raise UserError(
                f"{reference} is in {file.parent}, which other machines do not have: they get {folder}, the folder in "
                "which T3D was started; start it in the folder of your environment"
            )
        file = there
    return f"{file}:{name}" if name else str(file)


def _within(path: Path, folder: Path) -> Path | None:
    """Returns the part of a path after the folder, as it is written or else with links followed; None if outside."""
    for spelled in (os.path.abspath, os.path.realpath):  # the current folder is spelled without links
        if (written := Path(spelled(path))).is_relative_to(spelled(folder)):
            return written.relative_to(spelled(folder))
    return None
