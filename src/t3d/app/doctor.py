"""`t3d doctor [ENV]`: checks an environment; without one, describes this machine."""

from __future__ import annotations

import os
import platform
import sys
from ctypes.util import find_library
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Annotated

import psutil
import tyro
from rich.table import Table
from rich.text import Text

from t3d.app.flags import read_flags
from t3d.app.terminal import PlainConsole, labelled
from t3d.config import EnvConfig
from t3d.errors import UserError
from t3d.insight.video import open_renderable
from t3d.store.folder import versions
from t3d.world.doctor import examine
from t3d.world.guard import EnvFactory, close_quietly
from t3d.world.make import env_factory
from t3d.world.pixels import open_env
from t3d.world.simulators import has_screen
from t3d.world.spec import size_of, spec_of

EXTRAS = {  # and a module that only it installs
    **{"box2d": "Box2D", "pybullet": "pybullet_envs_gymnasium", "dm-control": "dm_control", "ray": "ray"},
    **{"dash": "plotly", "serve": "websockets", "tensorboard": "tensorboard", "wandb": "wandb", "export": "onnx"},
    **{"sb3": "stable_baselines3", "tune": "optuna"},
}


class Checked(EnvConfig):
    """The environment to check."""

    id: Annotated[str, tyro.conf.Suppress] = ""  # is ENV
    num_envs: Annotated[int, tyro.conf.Suppress] = 0  # one is enough


@dataclass(frozen=True)
class DoctorArgs:
    """Step ENV for a moment and report problems; without ENV, describe this machine."""

    env: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[ENV]")] = None
    """A Gymnasium id, dm:domain-task, module:id, module:callable, or FILE.py:callable."""
    settings: Annotated[Checked, tyro.conf.arg(name="env")] = field(default_factory=Checked)


def main(arguments: list[str]) -> int:
    """Checks ENV and prints what was found; what training cannot work with is an error (exit code 2)."""
    if any(word.partition("=")[0] == "--env.id" for word in arguments):
        raise UserError("the environment is the argument: t3d doctor ENV")
    args = read_flags(DoctorArgs, arguments, "t3d doctor")
    console, env_id = PlainConsole(), args.env
    if not env_id:
        if args.settings != Checked():
            raise UserError("flags that begin with --env are about an environment: t3d doctor ENV")
        console.print(_machine())
        return 0
    cfg = replace(args.settings, id=env_id)
    make_env = env_factory(cfg)
    warnings = examine(make_env, cfg)
    shape, video = _shape(make_env, cfg), "videos can be recorded"
    try:
        close_quietly(open_renderable(cfg), "the environment")
    except UserError as error:
        video = f"no videos: {error}"
    for text in warnings:
        console.print(labelled("warning:", "yellow", text), soft_wrap=True)
    verdict = "no errors found" if warnings else "no problems found in a short trial with random actions"
    console.print(Text(f"{env_id}: {verdict}", "green"), soft_wrap=True)
    console.print(f"{shape}; {video}", soft_wrap=True)
    return 0


def _shape(make_env: EnvFactory, cfg: EnvConfig) -> str:
    env = open_env(make_env, cfg)
    spec = spec_of(env, cfg)
    close_quietly(env, "the environment")
    bounds = ", ".join(f"[{low:g}, {high:g}]" for low, high in zip(spec.action_low, spec.action_high, strict=True))
    images = [f"{image.name} image {size_of(image)}" for image in spec.images]
    parts = ", ".join([*images, *(f"{part.name} shape {part.shape}" for part in spec.observation)])
    limit = f", changing by at most {spec.max_action_change:g} of the range per step" if spec.max_action_change else ""
    return f"{parts}; action size {spec.action_size}, bounds {bounds}{limit}"


def _machine() -> Table:
    import torch  # noqa: PLC0415 (slow, and only this table needs it)

    rows = {"system": f"{platform.system()} {platform.release()}, {platform.machine()}", **versions()}
    rows["python"] += f" at {sys.executable}"
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    rows["GPU"] = ", ".join(gpus) or "none: torch sees no CUDA device"
    rows["cores"] = f"{psutil.cpu_count()}, torch uses {torch.get_num_threads()} threads"
    memory = psutil.virtual_memory()
    rows["memory"] = f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free"
    rows["MuJoCo graphics"] = _graphics()
    for extra, module in EXTRAS.items():
        is_installed = find_spec(module) is not None
        rows[f"extra {extra}"] = "installed" if is_installed else f'missing: pip install "t3d[{extra}]"'
    table = Table("item", "value", title="This machine", title_justify="left")
    for item, value in rows.items():
        table.add_row(item, Text(value))
    return table


def _graphics() -> str:
    if os.environ.get("MUJOCO_GL"):
        return f"MUJOCO_GL={os.environ['MUJOCO_GL']}"
    if has_screen():
        return "a window system is available"
    if find_library("EGL") is None:
        return "no screen and no EGL, so no videos: apt-get install libegl1 libgl1"
    return "no screen: videos are rendered through EGL"
