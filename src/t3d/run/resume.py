"""Loads what a run folder holds to resume from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from t3d.config import Config, diff, flat, load_config, merge, merge_named, plain
from t3d.config.fields import settings_where
from t3d.errors import NothingLeft, UserError
from t3d.files import CORRUPT_ERRORS, to_count, to_fields
from t3d.modules import is_own
from t3d.run.goal import Goal
from t3d.run.parts import Loaded
from t3d.store.checkpoint import Checkpoint, newest
from t3d.store.folder import FIRST_LINE, LOGS, worth_keeping
from t3d.store.log import last_event

CHANGED = settings_where(Config, lambda about: about.get("resume") == "changed")  # by its flag or in config.toml
CHANGEABLE = (*CHANGED, *settings_where(Config, lambda about: about.get("resume") == "edited"))  # in config.toml
FOLLOWED = tuple(name for name in CHANGED if name != "env.bad_values")  # a repeated command decides these anew
MAY_DIFFER = (*CHANGED, *settings_where(Config, lambda about: about.get("resume") == "ignored"))  # in a command
OWN_FILES = settings_where(Config, lambda about: about.get("resume") == "moved")
LEFT_TO_MACHINE = {
    name: getattr(Config, name) for name in settings_where(Config, lambda about: about.get("left_to_machine", False))
}


def load(
    path: Path, changes: Mapping[str, Any], cfg: Config | None
) -> tuple[Config, Config | None, Loaded | None, list[str]]:
    """Loads what to resume with: the settings, those of config.toml as requested, the checkpoint; and notes.

    changes are by dotted names. cfg is what the caller would train if there were no run: it must not differ from what
    the run was started with, and decides where the run acts, what is only watched, and where images are kept.
    """
    checkpoint, notes = newest(path / "checkpoints")
    has_config = os.path.lexists(path / "config.toml")
    try:
        written = load_config(path / "config.toml") if has_config else None
    except UserError as error:
        hint = "; remove the file to resume with the settings in the checkpoint" if checkpoint else ""
        raise UserError(f"{error}{hint}") from None
    if checkpoint is None:
        loaded, started, step, is_over = None, _start_again(path, written, cfg, notes), 0, False
    else:
        loaded, started, step, is_over = _contents(checkpoint)
    edited, edits = _with_edits(started, written or started, path)
    notes += edits
    values: dict[str, Any] = {}
    if cfg is not None:
        _refuse_other(started, cfg, path)
        values = {key: value for key, value in flat(cfg).items() if key in FOLLOWED}
        values["total_steps"] = max(edited.total_steps, cfg.total_steps)
    is_over = is_over and last_event(path).get("event") == "end"
    if isinstance(changes.get("total_steps"), int):  # said before whatever else is wrong with so few steps
        _refuse_if_there(step, changes["total_steps"], is_over)
    values |= {**changes, "run.root": str(path.parent), "run.name": path.name}
    if not values.get("actors", edited.actors).startswith("ray:"):
        values["ray_address"] = changes.get("ray_address", "")  # not used any more
    resumed = merge_named(edited, values)
    resumed = resumed if resumed.num_envs == started.num_envs else _settled(resumed, started)
    _refuse_actors(started, resumed)
    _refuse_if_there(step, resumed.total_steps, is_over)
    goal = Goal(resumed)
    with suppress(*CORRUPT_ERRORS):  # which whoever restores the rest refuses
        goal.restore(to_fields(loaded.state.get("goal", {})) if loaded else {})
    if goal.is_reached and last_event(path).get("event") == "end":
        raise NothingLeft(f"the run has reached its stop_when={resumed.stop_when}; edit that in config.toml to go on")
    if cfg is not None and cfg.total_steps < resumed.total_steps:
        notes.append(f"this command says total_steps={cfg.total_steps}, but the run continues to {resumed.total_steps}")
    return resumed, written or cfg, loaded, notes


def _refuse_if_there(step: int, total: int, is_over: bool) -> None:
    if step > total or (step == total and is_over):
        past = f"is already at step {step:,}, and {total:,} are asked for"
        state = past if step > total else f"has already finished its {step:,} steps"
        raise NothingLeft(f"the run {state}; --total-steps N trains it for longer")


def _contents(checkpoint: Checkpoint) -> tuple[Loaded | None, Config, int, bool]:
    """Returns its state, the configuration in it, its step, and whether that step has been evaluated."""
    try:
        state = checkpoint.state()
        progress = to_fields(state["progress"])
        step = to_count(progress["step"])
        is_evaluated = to_count(progress["evaluated"], least=-1) == step
        logs = to_fields(state["logs"])
        lengths = {name: to_count(logs[name]) for name in (*LOGS, *{FIRST_LINE} & logs.keys())}
        return Loaded(checkpoint, state, lengths), merge(Config(), to_fields(state["config"])), step, is_evaluated
    except CORRUPT_ERRORS as error:
        raise UserError(f"{checkpoint.path} is not a checkpoint that T3D wrote ({error})") from None


def _with_edits(started: Config, written: Config, path: Path) -> tuple[Config, list[str]]:
    """Applies the edits of config.toml to what a run was started with; most settings cannot be changed."""
    edits = diff(_settled(written, started), _settled(started, started))
    refused = [
        f"{key}={plain(now)} (it was started with {plain(then)})"
        for key, (then, now) in edits.items()
        if not (
            key in CHANGEABLE
            or key.startswith(("run.", "env.args."))
            or LEFT_TO_MACHINE.get(key) == now
            or (key in OWN_FILES and is_own(then) and is_own(now) and then.rpartition(":")[2] == now.rpartition(":")[2])
        )
    ]
    if refused:
        raise UserError(
            f"{path / 'config.toml'} was changed: {', '.join(refused)}; a run resumes as it was started. Undo that, or "
            f"start a new run with --config; {', '.join(CHANGEABLE)} may be changed there, and some of them with flags "
            "of t3d resume, e.g. --total-steps"
        )
    applied = {key: now for key, (_, now) in edits.items() if key in (*CHANGEABLE, *OWN_FILES)}
    notes = [
        f"config.toml says {key}={plain(now)}, it was {plain(then)}"
        for key, (then, now) in edits.items()
        if key in applied or key.startswith("env.args.")
    ]
    return merge_named(started, {"env.args": written.env.args, **applied}), notes


def _settled(cfg: Config, started: Config) -> Config:
    """Returns the configuration with the run's environments, which stay when actors change, unless it says how many."""
    return replace(cfg, env=replace(cfg.env, num_envs=cfg.env.num_envs or started.num_envs))


