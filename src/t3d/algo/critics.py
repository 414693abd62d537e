"""What the settings may choose about critics, by name, the paper's first. M members, C critics each, B transitions;
outputs has one value per critic, or the logits of a categorical one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from t3d.algo.networks import Critic
from t3d.config import TD3Config
from t3d.types import Draws


def min_of_random_2(q2: Tensor, draws: Draws, cfg: TD3Config) -> Tensor:
    """The smaller value of two critics, chosen anew in every update (Chen and others, 2021, REDQ)."""
    assert draws.critic_choice is not None  # noqa: S101 (td3_draws asks for it)
    chosen = draws.critic_choice.topk(2, dim=1).indices  # (M, 2)
    return q2.gather(1, chosen.unsqueeze(-1).expand(-1, -1, q2.shape[-1])).amin(dim=1)


AGGREGATES: dict[str, Callable[[Tensor, Draws, TD3Config], Tensor]] = {  # step 8: q2 (M, C, B) -> (M, B)
    "min": lambda q2, draws, cfg: q2.amin(dim=1),  # clipped double Q-learning, for any number of critics
    "mean": lambda q2, draws, cfg: q2.mean(dim=1),
    "min_of_random_2": min_of_random_2,
    # The mean without the highest values of each transition.
    "truncated": lambda q2, draws, cfg: q2.sort(dim=1).values[:, : -cfg.drop_highest].mean(dim=1),
}

OBJECTIVES: dict[str, Callable[[Critic, Tensor, Tensor], Tensor]] = {  # step 13: critics, s, pi -> (M, B)
    "first": lambda critic, s, pi: critic.q1(s, pi),
    "mean": lambda critic, s, pi: critic(s, pi).mean(dim=1),
    "min": lambda critic, s, pi: critic(s, pi).amin(dim=1),
}


def categorical(outputs: Tensor, td: Tensor, y: Tensor, cfg: TD3Config) -> Tensor:
    """Cross-entropy of the predicted distribution with the target, spread over its two neighbouring values."""
    return -(two_hot(y, cfg).unsqueeze(1) * outputs.log_softmax(dim=-1)).sum(dim=-1)


LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor, TD3Config], Tensor]] = {  # step 11: -> (M, C, B)
    "squared": lambda outputs, td, y, cfg: td.square(),
    # Half the square up to an error of 1, linear beyond.
    "huber": lambda outputs, td, y, cfg: functional.huber_loss(td, torch.zeros_like(td), reduction="none"),
    "categorical": categorical,
}


def expectation(outputs: Tensor, cfg: TD3Config) -> Tensor:
    """The mean of the predicted distribution over the possible values."""
    values = torch.linspace(cfg.value_low, cfg.value_high, cfg.value_bins, dtype=outputs.dtype, device=outputs.device)
    return (outputs.softmax(dim=-1) * values).sum(dim=-1)


def two_hot(y: Tensor, cfg: TD3Config) -> Tensor:
    """Spreads y (...) over the two possible values around it, (..., value_bins), so that their mean is y."""
    spacing = (cfg.value_high - cfg.value_low) / (cfg.value_bins - 1)
    position = (y.clamp(cfg.value_low, cfg.value_high) - cfg.value_low) / spacing
    bins = torch.arange(cfg.value_bins, dtype=y.dtype, device=y.device)
    return (1 - (position.unsqueeze(-1) - bins).abs()).clamp(min=0)
