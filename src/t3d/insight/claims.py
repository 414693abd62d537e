"""The paper's claims as small comparisons: members of one run that differ in one thing only.

How many critics a member has and how often its actor moves are the same for all members of TD3. Here they are
coefficients of two rules around td3_update, so that they can be swept; tests prove the members equal to runs of TD3.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from t3d.algo.coefficients import rowwise
from t3d.algo.rules import TD3
from t3d.algo.td3 import Agent, Coefficients, coefficients_of, td3_init, td3_parameters, td3_update
from t3d.config import Config, TD3Config, merge
from t3d.config.presets import preset
from t3d.policy.spec import Spec
from t3d.types import Batch, Draws, UpdateTrace

Bias = NDArray[np.float64]  # (seeds,)
WithCritics = namedtuple("WithCritics", (*Coefficients._fields, "critics"))  # type: ignore[misc]
WithDelay = namedtuple("WithDelay", (*Coefficients._fields, "policy_delay"))  # type: ignore[misc]


class Claim(NamedTuple):
    """What is compared: the first value of the sweep is what the paper improves on, so its measure should be higher."""

    says: str
    sweep: str
    names: tuple[str, str]
    measure: Callable[[Bias], Bias]  # of each seed's bias, predicted minus followed
    measured: str  # the name of the measure
    rule: str = "td3"


def bias_itself(bias: Bias) -> Bias:
    """Whether values are too high."""
    return bias


def size_of_bias(bias: Bias) -> Bias:
    """How wrong values are, too high or too low."""
    size: Bias = np.abs(bias)
    return size


def twins(cfg: TD3Config) -> TD3Config:
    """Two critics, however many a member has."""
    return replace(cfg, critics=2)


def critics_update(
    agent: Agent, batch: Batch, draws: Draws, cfg: TD3Config, coefficients: Any, update_actor: bool
) -> UpdateTrace:
    """TD3 in which a member with one critic has a second one that is its copy: their minimum is the first's value."""
    for tensor in (agent.critic.flat, agent.critic_target.flat, agent.critic_adam.mean, agent.critic_adam.square):
        first, second = tensor.view(agent.critic.members, 2, -1).unbind(1)
        is_single = torch.as_tensor(rowwise(coefficients.critics, first) < 2, device=tensor.device)
        second.copy_(torch.where(is_single, first, second))
    return td3_update(agent, batch, draws, cfg, coefficients, update_actor)


def delay_init(
    spec: Spec, cfg: TD3Config, seeds: Sequence[int], device: torch.device | str, dtype: torch.dtype
) -> Agent:
    """TD3's agent, with a step count of the actor's Adam for each member."""
    agent = td3_init(spec, cfg, seeds, device, dtype)
    steps = torch.zeros(len(seeds), 1, dtype=torch.float64, device=device)
    return agent._replace(actor_adam=agent.actor_adam._replace(steps=steps))


def delay_update(
    agent: Agent, batch: Batch, draws: Draws, cfg: TD3Config, coefficients: Any, update_actor: bool
) -> UpdateTrace:
    """TD3 in which all actors move, and those of members that should have waited are put back with all targets."""
    delayed = [agent.actor.flat, agent.actor_target.flat, agent.critic_target.flat, *agent.actor_adam]
    before = [tensor.clone() for tensor in delayed]
    trace = td3_update(agent, batch, draws, cfg, coefficients, update_actor)
    left = agent.critic_adam.steps % coefficients.policy_delay  # the critics' steps are the updates
    for tensor, old in zip(delayed, before, strict=True):
        tensor.copy_(torch.where(rowwise(left, tensor) > 0, old, tensor))
    return trace


CRITICS = TD3._replace(
    init=lambda spec, cfg, *rest: td3_init(spec, twins(cfg), *rest),
    update=critics_update,
    coefficients=lambda cfg: WithCritics._make([*coefficients_of(cfg), float(cfg.critics)]),
    parameters=lambda spec, cfg: td3_parameters(spec, twins(cfg)),
)
DELAY = TD3._replace(
    init=delay_init,
    update=delay_update,
    coefficients=lambda cfg: WithDelay._make([*coefficients_of(cfg), float(cfg.policy_delay)]),
    phases=lambda cfg: [True],
)
CLAIMS = {
    "overestimation": Claim(
        "One critic believes its own errors and values actions too highly; the smaller of two does so less.",
        "td3.critics=1,2",
        ("one critic", "two critics"),
        bias_itself,
        "bias",
        f"{__name__}:CRITICS",
    ),
    "smoothing": Claim(
        "Noise on the target's action keeps the critics from believing in narrow peaks.",
        "td3.target_noise=0,0.2",
        ("no smoothing", "smoothing"),
        bias_itself,
        "bias",
    ),
    "delay": Claim(
        "An actor that moves only every second update follows values that are less wrong.",
        "td3.policy_delay=1,2",
        ("delay 1", "delay 2"),
        size_of_bias,
        "size of the bias",
        f"{__name__}:DELAY",
    ),
}
SETTINGS: dict[str, Any] = {
    "seeds": range(5, 13),  # seeds 0 to 4 were used to choose the comparison
    "log": {"diagnose_every_steps": 500},
}


def claim_config(name: str, env_id: str, root: str) -> Config:
    """The run that shows a claim."""
    claim = CLAIMS[name]
    where = {"env": {"id": env_id}, "run": {"root": root}, "rule": claim.rule, "sweep": [claim.sweep]}
    return merge(merge(preset("quick"), SETTINGS), where)
