"""Records videos of a policy. Frames are piped straight into ffmpeg, so length costs no memory.

If the policy observes images, the newest ones are shown beside what people see, enlarged by whole pixels. As a program
this records the policies of one evaluation, beside the training.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from t3d.config import EnvConfig, load_config
from t3d.config.networks import own_network
from t3d.errors import EnvironmentFailed, UserError
from t3d.modules import find_again
from t3d.policy.acting import SavedPolicy
from t3d.policy.files import read_policy
from t3d.run.background import begin
from t3d.seeds import derive
from t3d.store.log import remembered_files
from t3d.types import EpisodeResult
from t3d.world.batch import SingleEnvs
from t3d.world.evaluate import play_episodes
from t3d.world.fingerprint import check_fits
from t3d.world.guard import EnvFactory, Environment, close_quietly
from t3d.world.make import env_factory, own_names
from t3d.world.pixels import picture_in, with_pixels
from t3d.world.simulators import choose_graphics, graphics_hint

Frame = NDArray[np.uint8]
DEFAULT_FPS = 30
STEPS = 300  # of a video while a run trains, as of the one after training
NICE = 19


def record(
    policy: SavedPolicy, cfg: EnvConfig, out: Path, *, seed: int, episodes: int, steps: int, make_env: Any = None
) -> float:
    """Records an mp4 of the given episodes, or steps if these end first; returns the mean return of whole episodes."""
    env = Environment(with_pixels(open_renderable(cfg, make_env), cfg), "the environment being recorded", cfg)
    ended: list[EpisodeResult] = []
    try:
        check_fits(policy, env.guard.spec, cfg.id)
        seeds = [derive(seed, "video", episode) for episode in range(episodes)]
        fps = int(env.gym.metadata.get("render_fps") or DEFAULT_FPS) // env.action_repeat  # a frame for all repetitions
        playing = play_episodes(policy.actor, SingleEnvs([env], env_factory, cfg), seeds, steps)
        _write(out, _frames(playing, env, steps, ended), max(1, fps))
    finally:
        close_quietly(env, env.guard.where)
    return float(np.mean([episode.total_reward for episode in ended]))


def open_renderable(cfg: EnvConfig, make_env: EnvFactory | None = None) -> Any:
    """Creates an environment to record; raises UserError if it cannot be recorded."""
    try:
        env = (make_env or env_factory(cfg))(render_mode="rgb_array")
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{cfg.title} cannot be recorded here: {error}{graphics_hint()}") from error
    if getattr(env, "render_mode", None) != "rgb_array" or not isinstance(env, gym.Env):
        raise UserError(
            f"{cfg.title} cannot be recorded: make it accept render_mode='rgb_array', keep it in self.render_mode, "
            "and let render() return an image"
        )
    if getattr(env.unwrapped.render, "__func__", None) is gym.Env.render:
        raise UserError(f"{cfg.title} cannot be recorded: it has no render()")
    track(env)
    return env


def open_window(cfg: EnvConfig) -> Any:
    """Creates an environment that is shown in a window: its own, or one with the pictures that it renders."""
    env = env_factory(cfg)(render_mode="human")
    if getattr(env, "render_mode", None) == "human" and "human" in env.metadata.get("render_modes", ()):
        track(env)
        return env
    close_quietly(env, cfg.id)
    rendered = open_renderable(cfg)
    try:
        return gym.wrappers.HumanRendering(rendered)
    except Exception as error:
        raise EnvironmentFailed("opening a window", error) from error


def track(env: Any) -> None:
    """Uses MuJoCo's tracking camera if the model has one; otherwise the body moves out of sight."""
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    mujoco = sys.modules.get("mujoco")
    if renderer is None or mujoco is None:
        return
    camera = mujoco.mj_name2id(renderer.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
    if camera != -1:
        renderer.camera_id = camera
        fixed = {"type": mujoco.mjtCamera.mjCAMERA_FIXED, "fixedcamid": camera}  # a window reads these instead
        renderer.default_cam_config = {**(renderer.default_cam_config or {}), **fixed}


def _frames(
    playing: Iterator[list[EpisodeResult]], env: Environment, steps: int, ended: list[EpisodeResult]
) -> Iterator[Frame]:
    """Yields a frame before each of so many steps, and one where they or an episode end; notes which have ended."""
    for episodes in playing:
        ended += episodes
        yield _picture(env)
        if not steps:
            return
        steps -= not episodes  # it comes next, unless another episode does


def _picture(env: Environment) -> Frame:
    """What people see and, beside it, the newest images that the policy sees."""
    picture, observation, spec = _render(env), env.guard.last, env.guard.spec
    frame = observation[observation.size - spec.frame_size :]
    picture = beside(
        [picture, *(_in_colour(frame[image.start : image.stop].reshape(image.shape)) for image in spec.images)]
    )
    height, width = picture.shape[0] // 2 * 2, picture.shape[1] // 2 * 2  # H.264 wants even sides
    return np.ascontiguousarray(picture[:height, :width])


def beside(pictures: list[Frame]) -> Frame:
    """Puts pictures (height, width, 3) side by side; all but the first are enlarged by whole pixels to its height."""
    first = pictures[0]
    scales = [1, *(max(1, first.shape[0] // image.shape[0]) for image in pictures[1:])]
    enlarged = [image.repeat(scale, 0).repeat(scale, 1) for image, scale in zip(pictures, scales, strict=True)]
    height = max(len(image) for image in enlarged)
    return np.concatenate([np.pad(image, ((0, height - len(image)), (0, 0), (0, 0))) for image in enlarged], axis=1)


def _in_colour(image: Frame) -> Frame:
    """Returns an image (channels, height, width) for people: the last three channels if they are colours, or grey."""
    channels = image.shape[0]
    if channels == 4:
        image = image[:3]  # without the alpha channel
    colours = image[-3:] if channels % 3 == 0 or channels == 4 else image[-1:].repeat(3, 0)
    return colours.transpose(1, 2, 0)


def _render(env: Environment) -> Frame:
    try:
        rendered = env.gym.render()
    except Exception as error:
        raise UserError(f"the environment cannot be rendered here: {error}{graphics_hint()}") from error
    return picture_in(rendered, "a video")


def _write(out: Path, frames: Iterator[Frame], fps: int) -> None:
    import imageio_ffmpeg  # noqa: PLC0415 (only videos need it)

    if out.suffix != ".mp4" or not out.parent.is_dir():
        raise UserError(f"cannot record into {out}: name an .mp4 file in a folder that exists")
    first = next(frames)
    size = (first.shape[1], first.shape[0])
    unfinished = out.with_name(f".unfinished-{out.name}")  # a folder: out itself is only ever a complete video
    try:
        # ffmpeg opens files by name: nobody can have put a link into a new folder
        if unfinished.is_symlink() or unfinished.is_file():
            unfinished.unlink()
        shutil.rmtree(unfinished, ignore_errors=True)  # of a recording that was killed
        unfinished.mkdir(mode=0o700)
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


def main() -> int:
    """Records what the first line of standard input says; ends at once when that is closed."""
    task = begin(NICE, lambda: os._exit(1))
    try:
        record_all(Path(task["path"]), task["step"])
    except UserError as error:
        print(f"error: {error}")  # noqa: T201
        return 2
    return 0


def record_all(path: Path, step: int) -> None:
    """Writes videos/MEMBER-step-N.mp4 for every member whose policy of this step is there."""
    choose_graphics()
    cfg = load_config(path / "config.toml")
    find_again(own_names(cfg), remembered_files(path), path)
    for member in cfg.members:
        stem = path / "videos" / ".policies" / member.name
        if not stem.with_name(f"{stem.name}.safetensors").exists():
            continue
        policy = read_policy(stem, own_network(cfg.actor_network))
        if policy.about["step"] == step:  # otherwise it has diverged since
            out = path / "videos" / f"{member.name}-step-{step}.mp4"
            record(policy, cfg.eval_env(member), out, seed=member.seed, episodes=STEPS, steps=STEPS)


if __name__ == "__main__":
    sys.exit(main())
