"""What `t3d runs show` says of alarms."""

from __future__ import annotations

import pytest

from t3d.alarms.watch import alarm_lines
from t3d.config import Member
from t3d.events import Alarm

SEEDS = [Member(seed) for seed in range(5)]


def alarm(step: int, member: int | None, kind: str = "stuck") -> Alarm:
    return Alarm(step=step, member=member, seed=member, kind=kind, text="It is stuck.", advice="push.")


@pytest.mark.parametrize(
    ("sounded", "line"),
    [
        ([(2000, 3)], "alarm at step 2,000, seed 3"),
        ([(2000, None)], "alarm at step 2,000"),
        ([(2000, 3), (3000, 3)], "alarm at step 3,000, seed 3 (the last of 2; the first was at step 2,000)"),
        (
            [(1000 * (seed + 2), seed) for seed in range(5)],
            "alarm in 5 of 5 seeds, first at step 2,000 (seed 0), last at step 6,000 (seed 4)",
        ),
        (
            [(1000, 2), (2000, 2), (3000, 1)],
            "alarm in 2 of 5 seeds, first at step 1,000 (seed 2), last at step 3,000 (seed 1)",
        ),
    ],
)
def test_a_line_says_in_how_many_seeds_an_alarm_sounded(sounded: list[tuple[int, int | None]], line: str) -> None:
    assert alarm_lines([alarm(*one) for one in sounded], SEEDS) == [f"{line}: It is stuck. Try: push."]


def test_the_gravest_comes_first_whenever_it_sounded() -> None:
    kinds = ["slow-environment", "unknown", "large-rewards", "saturated-actor", "critics-diverging"]
    lines = alarm_lines([alarm(1000 * place, None, kind) for place, kind in enumerate(kinds)], SEEDS)
    assert [int(line.split(",")[0].removeprefix("alarm at step ")) for line in lines[:3]] == [4, 3, 2]
    assert "step 0:" in lines[3] and "step 1,000:" in lines[4], "kinds of other versions last"
