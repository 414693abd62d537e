"""Records videos of a policy. Frames are piped straight into ffmpeg, so length costs no memory."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from t3d.config import EnvConfig
from t3d.errors import UserError
from t3d.seeds import derive
from t3d.world.fit import check_fits
from t3d.world.guard import Environment, close_quietly
from t3d.world.make import env_factory
from t3d.world.policy import SavedPolicy

Frame = NDArray[np.uint8]
DEFAULT_FPS = 30


def record(policy: SavedPolicy, cfg: EnvConfig, out: Path, *, seed: int, episodes: int, steps: int) -> float:
    """Writes an mp4 of so many episodes, or steps if they come first, and returns the mean return of whole episodes."""
    env = Environment(_renderable(cfg.id), "the environment being recorded", cfg)
    returns: list[float] = []
    try:
        check_fits(policy, env.guard.spec, cfg.id)
        seeds = [derive(seed, "video", episode) for episode in range(episodes)]
        _write(out, _frames(policy, env, seeds, steps, returns), _frames_per_second(env))
    finally:
        close_quietly(env, env.guard.where)
    return float(np.mean(returns))


def _frames_per_second(env: Environment) -> int:
    """As fast as the world runs: one picture stands for all repetitions of an action."""
    return max(1, int(env.gym.metadata.get("render_fps") or DEFAULT_FPS) // env.action_repeat)


def _renderable(env_id: str) -> Any:
    try:
        env = env_factory(env_id)(render_mode="rgb_array")
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{env_id} cannot be recorded here: {error}{_graphics_hint()}") from error
    if getattr(env, "render_mode", None) != "rgb_array" or not isinstance(env, gym.Env):
        raise UserError(
            f"{env_id} cannot be recorded: make it accept render_mode='rgb_array', keep it in self.render_mode, "
            "and let render() return a picture"
        )
    follow(env)
    return env


def follow(env: Any) -> None:
    """Lets MuJoCo's picture follow the body where the model has a camera for it; otherwise it runs out of sight."""
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    mujoco = sys.modules.get("mujoco")
    if renderer is None or mujoco is None:
        return
    camera = mujoco.mj_name2id(renderer.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
    if camera != -1:
        renderer.camera_id = camera


def _graphics_hint() -> str:
    if "mujoco" not in sys.modules:
        return ""
    return (
        "; MuJoCo draws through EGL when there is no screen: apt-get install libegl1 libgl1, and leave MUJOCO_GL unset"
    )


def _frames(
    policy: SavedPolicy, env: Environment, seeds: list[int], steps: int, returns: list[float]
) -> Iterator[Frame]:
    """The pictures of the episodes; fills returns as it goes, with that of a cut one only if there is no other."""
    for episode, seed in enumerate(seeds):
        observation, total, over = env.reset(seed, episode), 0.0, False
        yield _picture(env)
        while steps and not over:
            result = env.step(policy.actor(observation[None])[0])
            observation, over = result.observation, result.terminated or result.truncated
            steps, total = steps - 1, total + result.reward
            yield _picture(env)
        if over or not returns:
            returns.append(total)
        if not steps:
            return


def _picture(env: Environment) -> Frame:
    try:
        drawn: Any = env.gym.render()
    except Exception as error:
        raise UserError(f"the environment cannot draw itself here: {error}{_graphics_hint()}") from error
    picture = np.asarray(drawn)
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise UserError(
            f"render() must return a picture (height, width, 3) of uint8; it returned {type(drawn).__name__} "
            f"of shape {picture.shape} and type {picture.dtype}"
        )
    height, width = picture.shape[0] // 2 * 2, picture.shape[1] // 2 * 2  # H.264 wants even sides
    return np.ascontiguousarray(picture[:height, :width])


def _write(out: Path, frames: Iterator[Frame], fps: int) -> None:
    import imageio_ffmpeg  # noqa: PLC0415 (only videos need it)

    if out.suffix != ".mp4" or not out.parent.is_dir():
        raise UserError(f"cannot record into {out}: name an .mp4 file in a folder that exists")
    first = next(frames)
    size = (first.shape[1], first.shape[0])
    unfinished = out.with_name(
        f".unfinished-{out.name}"
    )  # a folder: a video that was broken off is never left as whole
    try:
        _make_private(unfinished)
        writer = imageio_ffmpeg.write_frames(
            str(unfinished / out.name), size, fps=fps, macro_block_size=2, ffmpeg_log_level="error"
        )
        with closing(writer):
            writer.send(None)
            writer.send(first)
            for frame in frames:
                writer.send(frame)
        (unfinished / out.name).replace(out)
    except OSError as error:
        raise UserError(f"cannot record into {out}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _make_private(folder: Path) -> None:
    """A new folder for ffmpeg, which opens files by name: nobody can have put a link there."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)  # of a recording that was killed
    folder.mkdir(mode=0o700)
