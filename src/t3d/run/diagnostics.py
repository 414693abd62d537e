"""A closer look at learning, on a schedule: it changes nothing, and tries the rule's updates on a copy of the agent."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from t3d import measure
from t3d.algo.learner import Learner
from t3d.algo.networks import named_tensors
from t3d.config import RuleConfig
from t3d.events import Diagnosed, Event, finite
from t3d.measure import NO_RETURNS, gradient, networks, norms
from t3d.run.parts import Parts
from t3d.types import Batch

ROWS, ROWS_OF_IMAGES = 1_000, 256  # of each member, at most, for the bias of the critics; chosen
OF_TD, OF_AGE = (0.05, 0.25, 0.5, 0.75, 0.95), (0.05, 0.5, 0.95)  # quantiles

Metrics = dict[str, list[Any]]  # by the name of the event's field: a value for each member


class Diagnostics:
    """Makes `diagnostics` events."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._rows = min(ROWS_OF_IMAGES, parts.learner.cfg.batch_size) if parts.learner.spec.images else ROWS
        self._copy: AgentCopy | None = None  # made at the first look
        self.acted_seconds, self.last_at = 0.0, time.monotonic()  # of acting since the last events, and their time

    def diagnose(self, trace: Any) -> list[Event]:
        """Reports on each living member after an update, of which this is the trace, in host memory."""
        parts, started = self.parts, time.monotonic()
        share = self.acted_seconds / max(started - self.last_at, 1e-9)
        if self._copy is None:
            self._copy = AgentCopy(parts.learner, parts.cfg.member_seeds, self._rows)
        values = self._of_batch(trace) | self._of_networks(self._copy)
        values |= self._of_values(self._copy)  # last, because it may overwrite the batch of the newest update
        self.acted_seconds, self.last_at = 0.0, time.monotonic()
        return [
            Diagnosed(
                step=parts.counters.step,
                member=member,
                seed=parts.cfg.members[member].seed,
                updates=parts.learner.updates,
                acting_share=share,
                seconds=self.last_at - started,
                **{name: each[member] for name, each in values.items()},
            )
            for member in parts.living
        ]

    def _of_batch(self, trace: Any) -> Metrics:
        learner, memory = self.parts.learner, self.parts.memory
        batch, _ = learner.engine.inputs
        pi = getattr(trace, "pi", None)
        if pi is None or pi.shape != batch.a.shape:
            with torch.no_grad():
                pi = learner.acting(batch.s).cpu()
        stored = memory.replay.rewards(batch.index.to(memory.device))
        rewards = stored.nan_to_num().cpu().numpy()  # a member that stopped at once has stored none
        ranges = [[float(row.min()), float(row.max())] for row in rewards]
        ages = measure.ages(batch.index.cpu(), memory.added, memory.replay.capacity)
        vectors = batch.s
        if learner.spec.images:
            vectors = batch.s[..., : 4 * learner.spec.observation_size].contiguous().view(torch.float32)
        return {
            "disagreement": measure.disagreement(trace.q).tolist(),
            "saturated": measure.saturated(pi).tolist(),
            "stuck_actions": measure.stuck_actions(pi).tolist(),
            "td_quantiles": measure.quantiles(trace.td, OF_TD),
            "sampled_age": measure.quantiles(ages, OF_AGE),
            "action_counts": [measure.histogram(actions, -1, 1) for actions in batch.a.cpu().numpy()],
            "reward_counts": [measure.histogram(row, *limits) for row, limits in zip(rewards, ranges, strict=True)],
            "reward_range": ranges,
            "largest_reward": memory.largest_rewards,
            "constant_observations": measure.constant_observations(vectors),
        }

    def _of_networks(self, copy: AgentCopy) -> Metrics:
        """What the newest update would do to the agent now."""
        learner, members = self.parts.learner, self.parts.learner.members
        copy.update(*learner.engine.inputs, learner.cfg)
        before, after = measure.first_moments(learner.agent), measure.first_moments(copy.agent)
        gradients = {name: norms(gradient(moment, after[name]), members) for name, moment in before.items()}
        weights = {name: norms(network.flat, members) for name, network in networks(learner.agent).items()}
        return {
            "dead_units": by_member(copy.dead_units(), members),
            "gradient_norms": by_member(gradients, members),
            "weight_norms": by_member(weights, members),
        }

    def _of_values(self, copy: AgentCopy) -> Metrics:
        """Returns what the critics predict, and the returns that followed.

        A transition with the whole rest of its episode is a many-step one, so that the q of an update of it is the
        prediction, and its y the return. y is computed without rewards, which are added here: a rule may clip them.
        """
        parts, learner, memory = self.parts, self.parts.learner, self.parts.memory
        gamma = learner.coefficients.gamma
        gammas = gamma.tolist() if isinstance(gamma, Tensor) else [gamma] * learner.members
        returns = [
            measure.newest_returns(memory.replay, member, gamma, self._rows) if member in parts.living else NO_RETURNS
            for member, gamma in enumerate(gammas)
        ]
        rows = [len(member.rows) for member in returns]
        batch = memory.prepare(measure.as_batch(memory.replay, returns, self._rows))
        batch = Batch(*(part.to(learner.acting.flat.device) for part in batch))
        trace = copy.predict(batch._replace(r=torch.zeros_like(batch.r)))
        predicted, returned = trace.q.mean(dim=1).cpu(), (batch.r + trace.y).cpu()  # (M, rows)
        weight = (batch.discount * (1 - batch.terminated)).cpu()  # of the critics' own value in a return
        p, r, w = (
            torch.stack([values[:count].double().mean() for values, count in zip(table.detach(), rows, strict=True)])
            for table in (predicted, returned, weight)
        )
        error = (p - r) / (1 - w)  # of the critics: exact if it is constant
        values: Metrics = {"q_predicted": p.tolist(), "q_return": r.tolist(), "q_bias": error.tolist(), "q_rows": rows}
        return {name: finite(each) for name, each in values.items()}  # None where there are no returns yet


