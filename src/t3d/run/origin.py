"""What a new run starts from: all that another has learned, or the actor in a policy file.

Both are data: nothing that they name is imported, and a resumed run never looks at them again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from t3d.algo.adam import AdamState
from t3d.algo.networks import Actor, named_tensors
from t3d.config import Config, flat, plain
from t3d.config.fields import settings_where
from t3d.config.networks import own_network
from t3d.config.settings import POLICY_FILE
from t3d.config.sweeps import noun
from t3d.data.scaling import EPSILON
from t3d.errors import UserError
from t3d.files import CORRUPT_ERRORS, to_fields
from t3d.modules import is_own
from t3d.policy.acting import SavedPolicy
from t3d.policy.files import read_policy
from t3d.run.parts import Loaded, Parts
from t3d.run.resume import contents
from t3d.store.checkpoint import newest, open_checkpoint
from t3d.store.reader import locate
from t3d.world.fingerprint import difference, differences, outline

MUST_FIT = settings_where(Config, lambda about: about.get("must_fit", False))


class FromCheckpoint(NamedTuple):
    """All that a run had learned: networks, targets, optimisers and statistics; and its replay, where that is asked."""

    path: Path
    loaded: Loaded
    then: Config
    members: list[int]  # the member of that run that each of ours starts from

    def begin(self, parts: Parts) -> list[str]:
        """Gives a new run what it starts with; returns a note on it."""
        checkpoint, state, _ = self.loaded
        names = [self.then.member_names[member] for member in self.members]
        changes = _changes(to_fields(state["spec"]), state.get("environment"), parts, self.path)
        try:
            learner, theirs = parts.learner, to_fields(state["learner"])
            agent = {name: self._of_ours(theirs[name]) for name, _ in named_tensors(learner.agent) if name in theirs}
            learner.restore({**learner.state(), **agent})
            if parts.cfg.start_replay:
                replay, named = parts.memory.replay, enumerate(names)
                parts.memory.carry(block for index, name in named for block in checkpoint.rollouts(name, index, replay))
            parts.memory.take_over(to_fields(state["memory"]), self.members)
        except CORRUPT_ERRORS as error:
            raise UserError(f"{self.path} does not fit this run ({type(error).__name__}: {error})") from error
        if learner.non_finite():
            raise UserError(f"{self.path} cannot be started from: its {learner.non_finite()[0][0]} is not finite")
        _refuse_ended_schedule(parts)
        parts.origin = _about(self.path, checkpoint.name, checkpoint.step, names, parts.cfg)
        replay = " and collected" if parts.cfg.start_replay else ""
        whose = f"what {', '.join(dict.fromkeys(names))} of {self.path} had learned{replay} by step {checkpoint.step:,}"
        return [f"it starts with {whose}{changes}"]

    def _of_ours(self, array: Any) -> Any:
        """Picks the members of ours from an array of theirs; Adam's count of steps is the same for all."""
        if not isinstance(array, np.ndarray) or not array.ndim:
            return array
        by_member = array.reshape(len(self.then.members), -1, *array.shape[1:])
        return by_member[self.members].reshape(-1, *array.shape[1:])


class FromPolicy(NamedTuple):
    """The actor in a policy file, with its scaling of observations; the critics are new."""

    path: Path
    policy: SavedPolicy

    def begin(self, parts: Parts) -> list[str]:
        """Gives a new run what it starts with; returns a note on it."""
        (updates, network, flat_, scaling), about = self.policy.snapshot, self.policy.about
        learner, normaliser, step = parts.learner, parts.memory.normaliser, about["step"]
        then = {"class": parts.environment["class"], "args": about.get("env_args", {})}  # no policy file knows more
        changes = _changes(outline(self.policy.spec), then, parts, self.path)
        ours = learner.acting.architecture
        if (network.name.rpartition(":")[2], *network[2:]) != (ours.name.rpartition(":")[2], *ours[2:]):
            theirs, this = (f"{each.name} {[*each.sizes]} with {each.activation}" for each in (network, ours))
            raise UserError(f"the actor of {self.path} is {theirs}, and this run's is {this}; they must be the same")
        if (scaling is None) != (normaliser is None):
            given = str(scaling is not None).lower()
            raise UserError(f"{self.path} was trained with normalise_observations={given}; this run must be, too")
        for value in learner.agent:
            if isinstance(value, Actor):
                value.flat.copy_(torch.from_numpy(flat_))
        if normaliser is not None and scaling is not None:
            moments = normaliser.moments
            moments.count[:], moments.mean[:] = max(2, step), scaling.mean
            moments.m2[:] = (scaling.std.astype(np.float64) ** 2 - EPSILON).clip(min=0) * moments.count
            normaliser.restore(moments.state())
        parts.origin = _about(self.path, "", step, [f"seed-{about['seed']}"], parts.cfg)
        rests = f"; the actor rests for {parts.cfg.actor_rests:,} updates" if parts.cfg.actor_rests else ""
        return [f"it starts with the policy {self.path} of step {step:,} and new critics{rests}{changes}"]


