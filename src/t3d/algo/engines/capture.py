"""The CUDA engine: any rule's update as it stands, compiled and recorded with its sampling, draws and feedback.

Why it exists: Python needs longer to launch a kernel than most of an update's take, and autograd's kernels could be
fewer. The update is traced together with its gradients, operation by operation, so that Inductor can fuse these; CUDA
graphs then launch several updates at once. Any update can be recorded that performs the same operations on the same
tensors each time and never waits for the GPU. Every run compares it with the readable update first (verify.py).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from t3d.algo.engines.in_turn import Draw, InTurn
from t3d.algo.networks import named_tensors, with_tensors
from t3d.types import Batch, Source, State

CYCLES_PER_BLOCK = 4  # through all phases; chosen: a launch then takes the GPU longer than Python
LONGEST_BLOCK = 64  # updates; chosen: a longer graph takes long to record and saves nothing
WARM_UP_CALLS = 2

# By the phases in it; and what its last step returns, which is valid until the next launch of any.
Graphs = dict[tuple[Hashable, ...], tuple[torch.cuda.CUDAGraph, Any]]


class Capture(InTurn):
    """Performs updates one after the other until `prepare` has recorded them: each phase, and blocks of all phases."""

    def __init__(self, rule: Any, agent: Any, cfg: Any, coefficients: Any) -> None:
        self._device = next(tensor for _, tensor in named_tensors(agent)).device
        self._compiled, self._coefficients = partial(compiled, rule, agent, cfg), coefficients
        self._graphs: Graphs = {}
        super().__init__(self._compiled(coefficients))

    def use(self, coefficients: Any) -> Any:
        """Graphs hold the floats that they were recorded with, so those that change are in memory from now on."""
        changed = set(coefficients._asdict().items()) - set(self._coefficients._asdict().items())
        in_memory = partial(torch.tensor, dtype=torch.float64, device=self._device)
        self._coefficients = coefficients._replace(**{name: in_memory(value) for name, value in changed})
        self.update, self._graphs = self._compiled(self._coefficients), {}
        return self._coefficients

    def prepare(self, cycle: Sequence[Hashable], source: Source, draw: Draw) -> None:
        torch.compiler.reset()  # else a process that has trained other shapes before reaches the recompilation limit
        staged = None if source.capture_safe else source.sample()  # always in the same memory
        drawn = compiled_if_possible(lambda: (source.sample() if staged is None else staged, draw()))

        def step(phase: Hashable) -> Any:
            batch, draws = drawn()
            trace = self.update(batch, draws, phase)
            if staged is None:
                source.feedback(batch.index, trace.td)
            return (batch, draws), trace

        singles, block = [(phase,) for phase in dict.fromkeys(cycle)], block_of(cycle, source)
        self._graphs = recorded(step, [*singles, block] if block else singles)

    def run(self, phases: Sequence[Hashable], source: Source, draw: Draw) -> Any:
        if not self._graphs:
            return super().run(phases, source, draw)
        for launch in launches(phases, max(self._graphs, key=len)):
            if not source.capture_safe:
                source.sample()
            graph, (self.inputs, trace) = self._graphs[launch]
            graph.replay()
            if not source.capture_safe:
                source.feedback(self.inputs[0].index, trace.td)
        return trace


def compiled_if_possible(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles the function; returns it unchanged without Triton, which Inductor needs to compile for a GPU."""
    return torch.compile(function, fullgraph=True, dynamic=False, disable=importlib.util.find_spec("triton") is None)


