"""MuJoCo writes its warnings to MUJOCO_LOG.TXT in the working directory; here they go to Python's logging instead."""

from __future__ import annotations

import logging
import sys

LOG = logging.getLogger("t3d.mujoco")
_told: set[str] = set()


def redirect_warnings() -> None:
    """Takes MuJoCo's warnings over, if MuJoCo is in use at all."""
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None:
        mujoco.set_mju_user_warning(_tell_once)


def _tell_once(message: str) -> None:
    level = (
        logging.DEBUG if "deprecated" in message else logging.WARNING
    )  # a model's old syntax is not the user's concern
    if message not in _told:
        _told.add(message)
        LOG.log(level, "MuJoCo: %s", message)
