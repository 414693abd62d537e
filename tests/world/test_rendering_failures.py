"""Rendering that fails, or that would disturb others: in words, and without side effects."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from image_worlds import Dot
from t3d.app.cli import _frames
from t3d.config import EnvConfig
from t3d.errors import EnvironmentFailed, UserError
from t3d.world.batch import open_batch
from t3d.world.doctor import examine
from t3d.world.guard import BadValue
from t3d.world.pixels import open_env
from worlds import Sound


class Blind(Sound):
    """Renders whatever it was told to."""

    rendered: Any = None

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> Any:
        if isinstance(self.rendered, Exception):
            raise self.rendered
        return self.rendered


NO_IMAGE = r"env.pixels needs a render\(\) that returns an image \(height, width, 3\) of uint8, and it returned"


@pytest.mark.parametrize(
    ("rendered", "words"),
    [
        (None, "nothing"),
        (np.zeros((40, 40), np.uint8), r"ndarray of shape \(40, 40\) and type uint8"),
        (np.zeros((40, 40, 3)), r"ndarray of shape \(40, 40, 3\) and type float64"),
        (np.zeros((0, 40, 3), np.uint8), r"ndarray of shape \(0, 40, 3\) and type uint8"),
        ("a picture", "str"),
    ],
)
def test_a_renderer_without_an_image_is_a_sentence(rendered: Any, words: str) -> None:
    world = type("Blind", (Blind,), {"rendered": rendered})
    with pytest.raises(BadValue, match=rf"^Blind, episode 0, step 0: {NO_IMAGE} {words}$"):
        examine(world, EnvConfig(pixels=32))


def test_what_a_renderer_raises_is_shown_with_its_own_traceback() -> None:
    broken = RuntimeError("the projector is broken")
    world = type("Blind", (Blind,), {"rendered": broken})
    words = "^Blind, episode 0, step 0: it cannot be rendered here: the projector is broken"
    with pytest.raises(EnvironmentFailed, match=words) as failed:
        examine(world, EnvConfig(pixels=32))
    assert failed.value.__cause__ is broken
    frames = _frames(failed.value)
    assert frames[-1] == "RuntimeError: the projector is broken\n"
    assert any("in render" in frame for frame in frames) and not any("t3d" in frame for frame in frames)


def test_what_cannot_be_rendered_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"Sound cannot be rendered, which env.pixels needs: make it accept render_mode"
    ):
        open_env(Sound, EnvConfig(pixels=32))
    with pytest.raises(UserError, match=r"env.pixels does not work on a VectorEnv"):
        open_batch(lambda: SyncVectorEnv([Dot]), EnvConfig(pixels=32), "vector")


NO_GL = """
from t3d.config import EnvConfig
from t3d.errors import as_sentence
from t3d.world.doctor import examine
from t3d.world.make import env_factory
try:
    examine(env_factory(EnvConfig("HalfCheetah-v5")), EnvConfig(pixels=32))
except Exception as error:
    print(as_sentence(error))
"""


@pytest.mark.parametrize("backend", ["egl", "osmesa"])
def test_a_machine_without_graphics_gets_a_sentence(backend: str) -> None:
    environment = {**os.environ, "MUJOCO_GL": backend, "__EGL_VENDOR_LIBRARY_DIRS": "/nowhere"}
    environment.pop("PYOPENGL_PLATFORM", None)  # MuJoCo sets it in this process
    finished = subprocess.run(
        [sys.executable, "-c", NO_GL], env=environment, capture_output=True, text=True, check=False
    )
    (said,) = finished.stdout.splitlines()
    assert said.count("HalfCheetah-v5") == 1 and "apt-get install libegl1 libgl1" in said


DRAWN = """
import os, signal
from t3d.config import EnvConfig
from t3d.world.make import env_factory
from t3d.world.pixels import open_env
open_env(env_factory(EnvConfig("Pendulum-v1")), EnvConfig(pixels=32)).reset(seed=0)
print("drawn", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
print("still here")
"""


def test_what_draws_without_a_screen_says_nothing_and_can_still_be_terminated() -> None:
    chosen = ("DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "SDL_VIDEODRIVER", "SDL_NO_SIGNAL_HANDLERS")
    environment = {name: value for name, value in os.environ.items() if name not in chosen}
    finished = subprocess.run(
        [sys.executable, "-c", DRAWN], env=environment, capture_output=True, text=True, check=False
    )
    assert (finished.stdout, finished.stderr, finished.returncode) == ("drawn\n", "", -signal.SIGTERM)