class AgentCopy:
    """A second agent, to try updates on."""

    def __init__(self, learner: Learner, seeds: list[int], rows: int) -> None:
        self.learner = learner
        like, rule = learner.acting.flat, learner.rule
        self.agent = rule.init(learner.spec, learner.cfg, seeds, like.device, like.dtype)
        self._networks = networks(self.agent)
        relu = {name: network for name, network in self._networks.items() if network.architecture.activation == "relu"}
        self._forwards = {name: measure.record_activations(network) for name, network in relu.items()}
        self._cfg = replace(learner.cfg, batch_size=rows)
        shapes = rule.draws(learner.spec, self._cfg)
        zeros = (None if shape is None else like.new_zeros(learner.members, *shape) for shape in shapes)
        self._no_noise = type(shapes)(*zeros)

    def predict(self, batch: Batch) -> Any:
        """Returns the trace of an update without noise with a batch of as many rows as it was made for."""
        return self.update(batch, self._no_noise, self._cfg)

    def update(self, batch: Batch, draws: Any, cfg: RuleConfig) -> Any:
        """Copies the agent, then updates the copy; returns the trace."""
        learner = self.learner
        for (_, mine), (_, theirs) in zip(named_tensors(self.agent), named_tensors(learner.agent), strict=True):
            mine.copy_(theirs)
        for forwards in self._forwards.values():
            forwards.clear()
        return learner.rule.update(self.agent, batch, draws, cfg, learner.coefficients, learner.phases[-1])

    def dead_units(self) -> dict[str, list[float]]:
        shares = {}
        for name, forwards in self._forwards.items():
            whole = [layers for layers in forwards if layers and len(layers[0]) == len(self._networks[name].flat)]
            if whole:
                shares[name] = measure.dead_units(whole[0], self.learner.members)
        return shares


def by_member(values: dict[str, list[float]], members: int) -> list[dict[str, float]]:
    """Turns lists by name into a dict for each member."""
    return [{name: each[member] for name, each in values.items()} for member in range(members)]