def compiled(rule: Any, agent: Any, cfg: Any, coefficients: Any) -> Any:
    """A rule's update on this agent, compiled when it is first called in a phase with a batch of a size."""
    tensors = [tensor for _, tensor in named_tensors(agent)]
    moving = {name: value for name, value in coefficients._asdict().items() if isinstance(value, Tensor)}
    programs: dict[Any, Callable[..., Any]] = {}
    kinds: dict[Any, Any] = {}

    def update(batch: Batch, draws: Any, phase: Hashable) -> Any:
        def flat(tensors: Sequence[Tensor], moving: dict[str, Tensor], batch_: Any, draws_: Any) -> tuple[Any, ...]:
            numbers = coefficients._replace(**moving)
            inputs = Batch(*batch_), type(draws)(*draws_)
            trace = rule.update(with_tensors(agent, tensors), *inputs, cfg, numbers, phase)
            kinds[phase] = type(trace)
            return tuple(trace)

        key, inputs = (phase, batch.s.shape), (list(batch), list(draws))
        if key not in programs:
            from torch.fx.experimental.proxy_tensor import make_fx  # noqa: PLC0415 (takes a second, and CPUs need none)

            copies = [tensor.clone() for tensor in tensors]
            programs[key] = compiled_if_possible(make_fx(flat, FUSED_WITH_NEIGHBOURS)(copies, moving, *inputs))
        with torch.no_grad():  # the gradients are among the operations
            return kinds[phase](*programs[key](tensors, moving, *inputs))

    return update


def _product_and_bias(bias: Tensor, x: Tensor, weight: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return beta * bias + alpha * torch.bmm(x, weight)


# Adding a bias becomes an operation of its own, which Inductor fuses with what follows, e.g. an activation.
FUSED_WITH_NEIGHBOURS: Any = {torch.ops.aten.baddbmm.default: _product_and_bias}


def recorded(step: Callable[[Hashable], Any], blocks: Sequence[tuple[Hashable, ...]]) -> Graphs:
    """Records each block of steps as one CUDA graph."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # as autograd requires for what is recorded later
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for phase in list(dict.fromkeys(chain(*blocks))) * WARM_UP_CALLS:  # which compile, and allocate memory
            step(phase)
    torch.cuda.current_stream().wait_stream(stream)
    graphs: Graphs = {}
    for phases in blocks:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # whatever other threads do on the GPU
            for phase in phases:
                result = step(phase)
        graphs[phases] = graph, result
    return graphs


def block_of(cycle: Sequence[Hashable], source: Source) -> tuple[Hashable, ...]:
    """The phases of a block of several cycles; none if they were too many, or each batch comes from outside."""
    block = tuple(cycle) * CYCLES_PER_BLOCK
    return block if source.capture_safe and len(block) <= LONGEST_BLOCK else ()


def launches(phases: Sequence[Hashable], block: Sequence[Hashable]) -> Iterator[tuple[Hashable, ...]]:
    """Splits updates into launches: blocks where these phases follow each other, otherwise one by one."""
    start = 0
    while start < len(phases):
        several = tuple(phases[start : start + len(block)])
        launch = several if several and several == block else (phases[start],)
        yield launch
        start += len(launch)


class Staged:
    """A source whose batches are copied to where they are learned from, always into the same memory.

    From host memory two pinned copies alternate: the next batch is gathered while the last is still being copied.
    """

    capture_safe = False

    def __init__(self, source: Source, device: torch.device | str) -> None:
        self._source, self.device = source, torch.device(device)
        state, first = source.state(), source.sample()
        source.restore(state)
        self.batch = Batch(*(part.to(device, copy=True) for part in first))
        self._turn = 0
        self._pinned: list[Batch] = []
        if source.device.type == "cpu" and self.device.type == "cuda":
            self._pinned = [Batch(*(torch.empty_like(part, pin_memory=True) for part in first)) for _ in range(2)]
            self._copied = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]

    def sample(self) -> Batch:
        """Copies the next batch to the device, asynchronously from host memory to a GPU."""
        sampled = self._source.sample()
        if not self._pinned:
            for target, part in zip(self.batch, sampled, strict=True):
                target.copy_(part)
            return self.batch
        self._turn = 1 - self._turn
        pinned, copied = self._pinned[self._turn], self._copied[self._turn]
        copied.synchronize()  # of two batches ago, so it has finished long before
        for target, waiting, part in zip(self.batch, pinned, sampled, strict=True):
            waiting.copy_(part)
            target.copy_(waiting, non_blocking=True)
        copied.record()
        return self.batch

    def feedback(self, index: Tensor, td: Tensor) -> None:
        self._source.feedback(index, td)

    def find_highest(self, members: Sequence[int]) -> None:
        self._source.find_highest(members)

    def keep(self, members: Sequence[int]) -> Callable[[], None]:
        return self._source.keep(members)

    def state(self) -> State:
        return self._source.state()

    def restore(self, state: State) -> None:
        self._source.restore(state)
