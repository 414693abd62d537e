"""What a run folder holds to go on from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from t3d.config import Config, diff, load_toml, merge
from t3d.errors import NothingLeft, UserError
from t3d.run.checkpoint import UNREADABLE, newest
from t3d.run.parts import Loaded

OF_THE_MACHINE = {
    "device": "auto",
    "threads": 0,
    "engine": "auto",
}  # what a command line leaves open and a run has settled
OF_THE_FOLDER = ("run.root", "run.name", "total_steps")


def load(path: Path, total_steps: int | None, cfg: Config | None) -> tuple[Config, Loaded | None, list[str]]:
    """The configuration and state to go on with, and what is wrong with the folder.

    cfg is what the caller would train if there were no run: it must not differ from what the run was begun with.
    """
    checkpoint, notes = newest(path / "checkpoints")
    if checkpoint is None:
        if notes and cfg is None:
            raise UserError(f"no checkpoint of {path} can be used. {'; '.join(notes)}")
        begun = _in_place(cfg or merge(Config(), load_toml(path / "config.toml")), path)
        notes.append("there is no whole checkpoint, so the run begins again at step 0")
        return _longer(begun, total_steps, done=0), None, notes
    try:
        state = checkpoint.state()
        begun = _in_place(merge(Config(), state["config"]), path)
        done = min(int(state["progress"]["step"]), int(state["progress"]["evaluated"]))
    except UNREADABLE as error:
        raise UserError(f"{checkpoint.path} is not a checkpoint that T3D wrote ({error})") from None
    if cfg is not None:
        _refuse_other(begun, cfg, path)
        total_steps = max(cfg.total_steps, begun.total_steps)
    return _longer(begun, total_steps, done), Loaded(checkpoint, state), notes


def _in_place(cfg: Config, path: Path) -> Config:
    """A run goes on where its folder is now, whatever its name was."""
    return dataclasses.replace(cfg, run=dataclasses.replace(cfg.run, root=str(path.parent), name=path.name))


def _longer(cfg: Config, total_steps: int | None, done: int) -> Config:
    total = cfg.total_steps if total_steps is None else total_steps
    if done >= total:
        raise NothingLeft(f"the run is at step {done:,} of {total:,} already; --total-steps N trains it for longer")
    return dataclasses.replace(cfg, total_steps=total)


def _refuse_other(begun: Config, cfg: Config, path: Path) -> None:
    """A command that says --resume-or-start must be the one that began the run."""
    for key, (then, now) in diff(cfg, begun).items():
        if key not in OF_THE_FOLDER and now != OF_THE_MACHINE.get(key):
            raise UserError(
                f"{path} was begun with {key}={then}, and this command says {now}; leave it as it was, "
                "or choose another --run.name"
            )
