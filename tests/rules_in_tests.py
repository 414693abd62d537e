"""Every rule, every architecture and every other choice there is, for tests that go through lists of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from ddpg import DDPG
from t3d.algo.adam import AdamState
from t3d.algo.networks import Actor, Critic
from t3d.algo.rules import RULES, PeriodicOperation, Rule
from t3d.algo.td3 import td3_init, td3_update
from t3d.config import RuleConfig, TD3Config, TD7Config
from t3d.policy.architectures import ACTIVATIONS, KINDS


class TrackingAgent(NamedTuple):
    """TD3's, and the largest target so far, from which the bootstrap is clipped (as TD7 does)."""

    actor: Actor
    actor_target: Actor
    critic: Critic
    critic_target: Critic
    actor_adam: AdamState
    critic_adam: AdamState
    largest: Tensor  # (M,)
    limit: Tensor  # (M,), takes over the largest at every periodic operation


def tracking_init(spec: Any, cfg: Any, seeds: Any, device: Any, dtype: Any) -> TrackingAgent:
    largest = torch.zeros(len(seeds), device=device, dtype=dtype)
    return TrackingAgent(*td3_init(spec, cfg, seeds, device, dtype), largest, largest + 1e8)


def tracking_update(
    agent: TrackingAgent, batch: Any, draws: Any, cfg: Any, coefficients: Any, update_actor: bool
) -> Any:
    limited = batch._replace(r=batch.r.minimum(agent.limit.unsqueeze(1)))
    trace = td3_update(agent, limited, draws, cfg, coefficients, update_actor)  # type: ignore[arg-type]
    agent.largest.copy_(agent.largest.maximum(trace.y.amax(dim=1)))
    return trace


def copy_hard(agent: TrackingAgent, cfg: Any) -> None:
    agent.limit.copy_(agent.largest)
    agent.actor_target.flat.copy_(agent.actor.flat)
    agent.critic_target.flat.copy_(agent.critic.flat)


TRACKING = Rule(tracking_init, tracking_update, periodic=(PeriodicOperation(250, copy_hard),))
ALL_RULES = {**RULES, "ddpg": DDPG, "tracking": TRACKING}


def settings_for(rule: str, cfg: TD3Config) -> RuleConfig:
    """The sizes of cfg in the settings that a rule reads."""
    if ALL_RULES[rule].settings is not TD7Config:
        return cfg
    sizes: dict[str, Any] = {name: getattr(cfg, name) for name in ("batch_size", "actor_hidden", "critic_hidden")}
    return TD7Config(**sizes, embedding=6, encoder_hidden=7)


ALL_NETWORKS = [(kind, activation) for kind in KINDS for activation in ACTIVATIONS]
NETWORKS = [  # for quick tests every kind, and every activation once; all of them are slow
    pytest.param(kind, activation, marks=() if row == column % len(KINDS) else pytest.mark.slow)
    for row, kind in enumerate(KINDS)
    for column, activation in enumerate(ACTIVATIONS)
]

CHOICES: dict[str, dict[str, Any]] = {  # what the settings of an update may choose beyond the paper
    "min of 5": {"critics": 5},
    "mean": {"aggregate": "mean", "critics": 3},
    "min of random 2": {"aggregate": "min_of_random_2", "critics": 4},
    "truncated": {"aggregate": "truncated", "critics": 5, "drop_highest": 2},
    "actor on the mean": {"actor_objective": "mean", "critics": 3},
    "actor on the minimum": {"actor_objective": "min"},
    "huber": {"critic_loss": "huber"},
    "categorical": {"critic_loss": "categorical", "value_low": -6.0, "value_high": 5.0, "value_bins": 12},
    "weight decay": {"weight_decay": 0.1},
    "gradient clipping": {"max_grad_norm": 0.05},
    "linear schedule": {"lr_schedule": "linear", "lr_updates": 10, "lr_final": 0.2},
    "cosine schedule": {"lr_schedule": "cosine", "lr_updates": 10, "lr_final": 0.2},
    "penalty": {"pre_activation_penalty": 0.5},
}
CHOICES["together"] = {
    **{"aggregate": "truncated", "critics": 4, "actor_objective": "mean", "critic_loss": "categorical"},
    **{"value_low": -6.0, "value_high": 5.0, "value_bins": 12, "weight_decay": 0.1, "max_grad_norm": 0.05},
    **{"lr_schedule": "cosine", "lr_updates": 10, "lr_final": 0.2, "pre_activation_penalty": 0.5},
}
