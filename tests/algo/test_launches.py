"""How many updates are launched at once: blocks, phases and periodic operations; no GPU is needed to know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

import helpers
from rules_in_tests import ALL_RULES
from t3d.algo.engines.capture import block_of, launches
from t3d.algo.engines.verify import FixedBatch, random_batch
from t3d.algo.learner import Learner
from t3d.config import TD3Config

SPEC, CFG = helpers.make_spec(), TD3Config(batch_size=4, actor_hidden=(4,), critic_hidden=(4,))
SOURCE = FixedBatch(random_batch(SPEC, CFG, 1, "cpu"))


@given(first=some.integers(0, 20), n=some.integers(1, 100), delay=some.integers(1, 5), cycles=some.integers(0, 4))
def test_launches_are_the_updates_one_by_one(first: int, n: int, delay: int, cycles: int) -> None:
    phases = [(number + 1) % delay == 0 for number in range(first, first + n)]
    block = ([False] * (delay - 1) + [True]) * cycles
    parts = list(launches(phases, tuple(block)))
    assert [phase for part in parts for phase in part] == phases
    assert all(len(part) == 1 or list(part) == block for part in parts)


def test_blocks_are_used_wherever_they_fit() -> None:
    block = (False, True) * 4
    assert [len(part) for part in launches(block * 2, block)] == [8, 8]
    assert [len(part) for part in launches((True, *block), block)] == [1, 8]
    assert [len(part) for part in launches(block[:7], block)] == [1] * 7


def test_many_phases_or_batches_from_outside_are_not_recorded_as_a_block() -> None:
    assert block_of([False, True], SOURCE) == (False, True) * 4
    assert len(block_of([False] * 16, SOURCE)) == 64 and block_of([False] * 10**6, SOURCE) == ()

    class Outside(FixedBatch):
        capture_safe = False

    assert block_of([False, True], Outside(SOURCE.batch)) == ()


@pytest.mark.parametrize(("updates", "n"), [(0, 500), (3, 300), (249, 2), (250, 250)])
def test_an_engine_stops_where_a_periodic_operation_is_due(updates: int, n: int) -> None:
    """Phases follow each other across all calls, and operations come after every 250th update and nowhere else."""
    learner = Learner(SPEC, CFG, (0,), rule=ALL_RULES["tracking"], source=SOURCE)
    learner.updates, learner.made = updates, [updates]
    calls, operations = list[list[Any]](), list[int]()

    class Counting:
        def run(self, phases: Sequence[Any], *_: Any) -> None:
            calls.append(list(phases))

    def operate(*_: Any) -> None:
        operations.append(learner.updates)

    learner.engine = Counting()  # type: ignore[assignment]
    (operation,) = learner.rule.periodic
    learner.rule = learner.rule._replace(periodic=(operation._replace(run=operate),))
    learner.run(n)
    assert [phase for call in calls for phase in call] == [number % 2 == 1 for number in range(updates, updates + n)]
    assert operations == [number for number in range(updates + 1, updates + n + 1) if number % 250 == 0]
