"""Events: what is written as a line is read back as it was."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import helpers
from run_folders import run
from t3d.config import Config, merge
from t3d.events import End, Eval, Event, Start, TraceSummary, Update, from_line, to_line


@pytest.mark.parametrize("kind", [Eval, Update, TraceSummary, End, Start])
def test_events_survive_their_line(kind: type[Event], tmp_path: Path) -> None:
    event = next(event for event in run(helpers.small_config(), tmp_path) if isinstance(event, kind))
    again = from_line(to_line(event))
    if isinstance(event, Start):  # a config's tuples come back as lists
        assert isinstance(again, Start) and merge(Config(total_steps=10**6), again.config) == merge(
            Config(), event.config
        )
        again = dataclasses.replace(again, config=event.config)
    assert again == event
    assert json.loads(to_line(event))["event"] == event.event


def test_numbers_that_are_not_finite_are_written_as_null() -> None:
    line = to_line(End(step=1, reason="failed", updates=2, seconds=float("nan")))
    assert json.loads(line)["seconds"] is None
