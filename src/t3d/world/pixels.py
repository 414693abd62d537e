"""`env.pixels`: turns an environment that can be rendered into one that observes its rendered images."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from t3d.config import EnvConfig
from t3d.errors import EnvironmentFailed, NotRendered, UserError, did_you_mean, text_of
from t3d.world.arguments import accepted
from t3d.world.guard import EnvFactory, GymEnv
from t3d.world.simulators import DmControl, choose_graphics, graphics_hint
from t3d.world.spec import name_of

Frame = NDArray[np.uint8]
SWITCHED_OFF = ("shadow", "reflection", "skybox")  # in software they take ten times as long as all the rest


def open_env(make_env: EnvFactory, cfg: EnvConfig) -> Any:
    """Creates an environment, with env.pixels one that observes rendered images."""
    if not cfg.pixels:
        return make_env()
    choose_graphics()
    try:
        return with_pixels(make_env(**accepted(make_env, {"render_mode": "rgb_array"})), cfg)
    except EnvironmentFailed as error:  # libraries of graphics that are missing may fail as early as this
        raise UserError(f"env.pixels: {error}{graphics_hint()}") from error


def with_pixels(env: Any, cfg: EnvConfig) -> Any:
    """Replaces what an environment observes by rendered images if env.pixels asks for it."""
    if not cfg.pixels:
        return env
    if isinstance(env, VectorEnv):
        raise UserError("env.pixels does not work on a VectorEnv; let its environments observe images themselves")
    if not isinstance(env, gym.Env):
        return env  # refused by whoever opens it
    if env.render_mode != "rgb_array":
        raise UserError(
            f"{name_of(env)} cannot be rendered, which env.pixels needs: make it accept render_mode='rgb_array', keep "
            "it in self.render_mode, and let render() return an image"
        )
    return Pixels(env, cfg)


class Pixels(gym.Wrapper[Any, Any, Any, Any]):
    """Observes an image (pixels, pixels, 3) of the environment; render() still returns what people see.

    An action that is repeated needs only the image after the last repeat; steps in between return the one before.
    """

    def __init__(self, env: GymEnv, cfg: EnvConfig) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(0, 255, (cfg.pixels, cfg.pixels, 3), np.uint8)
        self._repeat = cfg.action_repeat
        self._steps, self._frame = 0, np.zeros(self.observation_space.shape, np.uint8)
        self._renderer: Any = None  # of MuJoCo: a second one, because images for people have another size
        self._calls_render = False  # the environment's own render(), whose errors are shown with a traceback
        self._draw = self._drawing(cfg.pixels, cfg.camera)

    def reset(self, **keywords: Any) -> tuple[Frame, dict[str, Any]]:
        _, info = self.env.reset(**keywords)
        self._steps, self._frame = 0, self._drawn()
        return self._frame, info

    def step(self, action: Any) -> Any:
        _, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        if self._steps % self._repeat == 0 or terminated or truncated:
            self._frame = self._drawn()
        return self._frame, reward, terminated, truncated, info

    def render(self) -> Any:
        for_people = getattr(self.env.unwrapped, "mujoco_renderer", None)
        if for_people is not None and for_people.viewer is not None:
            for_people.viewer.make_context_current()  # Gymnasium draws in whichever context was used last
        return self.env.render()

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
        self.env.close()

    def _drawn(self) -> Frame:
        try:
            return self._draw()
        except NotRendered:
            raise
        except Exception as error:  # graphics raise anything
            text = f"it cannot be rendered here: {text_of(error)}{graphics_hint()}"
            raise NotRendered(text) from (error if self._calls_render else None)

    def _drawing(self, pixels: int, camera: str) -> Callable[[], Frame]:
        """Returns what draws an image; where the simulator allows it, in the right size and without decoration."""
        inner: Any = self.env.unwrapped
        name = name_of(self.env)
        if isinstance(inner, DmControl):
            physics, flags = inner.env.physics, dict.fromkeys(SWITCHED_OFF, False)
            cameras = [physics.model.id2name(index, "camera") for index in range(physics.model.ncam)]
            number = _number(camera, cameras, name) if camera else inner.camera
            return lambda: physics.render(pixels, pixels, camera_id=number, render_flag_overrides=flags)
        if hasattr(inner, "mujoco_renderer") and "mujoco" in sys.modules:
            return self._mujoco_drawing(inner.mujoco_renderer, pixels, camera)
        if camera:
            _number(camera, [], name)
        self._calls_render = True
        return lambda: averaged(picture_in(self.env.render(), "env.pixels"), pixels)

    def _mujoco_drawing(self, for_people: Any, pixels: int, camera: str) -> Callable[[], Frame]:
        model = for_people.model
        known = [model.camera(index).name for index in range(model.ncam)]
        chosen = camera or ("track" if "track" in known else "")  # otherwise the body moves out of sight
        renderer = self._renderer = type(for_people)(
            model,
            for_people.data,
            default_cam_config=for_people.default_cam_config,
            width=pixels,
            height=pixels,
            camera_id=_number(chosen, known, name_of(self.env)) if chosen else for_people.camera_id,
        )

        def draw() -> Frame:
            if renderer.viewer is None:
                renderer.render("rgb_array")
                viewer: Any = renderer.viewer
                flags = sys.modules["mujoco"].mjtRndFlag
                for name in SWITCHED_OFF:
                    viewer.scn.flags[getattr(flags, f"mjRND_{name.upper()}")] = 0
                if "lookat" not in (renderer.default_cam_config or {}):  # Gymnasium looks at where bodies are now
                    viewer.cam.lookat[:] = renderer.model.stat.center
            renderer.viewer.make_context_current()
            frame: Frame = renderer.render("rgb_array")
            return frame

        return draw


def averaged(image: Frame, pixels: int) -> Frame:
    """Resizes an image (height, width, 3) to (pixels, pixels, 3); each pixel is the mean of the area it covers.

    In whole numbers, so that it is the same on every machine.
    """
    height, width, _ = image.shape
    rows: Any = sum(image[index] * weight[:, None, None] for index, weight in _areas(height, pixels))
    total: Any = sum(rows[:, index] * weight[:, None].astype(np.int64) for index, weight in _areas(width, pixels))
    mean: Frame = ((total + height * width // 2) // (height * width)).astype(np.uint8)
    return mean


@cache
def _areas(size: int, pixels: int) -> list[tuple[NDArray[np.int64], NDArray[np.int32]]]:
    """Which of `size` pixels each of the new ones covers, and how much of them: pairs of arrays (pixels,).

    Measured in parts of which a pixel has `pixels` and a new one has `size`.
    """
    left = np.arange(pixels) * size
    areas = []
    for further in range(-(-size // pixels) + 1):
        index = left // pixels + further
        covered = np.minimum((index + 1) * pixels, left + size) - np.maximum(index * pixels, left)
        areas.append((np.minimum(index, size - 1), np.maximum(covered, 0).astype(np.int32)))
    return areas


def picture_in(rendered: Any, needed_by: str) -> Frame:
    """Returns what render() has returned, if it is a picture."""
    frame = np.asarray(rendered)
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8 or 0 in frame.shape:
        returned = type(rendered).__name__
        returned += f" of shape {frame.shape} and type {frame.dtype}" if isinstance(rendered, np.ndarray) else ""
        raise NotRendered(
            f"{needed_by} needs a render() that returns an image (height, width, 3) of uint8, and it returned "
            f"{'nothing' if rendered is None else returned}"
        )
    return frame


def _number(camera: str, known: list[str], name: str) -> int:
    if camera in known:
        return known.index(camera)
    if camera.isascii() and camera.isdigit() and int(camera) < len(known):
        return int(camera)
    if not known:
        raise UserError(f"{name} has no cameras to choose from; leave out --env.camera {camera}")
    named = ", ".join(f"{index} ({name})" if name else str(index) for index, name in enumerate(known))
    hint = did_you_mean(camera, known)
    raise UserError(f"{name} has no camera {camera}{hint}{' Its' if hint else '; its'} cameras are {named}")
