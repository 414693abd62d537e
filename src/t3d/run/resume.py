"""Loads what a run folder holds to resume from."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from t3d.config import Config, diff, load_config, merge, plain
from t3d.config.fields import settings_where
from t3d.errors import NothingLeft, UserError
from t3d.files import CORRUPT_ERRORS, to_count, to_fields
from t3d.modules import is_own
from t3d.run.parts import Loaded
from t3d.store.checkpoint import Checkpoint, newest
from t3d.store.folder import worth_keeping
from t3d.store.log import last_event

CHANGED = settings_where(Config, lambda about: about.get("resume") == "changed")  # by its flag or in config.toml
CHANGEABLE = (*CHANGED, *settings_where(Config, lambda about: about.get("resume") == "edited"))  # in config.toml
MAY_DIFFER = (*CHANGED, *settings_where(Config, lambda about: about.get("resume") == "ignored"))  # in a command
OWN_FILES = settings_where(Config, lambda about: about.get("resume") == "moved")
LEFT_TO_MACHINE = {
    name: getattr(Config, name) for name in settings_where(Config, lambda about: about.get("left_to_machine", False))
}

BadValues = Literal["raise", "skip", "clip"]


class Changes(NamedTuple):
    """Settings that a resume overrides; None leaves one as it was."""

    total_steps: int | None = None
    actors: str | None = None
    ray_address: str | None = None
    ray_cpus: float | None = None
    bad_values: BadValues | None = None
    hang_seconds: float | None = None


class ResumePoint(NamedTuple):
    """What a run resumes from."""

    cfg: Config
    requested: Config | None  # config.toml, where device, engine and threads may be left to the machine
    loaded: Loaded | None
    notes: list[str]  # what is wrong with the folder


def load(path: Path, changes: Changes, cfg: Config | None) -> ResumePoint:
    """Loads the configuration and state to resume from.

    cfg is what the caller would train if there were no run: it must not differ from what the run was started with.
    """
    checkpoint, notes = newest(path / "checkpoints")
    has_config = os.path.lexists(path / "config.toml")
    written = _written(path / "config.toml", checkpoint) if has_config else None
    if checkpoint is None:
        loaded, started, step, is_over = None, _start_again(path, written, cfg, notes), 0, False
    else:
        loaded, started, step, is_over = _contents(checkpoint)
    edited, edits = _with_edits(started, written or started, path)
    notes += edits
    if cfg is not None:
        _refuse_other(started, cfg, path)
    is_over = is_over and last_event(path).get("event") == "end"
    if isinstance(changes.total_steps, int):  # said before whatever else is wrong with so few steps
        _refuse_if_there(step, changes.total_steps, is_over)
    resumed = merge(edited, _overrides(changes, edited, cfg) | {"run": {"root": str(path.parent), "name": path.name}})
    resumed = resumed if resumed.num_envs == started.num_envs else _settled(resumed, started)
    _refuse_actors(started, resumed)
    _refuse_if_there(step, resumed.total_steps, is_over)
    if cfg is not None and cfg.total_steps < resumed.total_steps:
        notes.append(f"this command says total_steps={cfg.total_steps}, but the run continues to {resumed.total_steps}")
    return ResumePoint(resumed, written or cfg, loaded, notes)


def _overrides(changes: Changes, edited: Config, cfg: Config | None) -> dict[str, Any]:
    """The settings that are not as the run had them: changes, and those that cfg decides whatever the run had."""
    given = {name: value for name, value in changes._asdict().items() if value is not None}
    env: dict[str, Any] = {name: given.pop(name) for name in ("bad_values", "hang_seconds") if name in given}
    decided: dict[str, Any] = {"total_steps": edited.total_steps}
    if cfg is not None:  # where it acts, what is only watched, and where images are kept
        env = {"hang_seconds": cfg.env.hang_seconds} | env
        decided = {
            "total_steps": max(edited.total_steps, cfg.total_steps),
            **{name: getattr(cfg, name) for name in ("actors", "ray_address", "ray_cpus", "record_every", "sinks")},
            "log": {"diagnose_every_steps": cfg.log.diagnose_every_steps},
            "replay": {"frames_on_disk": cfg.replay.frames_on_disk},
        }
    decided |= given
    if not decided.get("actors", edited.actors).startswith("ray:"):
        decided["ray_address"] = changes.ray_address or ""  # not used any more
    return decided | {"env": env}


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
        return Loaded(checkpoint, state), merge(Config(), to_fields(state["config"])), step, is_evaluated
    except CORRUPT_ERRORS as error:
        raise UserError(f"{checkpoint.path} is not a checkpoint that T3D wrote ({error})") from None


def _written(file: Path, checkpoint: Checkpoint | None) -> Config:
    try:
        return load_config(file)
    except UserError as error:
        hint = "; remove the file to resume with the settings in the checkpoint" if checkpoint else ""
        raise UserError(f"{error}{hint}") from None


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
            or _moved(key, then, now)
        )
    ]
    if refused:
        raise UserError(
            f"{path / 'config.toml'} was changed: {', '.join(refused)}; a run resumes as it was started. Undo that, or "
            f"start a new run with --config; {', '.join(CHANGEABLE)} may be changed there, and some of them with "
            + ", ".join(f"--{name.replace('_', '-')}" for name in Changes._fields)
        )
    applied = {key: now for key, (_, now) in edits.items() if key in (*CHANGEABLE, *OWN_FILES)}
    nested: dict[str, Any] = {"env": {"args": written.env.args}}
    for key, now in applied.items():
        section, _, name = key.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[name] = now
    notes = [
        f"config.toml says {key}={plain(now)}, it was {plain(then)}"
        for key, (then, now) in edits.items()
        if key in applied or key.startswith("env.args.")
    ]
    return merge(started, nested), notes


def _settled(cfg: Config, started: Config) -> Config:
    """Returns the configuration with the run's environments, which stay when actors change, unless it says how many."""
    return replace(cfg, env=replace(cfg.env, num_envs=cfg.env.num_envs or started.num_envs))


def _moved(key: str, then: Any, now: Any) -> bool:
    """Whether a file of the user's own is only in another place."""
    return key in OWN_FILES and is_own(then) and is_own(now) and then.rpartition(":")[2] == now.rpartition(":")[2]


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
