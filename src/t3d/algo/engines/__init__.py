"""The engines: ways to perform the updates of a rule, each checked against its readable update when a run starts.

eager    the rule's update itself, with autograd; any rule, everywhere
fused    gradients by hand in preallocated buffers (fused.py); TD3 with ReLU perceptrons, CPU
capture  the rule's update itself, in CUDA graphs (capture.py); any rule, GPU
graph    gradients by hand, compiled, in CUDA graphs (graph.py); TD3 with ReLU perceptrons, LayerNorm or not, GPU
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from t3d.algo.engines import graph
from t3d.algo.engines.fused import Fused
from t3d.algo.pixels import pixels_update
from t3d.algo.rules import Agent, Rule
from t3d.algo.td3 import td3_init, td3_update
from t3d.config import TD3Config
from t3d.config.fields import HAND_WRITTEN, settings_where
from t3d.types import Batch

Update = Callable[[Batch, Any, Any], Any]  # batch, draws, phase -> trace
EngineName = Literal["eager", "fused", "capture", "graph"]
Coefficients = Any  # a rule's, a NamedTuple


class Engine(NamedTuple):
    """A way to perform updates, which may refuse what it was not written for."""

    devices: tuple[str, ...]
    create: Callable[[Rule, Agent, TD3Config, Coefficients], Update]
    refuses: Callable[[Rule, TD3Config, Coefficients], str] = lambda *_: ""  # why, in words that follow its name
    is_recorded: bool = False  # its updates run as CUDA graphs


def compiled_if_possible(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles the function; returns it unchanged without Triton, which Inductor needs to compile for a GPU."""
    return torch.compile(function, fullgraph=True, dynamic=False, disable=importlib.util.find_spec("triton") is None)


def _create_readable(rule: Rule, agent: Agent, cfg: TD3Config, coefficients: Coefficients) -> Update:
    return lambda batch, draws, phase: rule.update(agent, batch, draws, cfg, coefficients, phase)


def _create_graph(_: Rule, agent: Agent, cfg: TD3Config, coefficients: Coefficients) -> Update:
    update = compiled_if_possible(graph.update)
    return torch.no_grad()(lambda batch, draws, phase: update(agent, batch, draws, cfg, coefficients, phase))


def _refuses(engine: str, kinds: Sequence[str], rule: Rule, cfg: TD3Config, coefficients: Coefficients) -> str:
    """Refuses what gradients by hand, in an engine for these kinds of networks, were not derived for."""
    if rule.update is pixels_update:
        return "computes no convolutions, and the observations have images"
    if (rule.init, rule.update) != (td3_init, td3_update):
        return "computes TD3 only"
    for owner in ("actor", "critic"):
        network, activation = getattr(cfg, f"{owner}_network"), getattr(cfg, f"{owner}_activation")
        if network not in kinds or activation != "relu":
            computed = f"computes {' and '.join(kinds)} networks with relu only"
            return f"{computed}, and the {owner}'s network is {network} with {activation}"
    if engine == "fused":  # in preallocated memory, with Python's floats
        for name, value in coefficients._asdict().items():
            if isinstance(value, Tensor) and name not in ("gamma", "tau"):  # gamma is in the batch's discount
                return f"computes with one {name} for all seeds"
    for name in settings_where(type(cfg), lambda about: engine not in about.get("computed_by", HAND_WRITTEN)):
        value, plain = getattr(coefficients, name, getattr(cfg, name)), getattr(type(cfg), name)
        if isinstance(value, Tensor) or value != plain:
            return f"computes with td3.{name}={plain} only"
    return ""


ENGINES: dict[str, Engine] = {
    "eager": Engine(("cpu", "cuda"), _create_readable),
    "fused": Engine(("cpu",), lambda _, *of: Fused(*of), partial(_refuses, "fused", ["mlp"])),
    "capture": Engine(("cuda",), _create_readable, is_recorded=True),
    "graph": Engine(("cuda",), _create_graph, partial(_refuses, "graph", [*graph.HIDDEN]), is_recorded=True),
}
FASTEST_FIRST: dict[str, tuple[EngineName, ...]] = {"cpu": ("fused", "eager"), "cuda": ("graph", "capture", "eager")}
