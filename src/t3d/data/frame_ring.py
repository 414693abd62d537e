"""Where frames are kept: in the memory of a device, or in a file, for replays larger than memory."""

from __future__ import annotations

import os
import shutil
import tempfile
from bisect import bisect_right
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from t3d.errors import FramesNotWritten, UserError
from t3d.files import error_text
from t3d.policy.spec import Spec
from t3d.tensors import sendable

Bytes = NDArray[np.uint8]
SPARE = 0.04  # of the rows: frames beyond one for each, of which episodes of 50 steps take half; chosen
SHARE = 128  # frames are dropped in steps of rows / 128, and a stack is shared only if it is hardly older; chosen
WORDS = ((8, torch.int64), (4, torch.int32), (1, torch.uint8))  # frames are moved in the largest words that fit


class FrameRing:
    """Rings (M, capacity, frame_size) of bytes, as words; a slot is a frame's place among all members' frames."""

    def __init__(
        self,
        spec: Spec,
        rows: int,
        members: int,
        envs: int,
        device: torch.device | str,
        folder: Path | None,
        steps: int | None = None,
    ) -> None:
        self.capacity = frames_needed(spec, rows, envs, steps)
        item, self.word = next(
            word for word in WORDS if spec.frame_size % word[0] == 4 * spec.observation_size % word[0] == 0
        )
        shape = members * self.capacity, spec.frame_size // item
        self.in_place = torch.device(device).type == "cpu"  # saves a copy there; Dynamo cannot compile it for a GPU
        self._file: BinaryIO | None = None
        if folder is None:
            self.words = torch.empty(shape, dtype=self.word, device=device)
        else:
            self._file = _open_file(folder, members, spec, rows, envs, steps)
            array: NDArray[Any] = np.memmap(self._file, "u1", "r+", shape=(shape[0], spec.frame_size))
            self.words = torch.from_numpy(array).view(self.word)

    def slots(self, member: int, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return member * self.capacity + numbers % self.capacity

    def write(self, slots: NDArray[np.int64], frames: Sequence[Bytes] | Bytes) -> None:
        """Writes frames into different slots (K,); to a GPU in one asynchronous copy."""
        device = self.words.device
        if device.type != "cpu":
            if len(slots):
                new = sendable(np.stack(list(frames)), device).to(device, non_blocking=True).view(self.word)
                self.words.index_copy_(0, sendable(slots, device).to(device, non_blocking=True), new)
            return
        array = self.words.view(torch.uint8).numpy()
        for slot, frame in zip(slots.tolist(), frames, strict=True):
            if self._file is None:
                array[slot] = frame
            else:
                _write(self._file, slot * len(frame), frame)

    def read(self, slots: NDArray[np.int64]) -> Bytes:
        where = torch.from_numpy(slots).to(self.words.device)
        frames: Bytes = self.words.index_select(0, where).cpu().view(torch.uint8).numpy()
        return frames

    def gather(self, slots: Tensor, out: Tensor) -> None:
        """Copies the frames in slots (stack, N) to out (N, words of a stack); out may be a part of wider rows."""
        size = self.words.shape[1]
        for number, frame in enumerate(slots):
            part = out[:, number * size : (number + 1) * size]
            if self.in_place:
                torch.index_select(self.words, 0, frame, out=part)
            else:
                part.copy_(self.words.index_select(0, frame))


def frames_needed(spec: Spec, rows: int, envs: int, steps: int | None = None) -> int:
    """Frames of a member's ring: one for each row, and some for the starts of episodes and the oldest rows' stacks.

    Less memory is taken if a run has too few steps to write so many, but never so little that frames are dropped which
    a longer run would still have.
    """
    full = rows + ceil(SPARE * rows) + (envs + 1) * (spec.stack + 1)
    if steps is None:
        return full
    # A step writes at most two frames, if it begins an episode. In as many frames as oldest_shared each environment's
    # stack is stored again at most once. So of all frames, 2 * steps + all * envs * stack / oldest_shared at most.
    frames = oldest_shared(spec, rows, envs)
    return min(full, -(-2 * steps * frames // (frames - envs * spec.stack)))


def oldest_shared(spec: Spec, rows: int, envs: int) -> int:
    """How old, in frames, a stack may be that the next transition shares; an older one is stored again."""
    return (spec.stack + 1) * envs + rows // SHARE


def _open_file(folder: Path, members: int, spec: Spec, rows: int, envs: int, steps: int | None) -> BinaryIO:
    """Opens a file without a name, which is gone when the process is; it grows as it is written to."""

    def size_of(rows: int) -> int:
        return members * frames_needed(spec, rows, envs, steps) * spec.frame_size

    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    free, size = shutil.disk_usage(existing).free, size_of(rows)
    if size > free:
        fits = bisect_right(range(1, rows), 0.9 * free, key=size_of)
        smaller = f"replay.capacity={fits} would fit there, or use " if fits else "use "
        raise UserError(
            f"the images of the replay need {size / 2**30:,.1f} GiB and the disk of {existing} has "
            f"{free / 2**30:,.1f} GiB free; {smaller}another run.root"
        )
    try:
        file = tempfile.TemporaryFile(dir=existing, buffering=0)  # noqa: SIM115
        os.ftruncate(file.fileno(), size)
    except OSError as error:
        raise UserError(
            f"the file for the images of the replay cannot be opened in {existing}: {error_text(error)}"
        ) from None
    return file


def _write(file: BinaryIO, offset: int, frame: Bytes) -> None:
    """Writes to the file and not to its mapped memory, where a full disk would end the process."""
    rest = memoryview(frame.tobytes())
    try:
        while rest:
            done = os.pwrite(file.fileno(), rest, offset)
            rest, offset = rest[done:], offset + done
    except OSError as error:
        raise FramesNotWritten(
            f"the images of the replay could not be written to disk: {error_text(error)}; make room there, use a "
            "smaller replay.capacity, or leave replay.frames_on_disk off"
        ) from None
