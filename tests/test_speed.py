"""Speed that we promise; timing needs a quiet machine, so it is a long trial."""

from __future__ import annotations

import timeit

import pytest
import torch

from t3d.bench.updates import Case, update_rows
from t3d.data.priorities import SumTree


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_engines_are_no_slower_than_promised(threads: int) -> None:
    case = Case("cpu", threads, batch=256, hidden=(256, 256), seeds=1, critics=2)
    try:
        rows = update_rows(case, ["oracle", "eager", "fused", "floor"], seconds=4)
        best = {row["engine"]: row["ms_best"] for row in rows}
    finally:
        torch.set_num_threads(1)
    assert best["eager"] <= 1.02 * best["oracle"], "two per cent for the clock"
    assert best["fused"] <= best["oracle"] / 1.3
    assert best["fused"] <= best["floor"] / 0.65, (
        "we measured 0.96 to 1.09 on an AMD EPYC, 0.71 to 0.80 on an Intel Xeon"
    )


@pytest.mark.slow
def test_a_million_priorities_take_less_than_a_millisecond() -> None:
    """256 draws, and 256 new priorities, each on one thread; we measured 0.22 and 0.09 ms on an Intel Xeon."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tree, members = SumTree(1, 1_000_000), torch.zeros(1, 1, dtype=torch.int64)
        tree.priorities.uniform_()
        tree.rebuild()
        u, priority = torch.rand(1, 256, dtype=torch.float64), torch.rand(1, 256)
        index = tree.find(u)
        draw = min(timeit.repeat(lambda: tree.find(u), number=20, repeat=20)) / 20
        feed = min(timeit.repeat(lambda: tree.set(members, index, priority), number=20, repeat=20)) / 20
    finally:
        torch.set_num_threads(threads)
    assert draw < 1e-3 and feed < 1e-3
