"""The engines: implementations of the same update, each checked against td3_update when a run starts.

eager   td3_update itself, with autograd; works everywhere
fused   gradients by hand in preallocated buffers (fused.py); CPU
graph   gradients by hand, compiled, in CUDA graphs (graph.py); GPU
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from t3d.algo.engines import graph
from t3d.algo.engines.fused import Fused
from t3d.algo.networks import Networks
from t3d.algo.td3 import Optimisers, td3_update
from t3d.config import TD3Config
from t3d.types import Batch, Draws, UpdateTrace


class Update(Protocol):
    """Performs one update of the networks and optimisers it was created for."""

    def __call__(self, batch: Batch, draws: Draws, *, update_actor: bool) -> UpdateTrace: ...


def eager(nets: Networks, opts: Optimisers, cfg: TD3Config) -> Update:
    """The readable update, which is the reference."""
    return partial(td3_update, nets, opts, cfg=cfg)


def recordable(nets: Networks, opts: Optimisers, cfg: TD3Config) -> Update:
    """graph.update, its kernels fused by Inductor where possible."""
    return torch.no_grad()(partial(compiled_if_possible(graph.update), nets, opts, cfg=cfg))


def compiled_if_possible(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles the function; returns it unchanged without Triton, which Inductor needs to compile for a GPU."""
    return torch.compile(function, fullgraph=True, dynamic=False, disable=importlib.util.find_spec("triton") is None)


UPDATES: dict[str, Callable[[Networks, Optimisers, TD3Config], Update]] = {
    "eager": eager,
    "fused": Fused,
    "graph": recordable,
}
