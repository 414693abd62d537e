"""One small Ray cluster for the tests of a process, started by the first that needs it."""

from __future__ import annotations

import functools
import importlib.util

import pytest

import helpers
from t3d.config import Config

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (t3d[ray])")


def cluster(cfg: Config):  # type: ignore[no-untyped-def]
    """Returns a connection to it whose close() does nothing, for actors with this configuration."""
    from t3d.actors.ray_cluster import Connection  # noqa: PLC0415

    class Shared(Connection):
        def __init__(self) -> None:
            self.cfg, self.warnings = cfg, []

        def lost(self) -> str:
            return ""

        def close(self) -> None:
            pass

    _started()
    return Shared()


@functools.cache
def _started() -> object:
    """Starts it; Ray ends it with the process."""
    from t3d.actors.ray_cluster import connect  # noqa: PLC0415

    return connect(helpers.small_config(actors="ray:12", ray_cpus=0.5))
