"""Traces a network's forward pass to a list of steps, and decides in which buffers a C function keeps their results."""

from __future__ import annotations

from typing import Any, NamedTuple

from t3d.policy.architectures import Operations
from t3d.policy.spec import Floats

IN_PLACE = ("activate", "add", "layer_norm", "squash")  # a step may write over an input that nobody reads any more


class Value(NamedTuple):
    """A vector that a step has written."""

    program: Program
    number: int
    width: int

    def __add__(self, other: Value) -> Value:  # type: ignore[override]
        return self.program.step("add", [self, other], self.width)


class Step(NamedTuple):
    """One call of a helper function."""

    name: str
    inputs: list[int]
    output: int
    width: int
    arrays: tuple[Floats, ...]


class Program:
    """The steps in order; value 0 is the observation."""

    def __init__(self, observation_size: int) -> None:
        self.steps: list[Step] = []
        self.observation = Value(self, 0, observation_size)

    def step(self, name: str, inputs: list[Value], width: int, *arrays: Floats) -> Value:
        """Adds a step."""
        output = len(self.steps) + 1
        self.steps.append(Step(name, [one.number for one in inputs], output, width, arrays))
        return Value(self, output, width)

    def operations(self) -> Operations:
        """What forward passes call; networks of images are not written in C."""

        def linear(x: Value, weight: Floats, bias: Floats) -> Value:
            return self.step("linear", [x], weight.shape[1], weight.T, bias[0])

        def layer_norm(x: Value, scale: Floats, shift: Floats) -> Value:
            return self.step("layer_norm", [x], x.width, scale[0], shift[0])

        def activate(x: Value) -> Value:
            return self.step("activate", [x], x.width)

        def squash(x: Value) -> Value:
            return self.step("squash", [x], x.width)

        def refuse(*_: Any) -> Any:
            raise NotImplementedError("images")

        return Operations(linear, layer_norm, activate, squash, *[refuse] * 5)

    def buffers(self) -> tuple[dict[int, int], list[int]]:
        """The buffer of each value but the observation, and how many floats each buffer holds."""
        last_use = {number: place for place, one in enumerate(self.steps) for number in one.inputs}
        of: dict[int, int] = {}
        sizes: list[int] = []
        free: list[int] = []
        for place, one in enumerate(self.steps):
            dying = [of[number] for number in set(one.inputs) if number and last_use[number] == place]
            if one.name in IN_PLACE and dying:
                chosen = dying.pop()
            elif free:
                chosen = free.pop()
            else:
                sizes.append(0)
                chosen = len(sizes) - 1
            of[one.output] = chosen
            sizes[chosen] = max(sizes[chosen], one.width)
            free += dying
        return of, sizes
