"""How MuJoCo and pygame draw on a machine without a screen."""

from __future__ import annotations

import os
import sys


def choose_graphics() -> None:
    """Lets MuJoCo render through EGL and pygame without a window if there is no screen; before they are imported.

    pygame's library, SDL, would swallow SIGTERM as soon as something is drawn.
    """
    os.environ.setdefault("SDL_NO_SIGNAL_HANDLERS", "1")
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.platform == "linux" and not screen:
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def graphics_hint() -> str:
    """What to add to the message of an error that graphics raised."""
    if not sys.modules.keys() & {"mujoco", "OpenGL"}:  # MuJoCo imports OpenGL first, which may fail
        return ""
    return (
        "; MuJoCo renders through EGL if there is no screen: apt-get install libegl1 libgl1, and leave MUJOCO_GL unset"
    )
