"""Makes one real update of a run, on a copy in memory: the run's folder and its lock are not touched."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from t3d.algo.learner import Learner
from t3d.algo.networks import named_tensors
from t3d.algo.rules import coefficients_of_members, rule_of
from t3d.config import Config, Member, merge
from t3d.config.sweeps import noun
from t3d.data.memory import Memory
from t3d.errors import UserError
from t3d.files import CORRUPT_ERRORS, readable, to_fields
from t3d.policy.spec import Spec
from t3d.store.checkpoint import Checkpoint, newest
from t3d.store.contents import refuse_unlike
from t3d.store.metrics import stored_name
from t3d.store.reader import Run
from t3d.types import State
from t3d.world.fingerprint import difference, outline


class OneUpdate(NamedTuple):
    """One member's part of an update: what was handed in, what it returned, and the agent before and after.

    Tensors are as in types.py without their first axis, M.
    """

    title: str  # of the run
    cfg: Config  # the member's own
    td3: Any  # settings of the algorithm, the member's own
    member: Member
    spec: Spec
    step: int  # of the checkpoint
    number: int  # of the update, from 1
    stored: int  # transitions in the replay
    batch: Any
    draws: Any
    trace: Any  # UpdateTrace, unless the rule is the user's own
    losses: dict[str, float]
    before: dict[str, Tensor]  # by the names in checkpoints; networks and moments are (networks of the member, P)
    after: dict[str, Tensor]


def one_update(run: Run, name: str | None = None) -> OneUpdate:
    """Takes the newest checkpoint and makes the updates up to the next one in which the actor moves."""
    checkpoint, notes = newest(run.path / "checkpoints")
    if checkpoint is None:
        why = "; ".join(notes) or f"one is written every {run.cfg.checkpoint.every_steps:,} steps and when a run stops"
        raise UserError(f"{run.path} has no checkpoint to take an update from: {why}")
    try:
        return _of_checkpoint(run, checkpoint, name)
    except CORRUPT_ERRORS as error:
        raise UserError(f"{checkpoint.path} does not fit this run ({type(error).__name__}: {error})") from error


def _of_checkpoint(run: Run, checkpoint: Checkpoint, name: str | None) -> OneUpdate:
    state = checkpoint.state()
    cfg = merge(Config(), to_fields(state["config"]))
    cfg = replace(cfg, device="cpu", run=replace(cfg.run, root=tempfile.gettempdir()))
    diverged = {stored_name(stopped) for stopped in to_fields(state.get("stopped", {}))}
    living = [member for member in cfg.members if member.name not in diverged]
    member = run.member(name) if name is not None else (living or cfg.members)[0]
    if member not in living:
        other = f"choose another {noun(cfg.members)} with --seed"
        raise UserError(f"{member.title} of {run.path} has diverged; {other}")
    index, spec = cfg.members.index(member), run.policy(member, "last").spec
    if changed := difference(state["spec"], outline(spec)):
        raise UserError(f"the policy and the checkpoint in {run.path} are of different environments: {changed}")
    learner, memory = _restored(cfg, spec, state, checkpoint)
    if not memory.added[index]:
        raise UserError(f"{checkpoint.path} holds no transitions of {member.title} to learn from")
    if learner.updates_to_full_trace > 1:
        learner.run(learner.updates_to_full_trace - 1)
    batch, draws = memory.sample(), learner.draw()
    before = _copied(learner, index)
    trace = learner.update(batch, draws)
    first, stop = memory.replay.kept(index)
    return OneUpdate(
        title=readable(run.path.name),
        cfg=cfg.of(member),
        td3=cfg.settings_of(member, learner.rule.settings),
        member=member,
        spec=spec,
        step=checkpoint.step,
        number=learner.updates,
        stored=stop - first,
        batch=_of_member(batch, index),
        draws=_of_member(draws, index),
        trace=_of_member(trace, index),
        losses={name: float(values[index]) for name, values in trace.losses.items()},
        before=before,
        after=_copied(learner, index),
    )


def _restored(cfg: Config, spec: Spec, state: State, checkpoint: Checkpoint) -> tuple[Learner, Memory]:
    """The learner with its readable engine, and the memory, as they were saved."""
    rule = rule_of(cfg.algo, spec)
    coefficients = coefficients_of_members(cfg, rule)
    memory = Memory(spec, cfg, "cpu", coefficients.gamma)
    settings = cfg.settings_of(kind=rule.settings)
    learner = Learner(spec, settings, cfg.member_seeds, rule=rule, coefficients=coefficients, source=memory)
    refuse_unlike(state, {"learner": learner.state(), "memory": memory.state()})
    checkpoint.restore_learning(state, cfg.member_names, learner, memory)
    return learner, memory


def _of_member(values: Any, index: int) -> Any:
    return type(values)(*(None if value is None else value[index].clone() for value in values))


def _copied(learner: Learner, index: int) -> dict[str, Tensor]:
    """Copies one member's part of the agent; Adam's step count belongs to all."""
    return {
        name: tensor.view(learner.members, -1, *tensor.shape[1:])[index].clone() if tensor.ndim else tensor.clone()
        for name, tensor in named_tensors(learner.agent)
    }
