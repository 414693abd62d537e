"""Owns what learning changes: the agent, the update counter and the random streams of updates."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from t3d.algo.engines import ENGINES, compiled_if_possible
from t3d.algo.engines.capture import Graphs, Staged, launch_length
from t3d.algo.networks import Actor, Stack
from t3d.algo.rules import TD3, Rule
from t3d.config import TD3Config
from t3d.files import to_count
from t3d.policy.acting import PolicySnapshot
from t3d.policy.spec import Spec
from t3d.random_streams import Streams, open_streams
from t3d.tensors import put
from t3d.types import Batch, Source, State


class Learner:
    """All members' agents, updated together by a rule."""

    def __init__(
        self,
        spec: Spec,
        cfg: TD3Config,
        seeds: Sequence[int],
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        engine: str = "eager",
        rule: Rule = TD3,
        coefficients: Any = None,
        source: Source | None = None,
    ) -> None:
        self.rule, self.spec, self.cfg, self.members = rule, spec, cfg, len(seeds)
        self.agent = rule.init(spec, cfg, seeds, device, dtype)
        self.coefficients = rule.coefficients(cfg) if coefficients is None else coefficients
        self.phases = rule.phases(cfg)
        self.updates = 0
        self.last_update_inputs: tuple[Batch, Any] | None = None  # of run: batch and draws, valid until the next update
        self._update = ENGINES[engine].create(rule, self.agent, cfg, self.coefficients)
        self._graphs: Graphs | None = None
        self._source: Any = source  # None if only update is called
        self._staged: Staged | None = None
        if source is not None and source.device.type != torch.device(device).type:
            self._staged = Staged(source, device)
        self._draws = rule.draws(spec, cfg)  # shapes, or None
        self._streams: dict[str, Streams] = {}
        for name, shape in self._draws._asdict().items():
            if shape is not None:
                out = torch.empty(len(seeds), *shape, device=device, dtype=dtype)
                self._streams[name] = open_streams(seeds, name.replace("_", " "), out)

    @property
    def updates_to_full_trace(self) -> int:
        """Updates until the next one whose trace is complete, that one included."""
        return len(self.phases) - self.updates % len(self.phases)

    def run(self, n: int) -> Any:
        """Performs n >= 1 updates, each on a new batch of the source, and returns the trace of the last one."""
        end = self.updates + n
        while self.updates < end:
            trace = self._update_once() if self._graphs is None else self._launch(self._graphs, end - self.updates)
            for operation in self.rule.periodic:
                if self.updates % operation.every == 0:
                    operation.run(self.agent, self.cfg)
        return trace

    def _update_once(self) -> Any:
        batch = self._source.sample() if self._staged is None else self._staged.refill()
        self.last_update_inputs = batch, self.draw()
        trace = self.update(*self.last_update_inputs)
        self._source.feedback(batch.index, trace.td)
        return trace

    def _launch(self, graphs: Graphs, most: int) -> Any:
        """Replays one update, or a block of at most so many."""
        if self._staged is not None:
            self._staged.refill()
        periods = [operation.every for operation in self.rule.periodic]
        phase = self.phases[self.updates % len(self.phases)]
        length = launch_length(self.updates, most, len(self.phases), periods, graphs.block)
        self.updates += length
        batch, draws, trace = graphs.launch(length, phase)
        self.last_update_inputs = batch, draws
        if self._staged is not None:
            self._source.feedback(self._staged.batch.index, trace.td)
        return trace

    def record(self) -> None:
        """Records CUDA graphs for run to replay: of sampling and feedback, too, if the source can be recorded."""
        source = self._source
        if not source.capture_safe and self._staged is None:
            self._staged = Staged(source, source.device)
        torch.compiler.reset()  # else a process that has trained other shapes before reaches the recompilation limit
        state, source_state = self.state(), source.state()
        staged = self._staged
        sample = source.sample if staged is None else lambda: staged.batch
        drawn = compiled_if_possible(lambda: (sample(), self.draw()))

        def step(phase: Hashable) -> tuple[Batch, Any, Any]:
            batch, draws = drawn()
            trace = self._update(batch, draws, phase)
            if staged is None:
                source.feedback(batch.index, trace.td)
            return batch, draws, trace

        self._graphs = Graphs(step, self.phases, blocks=staged is None)
        self.restore(state)
        source.restore(source_state)

    def update(self, batch: Batch, draws: Any) -> Any:
        """Performs one update on what is handed in, without periodic operations."""
        phase = self.phases[self.updates % len(self.phases)]
        self.updates += 1
        return self._update(batch, draws, phase)

    def draw(self) -> Any:
        names, streams = self._draws._fields, self._streams
        return type(self._draws)(*(streams[name].normal() if name in streams else None for name in names))

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
        return {"updates": self.updates, **streams, **arrays}

    def restore(self, state: State) -> None:
        """Restores what state() returned, which must hold just the names that this rule has."""
        tensors = dict(named_tensors(self.agent))
        known = {"updates", *self._streams, *tensors}
        as_now = {name: name if name in known else re.sub("_made$", "_steps", name) for name in state}  # until 0.5
        state = {as_now[name]: saved for name, saved in state.items()}
        if lacking := sorted(known - {*state}):
            raise ValueError(f"the learner in it lacks {', '.join(lacking)}")
        if unknown := sorted({*state} - known):
            raise ValueError(f"the learner in it has {', '.join(unknown)}, which its rule does not know")
        for name, tensor in tensors.items():
            put(tensor, state[name], name)
        for name, stream in self._streams.items():
            stream.restore(state[name])
        self.updates = to_count(state["updates"])

    def non_finite(self) -> list[tuple[str, int]]:
        """Lists the tensors of the agent that hold a non-finite value, each with its member."""
        finite = {
            name: torch.isfinite(tensor).view(self.members, -1).all(dim=1).tolist()
            for name, tensor in named_tensors(self.agent)
            if tensor.is_floating_point() and tensor.ndim  # Adam's step count is a scalar
        }
        return [(name, member) for name, fine in finite.items() for member in range(self.members) if not fine[member]]


def named_tensors(agent: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of an agent that updates change in place, by the names of its fields."""
    for name, value in named_fields(agent):
        if isinstance(value, Stack):
            yield name, value.flat
        elif not hasattr(value, "_asdict"):
            yield name, value


def named_fields(agent: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the fields of an agent, and after one that is a NamedTuple its fields, by their names in checkpoints."""
    for name, value in agent._asdict().items():
        yield f"{prefix}{name}", value
        if hasattr(value, "_asdict"):
            yield from named_fields(value, f"{prefix}{name}_")
