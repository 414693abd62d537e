"""For tests of actors: what their runs have stored."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import helpers
import ray_helpers
from t3d.data.memory import Memory


@pytest.fixture
def memories(monkeypatch: pytest.MonkeyPatch) -> list[Memory]:
    """Fills with the memories that runs make."""
    return helpers.caught(monkeypatch, Memory)


@pytest.fixture(scope="module", autouse=True)
def _leave_the_cluster() -> Iterator[None]:
    yield
    ray_helpers.leave()
