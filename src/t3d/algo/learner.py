"""Owns what learning changes: the agent, the update counter and the random streams of updates."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from t3d.algo.engines import ENGINES
from t3d.algo.networks import Actor, named_fields, named_tensors
from t3d.algo.rules import TD3, PeriodicOperation, Rule
from t3d.config import RuleConfig
from t3d.errors import UserError
from t3d.files import to_count, to_fields, to_number
from t3d.policy.acting import PolicySnapshot
from t3d.policy.spec import Spec
from t3d.random_streams import Streams, open_streams
from t3d.tensors import put
from t3d.types import Batch, EpisodeResult, Source, State

RATE = "_lr"  # how names of learning rates end


def _nothing() -> None: ...


class Learner:
    """All members' agents, updated together by a rule."""

    def __init__(
        self,
        spec: Spec,
        cfg: RuleConfig,
        seeds: Sequence[int],
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        engine: str = "eager",
        rule: Rule = TD3,
        coefficients: Any = None,
        source: Source | None = None,
        rests: int = 0,
    ) -> None:
        """In the first `rests` updates the actor rests: only the critics learn."""
        self.rule, self.spec, self.cfg, self.members = rule, spec, cfg, len(seeds)
        self.agent = rule.init(spec, cfg, seeds, device, dtype)
        self.coefficients = rule.coefficients(cfg) if coefficients is None else coefficients
        self.phases = list(rule.phases(cfg))
        self.updates, self._rests = 0, rests
        self.made = [0] * len(seeds)  # updates of each member; those of one that rested are fewer
        self.rates: dict[str, float] = {}  # those that were set since the run began
        self._engine_kind = ENGINES[engine]
        self.engine = self._engine_kind.create(rule, self.agent, cfg, self.coefficients)
        if source is not None:  # None if only update is called
            self.source = self._engine_kind.reachable(source, device)
        shapes = rule.draws(spec, cfg)  # or None
        self._streams: dict[str, Streams] = {}
        for name, shape in shapes._asdict().items():
            if shape is not None:
                out = torch.empty(len(seeds), *shape, device=device, dtype=dtype)
                self._streams[name] = open_streams(seeds, name.replace("_", " "), out)
        self._drawn, self._kind_of_draws = [self._streams.get(name) for name in shapes._fields], type(shapes)

    @property
    def updates_to_full_trace(self) -> int:
        """Updates until the next one whose trace is complete, that one included; one while the actor rests."""
        if self.updates < self._rests:
            return 1
        return len(self.phases) - self.updates % len(self.phases)

    def prepare(self) -> None:
        """Lets the engine get ready for what run will do; nothing is learned by it."""
        if not self._engine_kind.records:
            return
        state, source_state = self.state(), self.source.state()
        resting = {*self._cycle[0]} - {*self.phases}  # where the actor moves in every update
        self.engine.prepare([*resting, *self.phases], self.source, self.draw)
        self.restore(state)
        self.source.restore(source_state)

    def run(self, n: int, rest: Collection[int] = ()) -> Any:
        """Performs n >= 1 updates, each on a new batch of the source, and returns the trace of the last one.

        Members that rest stay as they are; their part of the trace is of an update that was taken back.
        """
        end, awake = self.updates + n, [member for member in range(self.members) if member not in rest]
        while self.updates < end:
            cycle, periodic = self._cycle
            until = [operation.every - self.made[m] % operation.every for operation in periodic for m in awake]
            until += [self._rests - self.updates] if self.updates < self._rests else []
            count = min([end - self.updates, *until])
            phases = [cycle[number % len(cycle)] for number in range(self.updates, self.updates + count)]
            put_back = self._keep([*rest], self.source, *self._streams.values())
            trace = self.engine.run(phases, self.source, self.draw)
            put_back()
            self.updates += count
            for member in awake:
                self.made[member] += count
            for operation in periodic:
                if due := [member for member in awake if self.made[member] % operation.every == 0]:
                    put_back = self._keep([member for member in range(self.members) if member not in due])
                    operation.run(self.agent, self.cfg)
                    put_back()
                    operation.tells(self.source, due)
        return trace

    def _keep(self, members: Sequence[int], *others: Source | Streams) -> Callable[[], None]:
        """Returns what takes back whatever will have changed of these members, here and in what else is given."""
        if not members:
            return _nothing
        rows = torch.tensor(members, device=self.acting.flat.device)
        tensors = [tensor.view(self.members, -1) for _, tensor in named_tensors(self.agent) if tensor.ndim]
        before = [tensor.index_select(0, rows) for tensor in tensors]
        undo = [other.keep(members) for other in others]

        def put_back() -> None:
            for tensor, kept in zip(tensors, before, strict=True):
                tensor.index_copy_(0, rows, kept)
            for undo_other in undo:
                undo_other()

        return put_back

    def hear(self, member: int, episode: EpisodeResult) -> int:
        """Lets the rule hear of an episode; returns the steps whose updates are due with its end."""
        hearing = self.rule.hearing
        return 0 if hearing is None else hearing.hear(self.agent, self.cfg, member, episode, self.made[member])

    def forget(self) -> None:
        """Lets a rule that hears episodes begin anew with that, for another task."""
        if hearing := self.rule.hearing:
            device = str(self.acting.flat.device)
            new = dict(named_fields(self.rule.init(self.spec, self.cfg, [0] * self.members, device)))
            for name, value in named_fields(self.agent):
                if isinstance(value, Tensor) and any(
                    name == kept or name.startswith(f"{kept}_") for kept in hearing.memory
                ):
                    value.copy_(new[name])

    @property
    def _cycle(self) -> tuple[list[Hashable], tuple[PeriodicOperation, ...]]:
        """The phases that updates take in turn now, and what happens between them."""
        resting = self.rule.resting
        if self.updates >= self._rests or resting is None:
            return self.phases, self.rule.periodic
        follow = PeriodicOperation(len(self.phases), lambda agent, _: resting.follow(agent, self.coefficients))
        return [resting.phase] * len(self.phases), (*self.rule.periodic, follow)

    def update(self, batch: Batch, draws: Any) -> Any:
        """Performs one update on what is handed in, without periodic operations."""
        phase = self._cycle[0][self.updates % len(self.phases)]
        self.updates, self.made = self.updates + 1, [count + 1 for count in self.made]
        return self.engine.update(batch, draws, phase)

    def set_rates(self, **rates: float) -> None:
        """Sets learning rates for all members from the next update on, by name, e.g. actor_lr=1e-4."""
        for name in rates:
            if not name.endswith(RATE) or name not in self.coefficients._fields:
                raise UserError(f"the rule of this run has no learning rate {name} that can be set")
        replace(self.cfg, **rates)  # type: ignore[arg-type]  # raises if one is out of its range
        self.rates |= rates
        now = self.coefficients._asdict()
        written = {name: now[name].fill_(rate) for name, rate in rates.items() if isinstance(now[name], Tensor)}
        if floats := {name: rate for name, rate in rates.items() if name not in written and rate != now[name]}:
            self.coefficients = self.engine.use(self.coefficients._replace(**floats))
            self.prepare()

    def draw(self) -> Any:
        return self._kind_of_draws(*[streams and streams.normal() for streams in self._drawn])

    @property
    def acting(self) -> Actor:
        """The actors that collect transitions; updates change them in place."""
        return self.rule.acting(self.agent)

    @property
    def shipped(self) -> Actor:
        """The actors that are evaluated and saved."""
        return self.rule.shipped(self.agent)

    def snapshot(self, actor: Actor | None = None) -> PolicySnapshot:
        """Copies actors, the shipped ones unless others are given, to arrays that later updates do not change."""
        actor = actor or self.shipped
        flat = actor.flat.to("cpu", torch.float32, copy=True).numpy()
        return PolicySnapshot(self.updates, actor.architecture, flat)

    def state(self) -> State:
        arrays = {name: tensor.to("cpu", copy=True).numpy() for name, tensor in named_tensors(self.agent)}
        streams = {name: stream.state() for name, stream in self._streams.items()}
        rates = {"rates": dict(self.rates)} if self.rates else {}
        made = {"made": np.array(self.made)} if self.rule.hearing else {}
        return {"updates": self.updates, **made, **rates, **streams, **arrays}

    def restore(self, state: State) -> None:
        """Restores what state() returned, which must hold just the names that this rule has."""
        tensors = dict(named_tensors(self.agent))
        known = {"updates", *(["made"] if self.rule.hearing else []), *self._streams, *tensors}
        as_now = {name: name if name in known else re.sub("_made$", "_steps", name) for name in state}  # until 0.5
        state = {as_now[name]: saved for name, saved in state.items()}
        if lacking := sorted(known - {*state}):
            raise ValueError(f"the learner in it lacks {', '.join(lacking)}")
        if unknown := sorted({*state} - known - {"rates"}):
            raise ValueError(f"the learner in it has {', '.join(unknown)}, which its rule does not know")
        for name, tensor in tensors.items():
            put(tensor, state[name], name)
        for name, stream in self._streams.items():
            stream.restore(state[name])
        self.updates = to_count(state["updates"])
        made = state["made"].tolist() if self.rule.hearing else [self.updates] * self.members
        self.made = [to_count(count) for _, count in zip(self.made, made, strict=True)]
        if rates := to_fields(state.get("rates", {})):
            self.set_rates(**{name: to_number(rate) for name, rate in rates.items()})

    def non_finite(self) -> list[tuple[str, int]]:
        """Lists the tensors of the agent that hold a non-finite value, each with its member."""
        finite = {
            name: torch.isfinite(tensor).view(self.members, -1).all(dim=1).tolist()
            for name, tensor in named_tensors(self.agent)
            if tensor.is_floating_point() and tensor.ndim  # Adam's step count is a scalar
        }
        return [(name, member) for name, fine in finite.items() for member in range(self.members) if not fine[member]]