def with_full_origin(cfg: Config) -> Config:
    """Finds what a run is to start from: a policy file, perhaps without its ending, a checkpoint, or a run."""
    given = cfg.start_from
    if not given:
        return cfg
    file = f"{given.removesuffix(POLICY_FILE)}{POLICY_FILE}"
    is_checkpoint = os.path.lexists(Path(given) / "manifest.json")
    path = file if os.path.isfile(file) else given if is_checkpoint else locate(given, Path(cfg.run.root))  # noqa: PTH113
    return replace(cfg, start_from=str(Path(path).absolute()))


def open_origin(cfg: Config) -> FromCheckpoint | FromPolicy | None:
    """Opens what a run starts from, and refuses what its settings do not fit."""
    if not cfg.start_from:
        return None
    path = Path(cfg.start_from)
    if not cfg.starts_from_policy:
        return _open_run(cfg, path)
    if cfg.start_replay or cfg.start_seed:
        name = "start_replay" if cfg.start_replay else "start_seed"
        raise UserError(f"{path} is one policy, and {name} is for runs and checkpoints; leave it out")
    return FromPolicy(path, read_policy(path, own_network(cfg.td3.actor_network)))


def _open_run(cfg: Config, path: Path) -> FromCheckpoint:
    is_checkpoint = os.path.lexists(path / "manifest.json")
    try:
        checkpoint, notes = (open_checkpoint(path), []) if is_checkpoint else newest(path / "checkpoints")
    except CORRUPT_ERRORS as error:
        raise UserError(f"{path} is not a checkpoint that T3D wrote ({error})") from None
    if checkpoint is None:
        why = f" ({'; '.join(notes)})" if notes else ""
        raise UserError(f"{path} has no checkpoint to start from{why}; a policy of it will do: {path}/best/seed-N")
    loaded, then, _, _ = contents(checkpoint)
    for name in MUST_FIT:
        before, now = (flat(each)[name] for each in (then, cfg))
        if before != now and not (is_own(before) and is_own(now) and _own(before) == _own(now)):
            raise UserError(f"{path} was trained with {name}={plain(before)}; to start from it this run must be, too")
    members = _members(cfg, then, path)
    for member in members:
        if (name := then.member_names[member]) in to_fields(loaded.state.get("stopped", {})):
            raise UserError(f"{name} of {path} has diverged; start from another with --start-seed, or a policy file")
    return FromCheckpoint(path, loaded, then, members)


def _members(cfg: Config, then: Config, path: Path) -> list[int]:
    """Chooses the member that each of ours starts from: the one named, the only one, or the one of the same name."""
    named = [index for index, them in enumerate(then.members) if cfg.start_seed in (them.name, str(them.seed))]
    if len(then.members) == 1 and not cfg.start_seed:
        named = [0]
    if len(named) == 1:
        return named * len(cfg.members)
    known = then.member_names
    alike = [next((name for name in (us.name, f"seed-{us.seed}") if name in known), "") for us in cfg.members]
    if cfg.start_seed or not all(alike):
        has = f"{path} has the {noun(then.members)}s {', '.join(known[:5])}{' ...' if len(known) > 5 else ''}"
        lacks = (
            f"start_seed={cfg.start_seed} names none of them, or several" if cfg.start_seed else "this run has others"
        )
        raise UserError(f"{has}, and {lacks}; choose one, e.g. --start-seed {known[0]}")
    return [known.index(name) for name in alike]


def _changes(spec: Any, environment: Any, parts: Parts, path: Path) -> str:
    """Says how the environment differs, as far as that is known; raises UserError if its spaces do not fit."""
    ours = outline(parts.collector.spec)
    if unlike := difference({**spec, "bounds": []}, {**ours, "bounds": []}):
        raise UserError(f"{parts.cfg.env.title} does not fit {path}: {unlike}")
    texts = [*differences(environment, parts.environment), *filter(None, [difference(spec, ours)])]
    return f"; its environment was another: {'; '.join(texts)}" if texts else ""


def _refuse_ended_schedule(parts: Parts) -> None:
    td3, taken = parts.cfg.td3, [int(value.steps) for value in parts.learner.agent if isinstance(value, AdamState)]
    if td3.lr_schedule != "constant" and max(taken, default=0) >= td3.lr_updates:
        raise UserError(
            f"td3.lr_updates={td3.lr_updates} counts from the first update of all, and {max(taken):,} have been made "
            "before this run: give more, or leave td3.lr_schedule constant"
        )


def _about(path: Path, checkpoint: str, step: int, members: Sequence[str], cfg: Config) -> dict[str, Any]:
    """What is recorded of it; an empty checkpoint: a policy file."""
    about = {"path": str(path), "checkpoint": checkpoint, "step": step, "members": [*members]}
    return {**about, "replay": cfg.start_replay}


def _own(name: str) -> str:
    return name.rpartition(":")[2]
