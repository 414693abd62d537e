"""Films a policy. Frames are piped straight into ffmpeg, so length costs no memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from t3d.config import EnvConfig
from t3d.errors import UserError
from t3d.insight.runs import check_fits
from t3d.seeds import derive
from t3d.world.envs import Environment
from t3d.world.find import env_factory
from t3d.world.policy import SavedPolicy

Frame = NDArray[np.uint8]
DEFAULT_FPS = 30


def record(policy: SavedPolicy, cfg: EnvConfig, out: Path, *, seed: int, episodes: int, max_steps: int) -> float:
    """Writes an mp4 of whole episodes (each cut at max_steps) and returns their mean return."""
    env = Environment(_renderable(cfg.id), "the environment being filmed", cfg)
    returns: list[float] = []
    try:
        check_fits(policy, env.gate.spec, cfg.id)
        seeds = [derive(seed, "video", episode) for episode in range(episodes)]
        frames = _frames(policy, env, seeds, max_steps, returns)
        _write(out, frames, _frames_per_second(env))
    finally:
        env.close()
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
        raise UserError(f"{env_id} cannot be filmed here: {error}{_graphics_hint()}") from error
    if getattr(env, "render_mode", None) != "rgb_array" or not isinstance(env, gym.Env):
        raise UserError(
            f"{env_id} cannot be filmed: make it accept render_mode='rgb_array', keep it in self.render_mode, "
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
    policy: SavedPolicy, env: Environment, seeds: list[int], max_steps: int, returns: list[float]
) -> Iterator[Frame]:
    """The pictures of the episodes; fills returns as it goes."""
    for episode, seed in enumerate(seeds):
        observation = env.reset(seed, episode)
        returns.append(0.0)
        yield _picture(env)
        for _ in range(max_steps):
            result = env.step(policy.actor(observation[None])[0])
            observation = result.observation
            returns[-1] += result.reward
            yield _picture(env)
            if result.terminated or result.truncated:
                break


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
    import imageio_ffmpeg  # noqa: PLC0415 (only films need it)

    if out.suffix != ".mp4" or not out.parent.is_dir():
        raise UserError(f"cannot film into {out}: name an .mp4 file in a folder that exists")
    first = next(frames)
    size = (first.shape[1], first.shape[0])
    unfinished = out.with_name(f".unfinished-{out.name}")  # a film that was broken off is not left as if it were whole
    try:
        unfinished.touch()
        writer = imageio_ffmpeg.write_frames(
            str(unfinished), size, fps=fps, macro_block_size=2, ffmpeg_log_level="error"
        )
        with closing(writer):
            writer.send(None)
            writer.send(first)
            for frame in frames:
                writer.send(frame)
        unfinished.replace(out)
    except OSError as error:
        raise UserError(f"cannot film into {out}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):  # on a disk that takes nothing it cannot be removed, and is not there
            unfinished.unlink()
