"""MuJoCo writes its warnings to MUJOCO_LOG.TXT in the working directory; here they go to Python's logging instead."""

from __future__ import annotations

import logging
import sys

LOG = logging.getLogger("t3d.mujoco")
_logged: set[str] = set()


def redirect_warnings() -> None:
    """Sends MuJoCo's warnings to Python's logging, if MuJoCo is in use."""
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None:
        mujoco.set_mju_user_warning(_log_once)


def _log_once(message: str) -> None:
    level = logging.DEBUG if "deprecated" in message else logging.WARNING  # old model syntax is not the user's concern
    if message not in _logged:
        _logged.add(message)
        LOG.log(level, "MuJoCo: %s", message)
