"""In which order updates are launched: whole blocks where possible, one by one otherwise, rare operations between."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

MOST_IN_A_BLOCK = 64  # updates; chosen: a longer graph takes long to record and saves nothing


@dataclass(frozen=True)
class Block:
    """Several updates in one launch, from the first phase on."""

    updates: int


@dataclass(frozen=True)
class Single:
    """One update."""

    phase: Hashable


@dataclass(frozen=True)
class Rare:
    """A rare operation of the rule, by its place."""

    place: int


def launches(
    made: int, n: int, phases: Sequence[Hashable], rare: Sequence[int], block: int = 0
) -> Iterator[Block | Single | Rare]:
    """Yields what to launch for n updates after the first `made`.

    rare has, for each rare operation, after how many updates it happens; block is the length of recorded blocks, a
    multiple of the number of phases, or 0 if there are none.
    """
    end = made + n
    while made < end:
        until_rare = min((every - made % every for every in rare), default=n)
        if block and made % len(phases) == 0 and block <= min(end - made, until_rare):
            yield Block(block)
            made += block
        else:
            yield Single(phases[made % len(phases)])
            made += 1
        yield from (Rare(place) for place, every in enumerate(rare) if made % every == 0)


def block_length(phases: Sequence[Hashable], cycles: int) -> int:
    """Updates in a block of so many cycles through the phases; 0, for none, if they were too many."""
    length = cycles * len(phases)
    return length if length <= MOST_IN_A_BLOCK else 0
