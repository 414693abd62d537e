"""The engines: ways to perform the updates of a rule, each checked against its readable update when a run starts.

eager    the rule's update itself, with autograd; any rule, everywhere
fused    gradients by hand in preallocated buffers (fused.py); TD3 with ReLU perceptrons, CPU
capture  the rule's update itself, compiled, in CUDA graphs (capture.py); any rule, GPU

An engine owns `run`: it samples, draws, updates and feeds back (in_turn.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from t3d.algo.engines.capture import Capture, Staged
from t3d.algo.engines.fused import DIFFER, Fused
from t3d.algo.engines.in_turn import InTurn
from t3d.algo.pixels import pixels_update
from t3d.algo.rules import Agent, Rule
from t3d.algo.td3 import td3_init, td3_update
from t3d.config import RuleConfig
from t3d.config.fields import known_settings
from t3d.types import Batch, Source

EngineName = Literal["eager", "fused", "capture"]
Coefficients = Any  # a rule's, a NamedTuple


class Engine(NamedTuple):
    """A way to perform updates, which may refuse what it was not written for."""

    devices: tuple[str, ...]
    create: Callable[[Rule, Agent, RuleConfig, Coefficients], InTurn]
    refuses: Callable[[Rule, RuleConfig, Coefficients], str] = lambda *_: ""  # why, in words that follow its name
    records: bool = False  # it prepares, and what samples and draws must be recordable, or its batches are staged

    def reachable(self, source: Source, device: torch.device | str) -> Source:
        """The source, or one that copies its batches to where this engine learns from them."""
        is_here = source.device.type == torch.device(device).type
        return source if is_here and (source.capture_safe or not self.records) else Staged(source, device)


class Eager:
    """The rule's update itself."""

    def __init__(self, rule: Rule, agent: Agent, cfg: RuleConfig, coefficients: Coefficients) -> None:
        self.rule, self.agent, self.cfg, self.coefficients = rule, agent, cfg, coefficients

    def __call__(self, batch: Batch, draws: Any, phase: Any) -> Any:
        return self.rule.update(self.agent, batch, draws, self.cfg, self.coefficients, phase)


def _refuses(rule: Rule, cfg: RuleConfig, coefficients: Coefficients) -> str:
    """Refuses what gradients by hand were not derived for."""
    if rule.update is pixels_update:
        return "computes no convolutions, and the observations have images"
    if (rule.init, rule.update) != (td3_init, td3_update):
        return "computes TD3 only"
    for owner in ("actor", "critic"):
        network, activation = getattr(cfg, f"{owner}_network"), getattr(cfg, f"{owner}_activation")
        if network not in ("mlp", "layer_norm") or activation != "relu":
            computed = "computes mlp and layer_norm networks with relu only"
            return f"{computed}, and the {owner}'s network is {network} with {activation}"
    for name, value in coefficients._asdict().items():  # it computes with Python's floats
        if isinstance(value, Tensor) and name not in DIFFER:
            return f"computes with one {name} for all seeds"
    for name, about in known_settings(type(cfg)).items():
        value = getattr(coefficients, name, getattr(cfg, name))
        if "fused" in about and (isinstance(value, Tensor) or value not in about["fused"]):
            return f"computes with {cfg.prefix}{name}={' or '.join(map(str, about['fused']))} only"
    return ""


ENGINES: dict[str, Engine] = {
    "eager": Engine(("cpu", "cuda"), lambda *inputs: InTurn(Eager(*inputs))),
    "fused": Engine(("cpu",), lambda _, *inputs: InTurn(Fused(*inputs)), _refuses),
    "capture": Engine(("cuda",), Capture, records=True),
}
FASTEST_FIRST: dict[str, tuple[EngineName, ...]] = {"cpu": ("fused", "eager"), "cuda": ("capture", "eager")}
