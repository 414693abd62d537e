"""What environments, callers and T3D set for the whole process: each finds it as it has set it itself."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Any, NamedTuple

import numpy as np
import torch

from t3d.process import StandardStreams

CPU, AS_IT_IS = torch.device("cpu"), nullcontext()
ERRORS_RAISE = (
    "the environment has told NumPy to raise errors (numpy.seterr), which would end training anywhere, so NumPy warns "
    "instead; use numpy.errstate around the environment's own computations"
)


class TorchSettings(NamedTuple):
    """Settings of torch that a run and its caller may want to differ; None where torch does not tell."""

    threads: int
    tf32: tuple[bool, bool] | None
    grad_mode: bool
    dtype: torch.dtype
    deterministic: bool = False
    autocast: tuple[bool, bool] = (False, False)  # on the CPU, on a GPU
    device: torch.device = CPU  # of new tensors

    @classmethod
    def current(cls) -> TorchSettings:
        tf32 = None
        with suppress(RuntimeError):  # the caller has used torch's other way to set it
            tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        return cls(
            torch.get_num_threads(),
            tf32,
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
            torch.get_default_device(),
        )

    def apply(self) -> None:
        now = TorchSettings.current()
        if self.threads != now.threads:
            torch.set_num_threads(self.threads)
        if self.tf32 is not None and self.tf32 != now.tf32:
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = self.tf32
        if self.deterministic != now.deterministic:
            torch.use_deterministic_algorithms(self.deterministic)
        if self.device != now.device:
            torch.set_default_device(None if self.device == CPU else self.device)
        for kind, enabled in zip(("cpu", "cuda"), self.autocast, strict=True):
            torch.set_autocast_enabled(kind, enabled)
        torch.set_grad_enabled(self.grad_mode)
        torch.set_default_dtype(self.dtype)


class Surroundings:
    """Remembers the process as it was before the first environment was made.

    An environment and the caller keep torch as they have set it for their own code: only updates differ from that.
    """

    def __init__(self) -> None:
        self._streams = StandardStreams()
        self._umask, self._errors = os.umask(0o077), np.geterr()
        os.umask(self._umask)
        self._deterministic = torch.are_deterministic_algorithms_enabled()
        self._warned = False

    def restore(self) -> list[str]:
        """Makes files and output work again; returns what the user should know, once."""
        self._streams.restore()
        os.umask(self._umask)
        raising = [kind for kind, action in np.geterr().items() if action in ("raise", "call")]
        if not raising:
            return []
        np.seterr(**dict.fromkeys(raising, "warn"))  # type: ignore[arg-type]
        warned, self._warned = self._warned, True
        return [] if warned else [ERRORS_RAISE]

    def for_updates(self, threads: int | None = None, *, builds: bool = False) -> AbstractContextManager[Any]:
        """Torch as updates need it, and if something is built, new tensors on the CPU unless T3D says otherwise."""
        if threads is not None and torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if (
            torch.is_grad_enabled()
            and not torch.is_inference_mode_enabled()
            and not torch.is_autocast_enabled("cpu")
            and not torch.is_autocast_enabled("cuda")
            and torch.are_deterministic_algorithms_enabled() is self._deterministic
            and (not builds or torch.get_default_device() == CPU)  # takes longer than all the others
        ):
            return AS_IT_IS
        before, changed = TorchSettings.current(), ExitStack()
        changed.enter_context(torch.inference_mode(False))
        changed.callback(before.apply)
        before._replace(
            grad_mode=True,
            autocast=(False, False),
            deterministic=self._deterministic,
            device=CPU if builds else before.device,
        ).apply()
        return changed

    def close(self) -> None:
        self.restore()
        np.seterr(**self._errors)
        self._streams.close()
