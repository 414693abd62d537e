"""What is launched, in which order: phases, blocks and rare operations; no GPU is needed to know."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from t3d.algo.engines.launches import Block, Rare, Single, block_length, launches


@given(
    made=some.integers(0, 3000),
    n=some.integers(1, 700),
    delay=some.integers(1, 5),
    cycles=some.integers(0, 4),
    rare=some.lists(some.integers(1, 300), max_size=3),
)
def test_launches_are_the_updates_one_by_one(made: int, n: int, delay: int, cycles: int, rare: list[int]) -> None:
    phases, block = list(range(delay)), cycles * delay
    plain = []
    for number in range(made, made + n):
        plain.append(("update", number % delay))
        plain += [("rare", place) for place, every in enumerate(rare) if (number + 1) % every == 0]
    found: list[tuple[str, object]] = []
    for what in launches(made, n, phases, rare, block):
        match what:
            case Block(updates):
                assert updates == block
                found += [("update", phase) for phase in phases] * cycles
            case Single(phase):
                found.append(("update", phase))
            case Rare(place):
                found.append(("rare", place))
    assert found == plain


def test_blocks_are_used_wherever_they_fit() -> None:
    assert list(launches(0, 16, [False, True], [], 8)) == [Block(8), Block(8)]
    assert list(launches(1, 9, [False, True], [], 8)) == [Single(True), Block(8)]
    assert list(launches(0, 7, [False, True], [], 8)) == [Single(phase) for phase in [False, True] * 3 + [False]]


def test_a_block_ends_where_a_rare_operation_is_due() -> None:
    due = list(launches(0, 500, [False, True], [250], 8))
    assert due.count(Rare(0)) == 2 and due[-1] == Rare(0), "the operation comes before anybody looks at the agent"
    assert due[:31] == [Block(8)] * 31, "250 is 31 blocks and two single updates"
    assert due[31:34] == [Single(False), Single(True), Rare(0)]


def test_many_phases_are_not_recorded_as_a_block() -> None:
    assert block_length([False, True], 4) == 8
    assert block_length([False] * 16, 4) == 64
    assert block_length([False] * 10**6, 4) == 0
