"""What a run folder holds to go on from."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Literal

from t3d.config import Config, diff, load_toml, merge
from t3d.errors import NothingLeft, UserError
from t3d.run.checkpoint import UNREADABLE, newest
from t3d.run.folder import last_event, worth_keeping
from t3d.run.parts import Loaded

MAY_DIFFER = ("run.root", "run.name", "total_steps", "threads", "engine")  # a run keeps the threads and engine it has

BadValues = Literal["raise", "skip", "clip"]


def load(
    path: Path, total_steps: int | None, bad_values: BadValues | None, cfg: Config | None
) -> tuple[Config, Loaded | None, list[str]]:
    """The configuration and state to go on with, and what is wrong with the folder.

    cfg is what the caller would train if there were no run: it must not differ from what the run was begun with.
    """
    checkpoint, notes = newest(path / "checkpoints")
    written = _in_place(merge(Config(), load_toml(path / "config.toml")), path) if _has_config(path) else None
    if checkpoint is None:
        begun = _begin_again(path, written, cfg, notes)
        totals = [one.total_steps for one in (begun, cfg) if one is not None]
        return _changed(begun, total_steps or max(totals), bad_values), None, notes
    try:
        state = checkpoint.state()
        begun = _in_place(merge(Config(), state["config"]), path)
        done = min(int(state["progress"]["step"]), int(state["progress"]["evaluated"]))
    except UNREADABLE as error:
        raise UserError(f"{checkpoint.path} is not a checkpoint that T3D wrote ({error})") from None
    totals = [one.total_steps for one in (begun, written, cfg) if one is not None]
    if cfg is not None:
        _refuse_other(begun, cfg, path)
    going_on = _changed(begun, max(totals) if total_steps is None else total_steps, bad_values)
    if done >= going_on.total_steps and (last_event(path).get("event") == "end" or done > going_on.total_steps):
        raise NothingLeft(
            f"the run is at step {done:,} of {going_on.total_steps:,} already; --total-steps N trains it for longer"
        )
    return going_on, Loaded(checkpoint, state), notes


def _begin_again(path: Path, written: Config | None, cfg: Config | None, notes: list[str]) -> Config:
    """What to train from the beginning in a folder without a checkpoint."""
    if cfg is not None and written is not None:
        _refuse_other(written, cfg, path)
    begun = written or cfg
    if begun is None:
        raise UserError(f"{path} holds neither a checkpoint nor a config.toml to begin with")
    if cfg is None and worth_keeping(path, begun):
        why = "; ".join(notes) or "it holds a run, and no checkpoint of it"
        raise UserError(f"{path} cannot go on: {why}. Its logs and policies are as they were")
    notes.append("there is no checkpoint to go on from, so the run begins at step 0")
    return _in_place(begun, path)


def _in_place(cfg: Config, path: Path) -> Config:
    """A run goes on where its folder is now, whatever its name was."""
    return dataclasses.replace(cfg, run=dataclasses.replace(cfg.run, root=str(path.parent), name=path.name))


def _changed(cfg: Config, total_steps: int | None, bad_values: BadValues | None) -> Config:
    env = dataclasses.replace(cfg.env, bad_values=bad_values or cfg.env.bad_values)
    return dataclasses.replace(cfg, total_steps=total_steps or cfg.total_steps, env=env)


def _has_config(path: Path) -> bool:
    return os.path.lexists(path / "config.toml")


def _refuse_other(begun: Config, cfg: Config, path: Path) -> None:
    """A command that says --resume-or-start must be the one that began the run."""
    for key, (then, now) in diff(cfg, begun).items():
        if key not in MAY_DIFFER and (key, now) != ("device", "auto"):
            raise UserError(
                f"{path} was begun with {key}={then}, and this command says {now}; leave it as it was, "
                "or choose another --run.name"
            )
