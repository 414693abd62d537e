"""The sum tree against brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from numpy.typing import NDArray

from t3d.data.priorities import SumTree

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
JUST_BELOW_ONE = 1 - 2**-53


def tree_of(priorities: NDArray[Any], device: str = "cpu") -> SumTree:
    members, rows = priorities.shape
    tree = SumTree(members, rows, device)
    tree.priorities.copy_(torch.from_numpy(priorities.astype(np.float32)))
    tree.rebuild()
    return tree


def set_some(tree: SumTree, dense: NDArray[Any], index: NDArray[Any], priority: NDArray[Any]) -> None:
    """Sets priorities (M, B) in the tree, and in the brute-force table: the largest counts."""
    device = tree.priorities.device
    members = torch.arange(len(dense), device=device).unsqueeze(1)
    values = torch.from_numpy(priority.astype(np.float32)).to(device)
    tree.set(members, torch.from_numpy(index).to(device), values)
    for mine, rows, new in zip(dense, index, priority, strict=True):
        mine[rows] = 0
        np.maximum.at(mine, rows, new)


def found(tree: SumTree, u: NDArray[Any]) -> NDArray[Any]:
    return tree.find(torch.from_numpy(u).to(tree.priorities.device)).cpu().numpy()


@pytest.mark.parametrize("device", DEVICES)
@given(
    seed=some.integers(0, 2**32),
    members=some.integers(1, 3),
    rows=some.sampled_from([1, 2, 127, 128, 129, 1000, 128**2, 128**2 + 1, 40_000]),
    zeros=some.sampled_from([0.0, 0.5, 0.999]),
    rounds=some.integers(1, 5),
)
def test_the_tree_finds_what_a_search_of_all_rows_finds(
    device: str, seed: int, members: int, rows: int, zeros: float, rounds: int
) -> None:
    """Whole numbers add up exactly, so that the same u must lead to the same row."""
    rng = np.random.default_rng(seed)
    dense = rng.integers(1, 1000, (members, rows)) * (rng.random((members, rows)) >= zeros)
    dense[:, rng.integers(rows)] = 7  # at least one
    tree = tree_of(dense, device)
    for _ in range(rounds):
        batch = int(rng.integers(1, 300))
        index = rng.integers(0, rows, (members, batch))
        set_some(tree, dense, index, rng.integers(1, 1000, index.shape) * (rng.random(index.shape) >= zeros / 2))
        assert np.array_equal(tree.priorities.cpu().numpy(), dense)
        for level in tree.levels:
            assert np.array_equal(level.double().sum((1, 2)).cpu().numpy(), dense.sum(1)), "every level has the total"
        for mine, u, chosen in zip(dense, *draws(rng, tree, dense), strict=True):
            running = np.cumsum(mine)
            if running[-1]:
                right = np.searchsorted(running, u * float(running[-1]), side="right")
                assert np.array_equal(chosen, np.minimum(right, np.flatnonzero(mine)[-1]))
            assert (chosen >= 0).all() and (chosen < rows).all()


def draws(rng: np.random.Generator, tree: SumTree, dense: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Shares of the total and the rows found there; among them borders between rows, and 1, where rounding may lead."""
    borders = np.cumsum(dense, axis=1)[:, rng.integers(0, dense.shape[1], 60)] / np.maximum(dense.sum(1), 1)[:, None]
    ends = np.tile([0.0, 0.5, JUST_BELOW_ONE, 1.0], (len(dense), 1))
    u = np.concatenate([rng.random((len(dense), 100)), np.minimum(borders, JUST_BELOW_ONE), ends], axis=1)
    return u, found(tree, u)


@pytest.mark.parametrize("device", DEVICES)
@given(seed=some.integers(0, 2**32), rows=some.sampled_from([3, 128, 1000, 20_000]), decades=some.integers(0, 30))
def test_rounding_never_leads_to_a_row_without_priority(device: str, seed: int, rows: int, decades: int) -> None:
    rng = np.random.default_rng(seed)
    dense = (10 ** rng.uniform(-decades, decades, (2, rows)) * (rng.random((2, rows)) < 0.3)).astype(np.float32)
    dense[:, rng.integers(rows)] = 1
    tree = tree_of(dense, device)
    u = np.concatenate([rng.random((2, 500)), np.tile([0.0, JUST_BELOW_ONE, 1.0], (2, 1))], axis=1)
    for mine, shares, chosen in zip(dense.astype(np.float64), u, found(tree, u), strict=True):
        running = np.cumsum(mine)
        assert (mine[chosen] > 0).all()
        assert (running[chosen] >= shares * running[-1] - 1e-12 * running[-1]).all()
        assert (running[chosen] - mine[chosen] <= shares * running[-1] + 1e-12 * running[-1]).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("rows", [100, 300, 20_000])
def test_a_member_whose_priorities_are_not_finite_stays_in_range_and_among_itself(
    device: str, bad: float, rows: int
) -> None:
    rng = np.random.default_rng(0)
    start, u = rng.random((3, rows)), np.concatenate([rng.random((3, 200)), np.zeros((3, 1))], axis=1)
    tree, healthy = tree_of(start, device), tree_of(start, device)
    members = torch.arange(3, device=device).unsqueeze(1)
    for share in (0.1, 0.5, 1.0):  # more and more of its rows
        index = torch.from_numpy(rng.integers(0, rows, (3, 64))).to(device)
        fine = torch.from_numpy(rng.random((3, 64))).float().to(device)
        broken = fine.clone()
        broken[1, : int(64 * share)] = bad
        tree.set(members, index, broken)
        healthy.set(members, index, fine)
        chosen = found(tree, u)
        assert (chosen >= 0).all() and (chosen < rows).all()
        assert np.array_equal(chosen[[0, 2]], found(healthy, u)[[0, 2]])
    assert bool(torch.isfinite(tree.priorities[[0, 2]]).all())


@pytest.mark.parametrize("device", DEVICES)
def test_an_empty_tree_finds_rows_that_exist(device: str) -> None:
    assert (found(SumTree(2, 300, device), np.random.default_rng(0).random((2, 50))) < 300).all()


def test_rows_are_drawn_as_often_as_their_priorities_say() -> None:
    dense = np.arange(300.0)[None] % 7
    chosen = found(tree_of(dense), np.random.default_rng(1).random((1, 200_000)))
    counts, expected = np.bincount(chosen[0], minlength=300), 200_000 * dense[0] / dense.sum()
    assert (counts[dense[0] == 0] == 0).all()
    positive = expected > 0
    chi_square = ((counts - expected)[positive] ** 2 / expected[positive]).sum()
    assert chi_square < positive.sum() + 4 * np.sqrt(2 * positive.sum())  # mean and four standard deviations
