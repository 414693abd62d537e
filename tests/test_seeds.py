"""Random streams: one for each purpose and place, and no two of them the same."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from t3d.random_streams import Counted, Generators
from t3d.seeds import derive, derive_wide, stream

PATHS = [path for length in range(4) for path in itertools.product((0, 1, 7), repeat=length)]


def test_every_path_has_a_seed_of_its_own_also_one_that_ends_in_zeros() -> None:
    places = [(seed, purpose, path) for seed in (0, 1, 2**32, 2**61) for purpose in ("a", "b") for path in PATHS]
    assert len({derive(seed, purpose, *path) for seed, purpose, path in places}) == len(places)
    assert len({derive_wide(seed, purpose, *path) for seed, purpose, path in places}) == len(places)
    drawn = {int(stream(seed, purpose, *path).integers(2**63)) for seed, purpose, path in places}
    assert len(drawn) == len(places)


def test_environments_get_31_bits_and_streams_all_they_can_take() -> None:
    seeds = [derive(0, "environment", episode) for episode in range(1000)]
    assert min(seeds) >= 0 and 2**30 < max(seeds) < 2**31
    assert 2**62 < max(derive_wide(0, "sampling", number) for number in range(100)) < 2**63


def test_streams_do_not_meet_where_seeds_of_31_bits_do() -> None:
    """Among 100,000 episodes two have the same 31 bits; their streams differ."""
    seen: dict[int, int] = {}
    first, second = next(
        (seen[value], episode)
        for episode in itertools.count()
        if (value := derive(0, "exploration", 0, episode)) in seen or seen.setdefault(value, episode) < 0
    )
    assert derive(0, "exploration", 0, first) == derive(0, "exploration", 0, second)
    one, other = (stream(0, "exploration", 0, episode).standard_normal(8) for episode in (first, second))
    assert not np.array_equal(one, other)


def test_generators_of_updates_are_seeded_with_more_than_31_bits() -> None:
    generators = Generators(range(50), "sampling", torch.empty(50, 2))._generators
    assert max(generator.initial_seed() for generator in generators) > 2**62


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 24), (torch.float64, 53)])
def test_a_uniform_number_is_below_one(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, digits: int) -> None:
    monkeypatch.setattr(Counted, "_bits", lambda self, bits: torch.full((1, 2), 2**bits - 1))
    values = Counted((1,), "sampling", torch.empty(1, 2, dtype=dtype)).uniform()
    assert values.dtype is dtype and values.max().item() == 1 - 2.0**-digits


@pytest.mark.parametrize(("saved", "now"), [(Counted, Generators), (Generators, Counted)])
def test_streams_of_another_device_start_again_and_their_own_continue(saved: type, now: type) -> None:
    before, fresh, again, own = (kind((1, 2), "sampling", torch.empty(2, 4)) for kind in (saved, now, now, saved))
    before.uniform()
    again.restore(before.state())
    assert torch.equal(again.uniform(), fresh.uniform())
    own.restore(before.state())
    assert torch.equal(own.uniform(), before.uniform())
    with pytest.raises(KeyError):
        again.restore({"other": 1})
