"""`t3d doctor [ENV]`: what is wrong with an environment; without one, what this machine has."""

from __future__ import annotations

import os
import platform
import sys
from ctypes.util import find_library
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Annotated

import psutil
import tyro
from rich.console import Console
from rich.table import Table

from t3d.app.flags import read_flags
from t3d.world.doctor import examine
from t3d.world.envs import spec_of
from t3d.world.find import env_factory

PACKAGES = (
    "t3d",
    "torch",
    "numpy",
    "gymnasium",
    "mujoco",
    "safetensors",
    "tyro",
    "rich",
    "matplotlib",
    "imageio-ffmpeg",
)
EXTRAS = {"box2d": "Box2D", "pybullet": "pybullet_envs_gymnasium", "dm-control": "dm_control"}


@dataclass(frozen=True)
class DoctorArgs:
    """Step ENV for a moment and name what is wrong with it; without ENV, describe this machine."""

    env: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")] = None
    """A Gymnasium id, dm:domain-task, module:id, or module:callable."""


def main(arguments: list[str]) -> int:
    """Examines, and prints what was found; what training cannot work with ends with code 2."""
    args = read_flags(DoctorArgs, arguments, "t3d doctor")
    console = Console()
    if args.env is None:
        console.print(_machine())
        return 0
    warnings = examine(env_factory(args.env))
    for text in warnings:
        console.print(f"[yellow]warning:[/yellow] {text}", highlight=False, soft_wrap=True)
    verdict = "can be trained" if warnings else "is healthy"
    console.print(
        f"[green]{args.env} {verdict}[/green], as far as a moment of random actions shows.",
        highlight=False,
        soft_wrap=True,
    )
    console.print(_seen_from_here(args.env), highlight=False, soft_wrap=True)
    return 0


def _seen_from_here(env_id: str) -> str:
    env = env_factory(env_id)(render_mode="rgb_array")
    spec = spec_of(env)
    drawn = getattr(env, "render_mode", None) == "rgb_array"
    env.close()
    bounds = ", ".join(f"[{low:g}, {high:g}]" for low, high in zip(spec.action_low, spec.action_high, strict=True))
    film = "it can be filmed" if drawn else "it cannot be filmed, for it does not take render_mode"
    parts = ", ".join(f"{part.name} {list(part.shape)}" for part in spec.observation)
    return f"{spec.observation_size} numbers observed ({parts}); {spec.action_size} acted with, bounds {bounds}; {film}"


def _machine() -> Table:
    import torch  # noqa: PLC0415 (slow, and only this table needs it)

    table = Table("what", "here", title="This machine", title_justify="left")
    table.add_row("system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    table.add_row("Python", f"{platform.python_version()} at {sys.executable}")
    for package in PACKAGES:
        table.add_row(package, _version(package))
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    table.add_row("GPU", ", ".join(gpus) or "none: torch sees no CUDA device")
    table.add_row("CPU", f"{psutil.cpu_count()} cores, torch uses {torch.get_num_threads()} threads")
    memory = psutil.virtual_memory()
    table.add_row("memory", f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free")
    table.add_row("MuJoCo graphics", _graphics())
    for extra, module in EXTRAS.items():
        there = find_spec(module) is not None
        table.add_row(f"extra {extra}", "installed" if there else f'missing: pip install "t3d\\[{extra}]"')
    return table


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def _graphics() -> str:
    if os.environ.get("MUJOCO_GL"):
        return f"MUJOCO_GL={os.environ['MUJOCO_GL']}"
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return "a window system is there"
    if find_library("EGL") is None:
        return "no screen and no EGL, so no films: apt-get install libegl1 libgl1"
    return "no screen: films are drawn through EGL"
