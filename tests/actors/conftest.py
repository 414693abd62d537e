"""For tests of actors: what their runs have stored."""

from __future__ import annotations

import pytest

import helpers
from t3d.data.memory import Memory


@pytest.fixture
def memories(monkeypatch: pytest.MonkeyPatch) -> list[Memory]:
    """Fills with the memories that runs make."""
    return helpers.caught(monkeypatch, Memory)
