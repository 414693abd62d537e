"""The random numbers of updates: one stream for each seed, a torch generator on the CPU. On a GPU it is computed from a
counter, which CUDA graphs can record, and which draws for all members in one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from t3d.files import to_count
from t3d.seeds import derive_wide
from t3d.types import State

GOLDEN, MIX_1, MIX_2 = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15  # SplitMix64's, as signed ints


class Generators:
    """A torch generator for each seed; the next draw overwrites the last one."""

    def __init__(self, seeds: Sequence[int], purpose: str, out: Tensor) -> None:
        keys = [derive_wide(seed, purpose) for seed in seeds]  # of their 63 bits torch uses 32 on the CPU
        self._generators = [torch.Generator(out.device).manual_seed(key) for key in keys]
        self._out = out  # (M, ...)

    def uniform(self) -> Tensor:  # in [0, 1)
        for row, generator in zip(self._out, self._generators, strict=True):
            row.uniform_(generator=generator)
        return self._out

    def normal(self) -> Tensor:  # mean zero, standard deviation one
        for row, generator in zip(self._out, self._generators, strict=True):
            row.normal_(generator=generator)
        return self._out

    def keep(self, members: Sequence[int]) -> Callable[[], None]:
        """Returns what puts the streams of these members back to where they are now."""
        kept = [(self._generators[member], self._generators[member].get_state()) for member in members]

        def put_back() -> None:
            for generator, state in kept:
                generator.set_state(state)

        return put_back

    def state(self) -> State:
        return {"generators": np.stack([generator.get_state().numpy() for generator in self._generators])}

    def restore(self, state: State) -> None:
        if state.keys() == {"drawn"}:
            return  # streams that were saved on a GPU cannot be continued here, and start again
        saved, current = state["generators"], self.state()["generators"]
        if (saved.dtype, saved.shape) != (current.dtype, current.shape):
            raise ValueError(f"the states of its random streams are {saved.dtype} {saved.shape}")
        for generator, row in zip(self._generators, saved, strict=True):
            generator.set_state(torch.from_numpy(row.copy()))


class Counted:
    """Draw i of a stream is output i of SplitMix64 (Steele, Lea and Flood, 2014) seeded with the stream's key."""

    def __init__(self, seeds: Sequence[int], purpose: str, out: Tensor) -> None:
        keys = [derive_wide(seed, purpose) for seed in seeds]
        self._shape, self._dtype = out.shape, out.dtype
        self._digits = {torch.float32: 24, torch.float64: 53}[out.dtype]  # bits of a float's significand
        self._keys = torch.tensor(keys, device=out.device).unsqueeze(1)  # (M, 1)
        self._counts = torch.arange(1, out[0].numel() + 1, device=out.device)
        self.drawn = torch.zeros(
            len(seeds), 1, dtype=torch.int64, device=out.device
        )  # so far, a tensor for CUDA graphs

    def uniform(self) -> Tensor:
        return (self._bits(self._digits).to(self._dtype) * 2.0**-self._digits).view(self._shape)

    def normal(self) -> Tensor:
        inside = (self._bits(23).to(self._dtype) + 0.5) * 2.0**-23  # in (0, 1): float32 holds 24 bits exactly
        normal: Tensor = (2 * inside - 1).erfinv() * 2.0**0.5
        return normal.view(self._shape)

    def keep(self, members: Sequence[int]) -> Callable[[], None]:
        """Returns what puts the streams of these members back to where they are now."""
        rows = torch.tensor(members, device=self.drawn.device)
        kept = self.drawn.index_select(0, rows)

        def put_back() -> None:
            self.drawn.index_copy_(0, rows, kept)

        return put_back

    def state(self) -> State:
        drawn = self.drawn.flatten().tolist()
        return {"drawn": drawn if len({*drawn}) > 1 else drawn[0]}  # the same for all unless some have rested

    def restore(self, state: State) -> None:
        if state.keys() == {"generators"}:
            return  # which cannot be continued here
        saved = state["drawn"]
        for drawn, count in zip(
            self.drawn, saved if isinstance(saved, list) else [saved] * len(self.drawn), strict=True
        ):
            drawn.fill_(to_count(count))

    def _bits(self, bits: int) -> Tensor:
        """(M, draws per call), each of the given number of random bits."""
        z = self._keys + (self._counts + self.drawn) * GOLDEN
        z = (z ^ _shifted(z, 30)) * MIX_1
        z = (z ^ _shifted(z, 27)) * MIX_2
        z = z ^ _shifted(z, 31)
        self.drawn.add_(len(self._counts))
        return _shifted(z, 64 - bits)


Streams = Generators | Counted


def open_streams(seeds: Sequence[int], purpose: str, out: Tensor) -> Streams:
    """Opens streams that return tensors like out (M, ...), one row for each seed."""
    kind = Generators if out.device.type == "cpu" else Counted
    return kind(seeds, purpose, out)


def _shifted(z: Tensor, by: int) -> Tensor:
    """Shifts z right and fills with zeros; torch's own shift copies the sign bit."""
    return (z >> by) & ((1 << (64 - by)) - 1)
