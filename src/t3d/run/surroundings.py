"""What environments change for the whole process, and T3D relies on: puts it back where T3D's own work begins."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import numpy as np
import torch

from t3d.files import StandardStreams

CPU, AS_IT_IS = torch.device("cpu"), nullcontext()
ERRORS_RAISE = (
    "the environment has told NumPy to raise errors (numpy.seterr), which would end training anywhere, so NumPy warns "
    "instead; use numpy.errstate around the environment's own computations"
)


class Surroundings:
    """Remembers the process as it was before the first environment was made.

    An environment and the caller keep torch as they have set it for their own code: only updates differ from that.
    """

    def __init__(self) -> None:
        self._streams = StandardStreams()
        self._umask, self._errors = os.umask(0o077), np.geterr()
        os.umask(self._umask)
        self._deterministic = torch.are_deterministic_algorithms_enabled()
        self._told = False

    def restore(self) -> list[str]:
        """Makes files and output work again; returns what the user should know, once."""
        self._streams.restore()
        os.umask(self._umask)
        raising = [kind for kind, action in np.geterr().items() if action in ("raise", "call")]
        if not raising:
            return []
        np.seterr(**dict.fromkeys(raising, "warn"))  # type: ignore[arg-type]
        told, self._told = self._told, True
        return [] if told else [ERRORS_RAISE]

    def for_updates(self, threads: int | None = None, *, builds: bool = False) -> AbstractContextManager[Any]:
        """Torch as updates need it, and if something is built, new tensors on the CPU unless T3D says otherwise."""
        if threads is not None and torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        deterministic = torch.are_deterministic_algorithms_enabled()
        device = torch.get_default_device() if builds else CPU  # takes longer than all the others
        if (
            torch.is_grad_enabled()
            and not torch.is_inference_mode_enabled()
            and not torch.is_autocast_enabled("cpu")
            and not torch.is_autocast_enabled("cuda")
            and deterministic is self._deterministic
            and device == CPU
        ):
            return AS_IT_IS
        changed = ExitStack()
        for context in (torch.inference_mode(False), torch.enable_grad()):
            changed.enter_context(context)
        for kind in ("cpu", "cuda"):
            changed.enter_context(torch.autocast(kind, enabled=False))
        changed.callback(torch.use_deterministic_algorithms, deterministic)
        torch.use_deterministic_algorithms(self._deterministic)
        if device != CPU:
            changed.callback(torch.set_default_device, device)
            torch.set_default_device(None)
        return changed

    def close(self) -> None:
        """Leaves the process as it was."""
        self.restore()
        np.seterr(**self._errors)
        self._streams.close()
