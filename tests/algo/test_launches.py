"""How many updates are launched at once: blocks, phases and periodic operations; no GPU is needed to know."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from t3d.algo.engines.capture import block_length, launch_length


def launches(updates: int, n: int, cycle: int, periods: list[int], block: int) -> list[int]:
    """The lengths of all launches for n updates, as Learner.run asks for them."""
    lengths, end = list[int](), updates + n
    while updates < end:
        lengths.append(launch_length(updates, end - updates, cycle, periods, block))
        updates += lengths[-1]
    return lengths


@given(
    updates=some.integers(0, 3000),
    n=some.integers(1, 700),
    delay=some.integers(1, 5),
    cycles=some.integers(0, 4),
    periods=some.lists(some.integers(1, 300), max_size=3),
)
def test_launches_are_the_updates_one_by_one(updates: int, n: int, delay: int, cycles: int, periods: list[int]) -> None:
    block = cycles * delay
    lengths = launches(updates, n, delay, periods, block)
    assert sum(lengths) == n and {*lengths} <= {1, block}
    for length in lengths:
        if length > 1:
            assert updates % delay == 0, "a block has the phases in their order"
        missed = [
            number for number in range(updates + 1, updates + length) for period in periods if number % period == 0
        ]
        assert not missed, "an operation is due between launches, never within one"
        updates += length


def test_blocks_are_used_wherever_they_fit() -> None:
    assert launches(0, 16, 2, [], 8) == [8, 8]
    assert launches(1, 9, 2, [], 8) == [1, 8]
    assert launches(0, 7, 2, [], 8) == [1] * 7


def test_a_block_ends_where_a_periodic_operation_is_due() -> None:
    assert launches(0, 500, 2, [250], 8) == 2 * [*[8] * 31, 1, 1], "250 is 31 blocks and two single updates"


def test_many_phases_are_not_recorded_as_a_block() -> None:
    assert block_length([False, True]) == 8
    assert block_length([False] * 16) == 64
    assert block_length([False] * 10**6) == 0
