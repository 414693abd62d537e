"""T3D: TD3 for continuous control. Public names, imported only when asked for (torch alone takes 1.5 s)."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from t3d.version import __version__

if TYPE_CHECKING:
    from t3d.api.groups import compare as compare
    from t3d.api.groups import report as report
    from t3d.api.run import Run as Run
    from t3d.api.run import evaluate as evaluate
    from t3d.api.run import open_run as open_run
    from t3d.api.run import resume as resume
    from t3d.api.run import runs as runs
    from t3d.api.run import train as train
    from t3d.api.tune import tune as tune
    from t3d.config import Config as Config
    from t3d.config import merge as merge
    from t3d.config.presets import preset as preset
    from t3d.errors import UserError as UserError
    from t3d.policy.files import load_policy as load_policy

# Threads of torch that wait for each other spin, which costs dearly on a busy machine: see "Idle threads" in
# docs/lab/performance.md. OpenMP reads this once, when torch is loaded.
SPINS = "GOMP_SPINCOUNT"
if "torch" not in sys.modules:
    os.environ.setdefault(SPINS, "2000")
WAITS_SHORTLY = SPINS in os.environ or "OMP_WAIT_POLICY" in os.environ

_HOMES = {
    "Config": "t3d.config",
    "UserError": "t3d.errors",
    "load_policy": "t3d.policy.files",
    "merge": "t3d.config",
    "preset": "t3d.config.presets",
    **dict.fromkeys(("Run", "evaluate", "open_run", "resume", "runs", "train"), "t3d.api.run"),
    **dict.fromkeys(("compare", "report"), "t3d.api.groups"),
    "tune": "t3d.api.tune",
}
__all__ = ["Config", "Run", "UserError", "__version__", "compare", "evaluate", "load_policy", "merge", "open_run"]
__all__ += ["preset", "report", "resume", "runs", "train", "tune"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 't3d' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("t3d."):
            raise ImportError(f"t3d.{name} is not part of t3d-policy; install t3d instead") from None
        raise


def __dir__() -> list[str]:
    return __all__
