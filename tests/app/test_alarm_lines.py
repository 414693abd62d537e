"""What `t3d runs show` says of alarms."""

from __future__ import annotations

import pytest

from t3d.app.alarms import summary
from t3d.config import Member
from t3d.events import Alarm

SEEDS = [Member(seed) for seed in range(5)]


def alarm(step: int, member: int | None) -> Alarm:
    return Alarm(step=step, member=member, seed=member, kind="stuck", text="It is stuck.", advice="push.")


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
    assert summary([alarm(*one) for one in sounded], SEEDS) == [f"{line}: It is stuck. Try: push."]
