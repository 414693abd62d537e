"""Exploration noise of scale one. Every environment has its own process, restarted with each episode.

A process draws from a stream of its own and keeps the rest of its state in `state`, arrays by name, so that it can be
saved and set again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from t3d.config import NoiseConfig
from t3d.types import Floats

OU_RATE = 0.15  # how fast OU noise forgets; DDPG's value (Lillicrap et al., 2015)
LADDER = 4.0  # how much louder than the scale that is set a member's loudest environment is; chosen
PINK_LENGTH = 1024  # steps before a pink sequence is drawn anew; chosen, about an episode of MuJoCo


class Noise(Protocol):
    """The next draw, (action_size,), with mean zero and deviation one."""

    rng: np.random.Generator
    state: dict[str, NDArray[Any]]

    def __call__(self) -> Floats: ...


class Gaussian:
    """Independent normal noise at every step."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.size, self.rng = size, rng
        self.state: dict[str, NDArray[Any]] = {}

    def __call__(self) -> Floats:
        return self.rng.standard_normal(self.size).astype(np.float32)


class OrnsteinUhlenbeck:
    """Noise that drifts back to zero: each value remembers the one before. Starts in its stationary distribution."""

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
    """(size, PINK_LENGTH) values: normal draws for every frequency, weighted with 1/sqrt(f), back to time."""
    frequencies = np.fft.rfftfreq(PINK_LENGTH)
    weights = np.concatenate([[0.0], frequencies[1:] ** -0.5])  # no constant part: the mean stays zero
    real, imaginary = rng.standard_normal((2, size, len(weights)))
    imaginary[:, -1] = 0  # of an even number of steps, the highest frequency is real,
    real[:, -1] *= np.sqrt(2)  # and has all of its power there
    sequence = np.fft.irfft((real + 1j * imaginary) * weights, n=PINK_LENGTH)
    variance = (4 * (weights[:-1] ** 2).sum() + 2 * weights[-1] ** 2) / PINK_LENGTH**2
    deviation: NDArray[np.float64] = sequence / np.sqrt(variance)
    return deviation


def scale_at(step: int, cfg: NoiseConfig) -> float:
    """The scale after so many steps of a member: from exploration_noise to final_noise in a straight line."""
    share = min(1.0, step / cfg.decay_steps) if cfg.decay_steps else 0.0
    return cfg.exploration_noise + share * (cfg.final_noise - cfg.exploration_noise)


def rung(index: int, count: int) -> float:
    """What environment `index` of `count` multiplies its scale with: a ladder in equal ratios, one in the middle."""
    return float(LADDER ** (2 * index / (count - 1) - 1)) if count > 1 else 1.0


NOISES: dict[str, Callable[[int, np.random.Generator], Noise]] = {
    "gaussian": Gaussian,
    "ou": OrnsteinUhlenbeck,
    "pink": Pink,
}