def _start_again(path: Path, written: Config | None, cfg: Config | None, notes: list[str]) -> Config:
    started = written or cfg
    if started is None:
        raise UserError(f"{path} holds neither a checkpoint nor a config.toml to start from")
    if cfg is None and worth_keeping(path, started):
        why = "; ".join(notes) or "it holds a run but no checkpoint of it"
        raise UserError(f"{path} cannot be resumed: {why}. Its logs and policies are unchanged")
    notes.append("there is no checkpoint to resume from, so the run starts at step 0")
    return started


def _refuse_actors(started: Config, cfg: Config) -> None:
    """Refuses more actors than there are environments, whose number cannot change during a run."""
    if cfg.actors == started.actors:
        return
    if not (started.async_actors and cfg.async_actors):
        raise UserError(f"the run was started with actors={started.actors} and cannot continue with {cfg.actors}")
    most = len(started.members) * started.num_envs
    if cfg.async_actors > most:
        raise UserError(
            f"actors={cfg.actors}, and the run was started with {most} environments; "
            f"use {cfg.actors_kind}:{most} or fewer"
        )


def _refuse_other(started: Config, cfg: Config, path: Path) -> None:
    """Refuses a --resume-or-start command unlike the one that started the run; threads and engine stay the run's."""
    if not started.env.id:  # made in Python, and now in a way that has an id
        cfg = replace(cfg, env=replace(cfg.env, id="", args=started.env.args))
    elif cfg.env.id == started.env.id.rpartition(":")[0]:  # a module alone
        cfg = replace(cfg, env=replace(cfg.env, id=started.env.id))
    for key, (then, now) in diff(_settled(cfg, started), _settled(started, started)).items():
        if key not in MAY_DIFFER and LEFT_TO_MACHINE.get(key) != now:
            raise UserError(
                f"{path} was started with {key}={plain(then)}, and this command says {plain(now)}; leave it as it was, "
                "or choose another --run.name"
            )
