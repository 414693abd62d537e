"""Speed that the issue of the day depends on; timing needs a quiet machine, so it is a long trial."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from t3d.config import TD3Config

SCRIPT = Path(__file__).parents[1] / "experiments" / "update_time.py"


def script() -> Any:
    spec = importlib.util.spec_from_file_location("update_time", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_stacked_update_is_no_slower_than_the_oracle() -> None:
    ours, theirs = script().times(TD3Config())
    assert min(ours) <= min(theirs) * 1.02, "two per cent for the clock"
