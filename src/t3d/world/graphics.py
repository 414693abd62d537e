"""How MuJoCo draws on a machine without a screen."""

from __future__ import annotations

import os
import sys


def choose_graphics() -> None:
    """Lets MuJoCo render through EGL if there is no screen, which must be set before it is imported."""
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.platform == "linux" and not screen:
        os.environ.setdefault("MUJOCO_GL", "egl")


def graphics_hint() -> str:
    """What to add to the message of an error that graphics raised."""
    if not sys.modules.keys() & {"mujoco", "OpenGL"}:  # MuJoCo imports OpenGL first, which may fail
        return ""
    return (
        "; MuJoCo renders through EGL if there is no screen: apt-get install libegl1 libgl1, and leave MUJOCO_GL unset"
    )
