"""What MuJoCo, dm_control and pygame need: graphics without a screen, warnings in the log, dm_control tasks by id."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict

from t3d.errors import UserError, did_you_mean
from t3d.world.arguments import call_with

LOG = logging.getLogger("t3d.mujoco")
FRAME_SIZE = (480, 480)  # height and width
_logged: set[str] = set()


def choose_graphics() -> None:
    """Lets MuJoCo render through EGL and pygame without a window if there is no screen; before they are imported.

    pygame's library, SDL, would swallow SIGTERM as soon as something is drawn.
    """
    os.environ.setdefault("SDL_NO_SIGNAL_HANDLERS", "1")
    if not has_screen():
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def has_screen() -> bool:
    """Whether windows can be opened; on other systems than Linux they always can, as far as anybody can tell."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def graphics_hint() -> str:
    """What to add to the message of an error that graphics raised."""
    if not sys.modules.keys() & {"mujoco", "OpenGL"}:  # MuJoCo imports OpenGL first, which may fail
        return ""
    return (
        "; MuJoCo renders through EGL if there is no screen: apt-get install libegl1 libgl1, and leave MUJOCO_GL unset"
    )


def redirect_warnings() -> None:
    """Sends MuJoCo's warnings, which it writes to MUJOCO_LOG.TXT otherwise, to Python's logging, if it is in use."""
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None:
        mujoco.set_mju_user_warning(_log_once)


def _log_once(message: str) -> None:
    level = logging.DEBUG if "deprecated" in message else logging.WARNING  # old model syntax is not the user's concern
    if message not in _logged:
        _logged.add(message)
        LOG.log(level, "MuJoCo: %s", message)


class DmControl(gym.Env[Any, Any]):
    """One task of the control suite; its episodes end at the time limit (truncated) unless the task terminates them."""

    def __init__(self, task: str, args: dict[str, Any] | None = None, render_mode: str | None = None) -> None:
        self.env = _load(task, args or {})
        self.render_mode = render_mode
        self.camera = 0 if self.env.physics.model.ncam else -1  # -1: none of the model's own
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": round(1 / self.env.control_timestep())}
        actions = self.env.action_spec()
        self.action_space = Box(actions.minimum, actions.maximum, actions.shape, np.float64)
        parts = self.env.observation_spec().items()
        self.observation_space = Dict({name: Box(-np.inf, np.inf, part.shape, np.float64) for name, part in parts})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.env.task.random.seed(seed)
        return self.env.reset().observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        now = self.env.step(action)
        terminated = now.last() and now.discount == 0
        return now.observation, now.reward or 0.0, terminated, now.last() and not terminated, {}

    def render(self) -> Any:
        height, width = FRAME_SIZE
        return self.env.physics.render(height, width, camera_id=self.camera)

    def close(self) -> None:
        self.env.close()


def _load(task: str, args: dict[str, Any]) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without a screen, GLFW complains before EGL is tried
            from dm_control import suite  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise UserError(
            f'dm:{task} needs a package that is not installed ({error}); install it with: pip install "t3d[dm-control]"'
        ) from None
    domain, _, name = task.partition("-")
    known = [f"dm:{domain}-{name}" for domain, name in suite.ALL_TASKS]
    if f"dm:{task}" not in known:
        raise UserError(f"unknown environment dm:{task}{did_you_mean(f'dm:{task}', known)}")
    takes = importlib.import_module(f"dm_control.suite.{domain}").SUITE[name]
    return call_with(lambda **given: suite.load(domain, name, task_kwargs=given), f"dm:{task}", args, {}, takes)
