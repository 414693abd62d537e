"""Exploration noise of scale one, with mean zero. Every environment has its own process, restarted with each episode.

A call returns the next sample, (action_size,). A process draws from its own random stream and keeps the rest of its
state in `state`, arrays by name, so that it can be saved and restored.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3d.config import NoiseConfig
from t3d.policy.spec import Floats

OU_RATE = 0.15  # how fast OU noise reverts to zero; DDPG's value (Lillicrap et al., 2015)
LADDER = 4.0  # a member's noisiest environment uses this multiple of the configured scale; chosen
PINK_LENGTH = 1024  # steps before a new pink sequence is drawn; chosen, about an episode of MuJoCo


class Gaussian:
    """Independent normal noise at every step."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.size, self.rng = size, rng
        self.state: dict[str, NDArray[Any]] = {}

    def __call__(self) -> Floats:
        return self.rng.standard_normal(self.size).astype(np.float32)


class OrnsteinUhlenbeck:
    """Correlated noise that reverts to zero (Ornstein-Uhlenbeck); starts in its stationary distribution."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.rng = rng
        self.state = {"value": rng.standard_normal(size)}

    def __call__(self) -> Floats:
        value = self.state["value"]
        memory = 1 - OU_RATE
        fresh = self.rng.standard_normal(value.shape)
        self.state = {"value": memory * value + np.sqrt(1 - memory**2) * fresh}
        return value.astype(np.float32)


class Pink:
    """Noise whose power falls as 1/f, between white noise and a random walk (Eberhard et al., 2023)."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.size, self.rng = size, rng
        self.state = {"sequence": pink_sequence(size, rng), "position": np.array(0)}

    def __call__(self) -> Floats:
        position = int(self.state["position"])
        if position == PINK_LENGTH:
            self.state["sequence"], position = pink_sequence(self.size, self.rng), 0
        self.state["position"] = np.array(position + 1)
        value: Floats = self.state["sequence"][:, position].astype(np.float32)
        return value


def pink_sequence(size: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """(size, PINK_LENGTH) values: normal samples for every frequency, weighted by 1/sqrt(f), transformed to time."""
    frequencies = np.fft.rfftfreq(PINK_LENGTH)
    weights = np.concatenate([[0.0], frequencies[1:] ** -0.5])  # no constant part: the mean stays zero
    real, imaginary = rng.standard_normal((2, size, len(weights)))
    imaginary[:, -1] = 0  # with an even number of steps the highest frequency is real,
    real[:, -1] *= np.sqrt(2)  # so all of its power is there
    sequence = np.fft.irfft((real + 1j * imaginary) * weights, n=PINK_LENGTH)
    variance = (4 * (weights[:-1] ** 2).sum() + 2 * weights[-1] ** 2) / PINK_LENGTH**2
    deviation: NDArray[np.float64] = sequence / np.sqrt(variance)
    return deviation


def scale_at(step: int, cfg: NoiseConfig) -> float:
    """The noise scale at a member's step: linear from exploration_noise to final_noise."""
    share = min(1.0, step / cfg.decay_steps) if cfg.decay_steps else 0.0
    return cfg.exploration_noise + share * (cfg.final_noise - cfg.exploration_noise)


def scale_factor(index: int, count: int) -> float:
    """The factor on the noise scale of environment `index` of `count`: geometrically spaced, one in the middle."""
    return float(LADDER ** (2 * index / (count - 1) - 1)) if count > 1 else 1.0


Noise = Gaussian | OrnsteinUhlenbeck | Pink
NOISES: dict[str, type[Noise]] = {"gaussian": Gaussian, "ou": OrnsteinUhlenbeck, "pink": Pink}
