"""Chooses the best seed of a run, in a sweep of its highest combination: best policies play the same fresh episodes.

The learning curves cannot tell, because each one's highest evaluation is the luckiest of many.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from t3d.config import Member
from t3d.errors import UserError
from t3d.files import CORRUPT_ERRORS, Refused, read, refuse_link, replace, sealed, to_fields, to_number, unsealed
from t3d.seeds import derive
from t3d.store.reader import Run
from t3d.world.batch import open_batch
from t3d.world.compatibility import check_fits
from t3d.world.evaluate import Stopped, evaluate
from t3d.world.make import env_factory
from t3d.world.policy import SavedPolicy

EPISODES_FACTOR = 3  # times eval.episodes; chosen
MOST_BYTES, INDENT = 2**20, 2  # of choice.json


class Choice(NamedTuple):
    """How each member's best policy did on the same fresh episodes."""

    episodes: int
    mean_returns: dict[Member, float]

    @property
    def member(self) -> Member:
        """The best one, the first of equals."""
        return max(self.mean_returns, key=lambda member: self.mean_returns[member])


def fresh_episodes(run: Run) -> int:
    """Returns how many episodes each member plays."""
    return EPISODES_FACTOR * run.cfg.eval.episodes


def known_choice(run: Run) -> Choice | None:
    """Reads an earlier choice between exactly these policies, if there is one."""
    basis = _basis(run, _policies(run))
    try:
        fields = unsealed("choice", read(run.path / "best" / "choice.json", MOST_BYTES), INDENT)
        means = to_fields(fields["mean_returns"])
        returns = {member: to_number(means[member.name]) for member in run.contenders}
        is_current = fields["basis"] == basis
    except CORRUPT_ERRORS:
        return None
    return Choice(fresh_episodes(run), returns) if is_current else None


def play_choice(run: Run, before_a_step: Callable[[], object] = int) -> Choice:
    """Evaluates every member and saves the result; whatever before_a_step raises aborts it."""
    policies = _policies(run)
    returns = _mean_returns(run, policies, before_a_step)
    means = {member.name: mean for member, mean in returns.items()}
    fields = {"basis": _basis(run, policies), "mean_returns": means}
    with suppress(OSError, Refused):  # then it is played again next time
        refuse_link(run.path / "best")
        replace(run.path / "best" / "choice.json", sealed("choice", fields, INDENT))
    return Choice(fresh_episodes(run), returns)


def _mean_returns(
    run: Run, policies: dict[Member, SavedPolicy], before_a_step: Callable[[], object]
) -> dict[Member, float]:
    env, returns = run.env(None), dict[Member, float]()
    starts = [derive(run.cfg.eval.seed, "choice", episode) for episode in range(fresh_episodes(run))]
    try:
        env_batch = open_batch(env_factory(env), env, "the choice between seeds")
        try:
            for position in range(env_batch.count):
                env_batch.reset(position, starts[0], 0)  # PyBullet differs on the first reset only
            for member, policy in policies.items():
                check_fits(policy, env_batch.spec, env.id)
                played, _ = evaluate(policy.actor, env_batch, starts, run.cfg.eval.max_steps, before_a_step)
                returns[member] = float(played.mean())
        finally:
            env_batch.close()
    except (UserError, Stopped):
        raise
    except Exception as error:  # an environment may raise anything
        raise UserError(f"{env.id} failed: {error}") from error
    return returns


def _policies(run: Run) -> dict[Member, SavedPolicy]:
    return {member: run.policy(member) for member in run.contenders}


def _basis(run: Run, policies: dict[Member, SavedPolicy]) -> dict[str, Any]:
    """Returns what a choice depends on; if any of it changes, the choice is made again."""
    return {
        "env": run.cfg.env.id,
        **({"args": run.cfg.env.args} if run.cfg.env.args else {}),
        "eval_seed": run.cfg.eval.seed,
        "episodes": fresh_episodes(run),
        "max_steps": run.cfg.eval.max_steps,
        "policies": {member.name: policy.sha256 for member, policy in policies.items()},
    }
