"""The policy at the step of a checkpoint, computed from the state of training as the run itself would ship it."""

from __future__ import annotations

from pathlib import Path

from t3d.algo.learner import Learner
from t3d.algo.rules import rule_of
from t3d.config import Config, merge
from t3d.config.sweeps import noun
from t3d.data.scaling import Normaliser
from t3d.errors import UserError
from t3d.files import CORRUPT_ERRORS, to_fields
from t3d.modules import is_own
from t3d.policy.acting import PolicySnapshot, SavedPolicy
from t3d.policy.files import policy_of, read_policy
from t3d.policy.spec import Spec
from t3d.store.checkpoint import open_checkpoint
from t3d.types import State
from t3d.world.fingerprint import difference, outline

# what its policies say of it
AS_IN_LAST = ("env", "env_args", "wrappers", "pixels", "camera", "action_repeat", "values", "t3d")


def load(path: Path, seed: int | str | None) -> SavedPolicy:
    """Loads one member's policy; the run's last/ says what exactly the environment's spaces are."""
    try:
        checkpoint = open_checkpoint(path)
        state = checkpoint.state()
        cfg = merge(Config(), to_fields(state["config"]))
        for name in filter(is_own, (cfg.algo, *cfg.networks.values())):
            raise UserError(
                f"{path} was trained with {name}, your own code, and a file never chooses what code runs; load "
                f"a policy file instead: load_policy({str(path.parents[1] / 'last' / 'seed-N')!r}, network=...)"
            )
        index = _index(cfg, seed, path)
        member = cfg.members[index]
        last = read_policy(path.parents[1] / "last" / member.name)
        if changed := difference(state["spec"], outline(last.spec)):
            raise UserError(f"the policies and the checkpoints of {path.parents[1]} are of different runs: {changed}")
        shipped = _shipped(cfg, last.spec, state).of_member(index)
        about = {name: last.about[name] for name in AS_IN_LAST if name in last.about}
        about |= {"kind": "checkpoint", "seed": member.seed, "step": checkpoint.step}
        return policy_of(shipped, last.spec, about)
    except CORRUPT_ERRORS as error:
        raise UserError(f"{path} is not a checkpoint that T3D can use: {error}") from None


def _index(cfg: Config, seed: int | str | None, path: Path) -> int:
    names = [(str(member.seed), member.name) for member in cfg.members]
    chosen = [index for index, known in enumerate(names) if seed is None or str(seed) in known]
    if len(chosen) != 1:
        have = ", ".join(name for _, name in names[:5]) + (" ..." if len(names) > 5 else "")
        raise UserError(
            f"{path} holds the {noun(cfg.members)}s {have}; choose one, e.g. load_policy(..., seed={names[0][1]!r})"
        )
    return chosen[0]


def _shipped(cfg: Config, spec: Spec, state: State) -> PolicySnapshot:
    rule = rule_of(cfg.algo, spec)
    learner = Learner(spec, cfg.settings_of(kind=rule.settings), cfg.member_seeds, rule=rule)
    learner.restore(to_fields(state["learner"]))
    if not cfg.normalise_observations:
        return learner.snapshot()
    normaliser = Normaliser(len(cfg.members), spec.observation_size)
    normaliser.restore(to_fields(to_fields(state["memory"])["normaliser"]))
    return normaliser.put_into(learner.snapshot())
