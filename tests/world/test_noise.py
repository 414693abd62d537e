"""Exploration noise: scale one, its own colour, resumable, with a schedule."""

from __future__ import annotations

import numpy as np
import pytest

from t3d.config import NoiseConfig
from t3d.world.noise import NOISES, OU_RATE, PINK_LENGTH, pink_sequence, scale_at


def draws(kind: str, count: int, size: int = 3, seed: int = 0) -> np.ndarray:
    noise = NOISES[kind](size, np.random.default_rng(seed))
    return np.array([noise() for _ in range(count)])


@pytest.mark.parametrize("kind", NOISES)
def test_every_noise_has_mean_zero_and_deviation_one(kind: str) -> None:
    values = np.concatenate([draws(kind, PINK_LENGTH, seed=seed) for seed in range(60)])
    assert abs(values.mean()) < 0.05
    assert values.std() == pytest.approx(1, rel=0.05)
    assert np.abs(np.corrcoef(values.T) - np.eye(3)).max() < 0.1, "dimensions are independent"


@pytest.mark.parametrize("kind", NOISES)
def test_every_noise_is_its_seeds_and_no_others(kind: str) -> None:
    assert np.array_equal(draws(kind, 50, seed=1), draws(kind, 50, seed=1))
    assert not np.allclose(draws(kind, 50, seed=1), draws(kind, 50, seed=2))


@pytest.mark.parametrize("kind", NOISES)
def test_noise_goes_on_from_its_saved_arrays(kind: str) -> None:
    for position in (0, 7, PINK_LENGTH - 1, PINK_LENGTH):
        rng = np.random.default_rng(3)
        noise = NOISES[kind](2, rng)
        for _ in range(position):
            noise()
        saved = {name: value.copy() for name, value in noise.state.items()}
        stream = rng.bit_generator.state
        expected = [noise() for _ in range(20)]
        other_rng = np.random.default_rng(99)
        other = NOISES[kind](2, other_rng)
        other_rng.bit_generator.state = stream
        other.state = saved
        assert np.array_equal(expected, [other() for _ in range(20)])


def test_ou_forgets_at_its_rate() -> None:
    values = np.concatenate([draws("ou", 4000, size=1, seed=seed)[:, 0] for seed in range(20)])
    lag_one = np.corrcoef(values[:-1], values[1:])[0, 1]
    assert lag_one == pytest.approx(1 - OU_RATE, abs=0.02)


def test_pink_power_falls_as_one_over_f() -> None:
    sequences = pink_sequence(2000, np.random.default_rng(0))
    power = (np.abs(np.fft.rfft(sequences)) ** 2).mean(0)[1:]
    frequencies = np.arange(1, len(power) + 1)
    slope = np.polyfit(np.log(frequencies), np.log(power), 1)[0]
    assert slope == pytest.approx(-1, abs=0.02)
    assert power[-1] * frequencies[-1] == pytest.approx((power * frequencies).mean(), rel=0.15), "the highest one too"
    assert sequences.var() == pytest.approx(1, rel=0.02)


def test_the_scale_moves_in_a_straight_line() -> None:
    cfg = NoiseConfig(exploration_noise=0.5, final_noise=0.1, decay_steps=1000)
    assert [scale_at(step, cfg) for step in (0, 250, 500, 1000, 5000)] == pytest.approx([0.5, 0.4, 0.3, 0.1, 0.1])
    assert scale_at(10**6, NoiseConfig(exploration_noise=0.3)) == 0.3
