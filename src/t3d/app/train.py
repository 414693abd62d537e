"""`t3d train ENV`: trains, shows it, and leaves a curve and a film behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Annotated

import tyro
from rich.console import Console

from t3d.app.console import View, say_differences
from t3d.app.presets import preset
from t3d.config import Config, flat, load_toml, merge
from t3d.errors import UserError, did_you_mean
from t3d.events import End, Start
from t3d.insight.runs import Run, best_of, open_run


@dataclass(frozen=True)
class Train:
    """Train TD3 on ENV: a Gymnasium id, module:id, or module:callable for your own environment.

    Settings come from the defaults, then the preset, then --config, then the flags below.
    """

    cfg: Annotated[Config, tyro.conf.arg(name="")]
    config: Path | None = None
    """A TOML file of settings, e.g. the config.toml of an earlier run."""
    video: bool = True
    """Film the best policy when training has ended."""


def main(arguments: list[str]) -> int:
    """Parses, trains, and says what was learned."""
    args = parse(arguments)
    console = Console()
    say_differences(args.cfg, console)
    with _signals() as (stop, received):
        folder, end = _train(args.cfg, console, stop)
    run = open_run(folder)
    _say_results(run, end, console)
    _draw(run, console)
    if args.video and end.reason == "finished":
        _film(run, console)
    _say_next(run, console)
    return 128 + received[0] if received else 0


def parse(arguments: list[str]) -> Train:
    """The configuration from preset, file and flags; ENV may stand anywhere among the flags."""
    file = _option(arguments, "--config")
    from_file = load_toml(Path(file)) if file else {}
    name = _option(arguments, "--preset") or str(from_file.get("preset", "default"))
    base = merge(preset(name), {**from_file, "preset": name})
    args, rest = tyro.cli(Train, args=arguments, default=Train(base), prog="t3d train ENV", return_unknown_args=True)
    return Train(_with_env(args.cfg, rest), args.config, args.video)


def _with_env(cfg: Config, rest: list[str]) -> Config:
    for word in rest:
        if word.startswith("-"):
            raise UserError(
                f"unknown flag {word.split('=')[0]}{did_you_mean(word, _flags())} (t3d train --help lists them)"
            )
    if len(rest) > 1:
        raise UserError(f"train takes one environment, and {' and '.join(rest)} were given")
    return merge(cfg, {"env": {"id": rest[0]}}) if rest else cfg


def _flags() -> list[str]:
    return ["--" + key.replace("_", "-") for key in [*flat(Config()), "config", "video", "no-video"]]


def _option(arguments: list[str], flag: str) -> str | None:
    """The value of `--flag value` or `--flag=value`, looked up before the real parse, whose defaults depend on it."""
    for word, following in pairwise([*arguments, ""]):
        if word == flag:
            return following
        if word.startswith(flag + "="):
            return word.partition("=")[2]
    return None


def _train(cfg: Config, console: Console, stop: threading.Event) -> tuple[str, End]:
    from t3d.run.loop import train  # noqa: PLC0415 (imports torch)

    folder = ""
    with View(cfg, console) as view:
        for event in train(cfg, stop=stop):
            view.show(event)
            if isinstance(event, Start):
                folder = event.folder
            if isinstance(event, End):
                return folder, event
    raise AssertionError("a run that does not raise ends with an End event")


@contextmanager
def _signals() -> Iterator[tuple[threading.Event, list[int]]]:
    """The first Ctrl-C (or SIGTERM) asks the run to stop, the second breaks it off; lists what was received."""
    stop, received = threading.Event(), list[int]()

    def ask(number: int, frame: FrameType | None) -> None:
        received.append(number)
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop, received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say_results(run: Run, end: End, console: Console) -> None:
    verb = "Trained" if end.reason == "finished" else "Stopped early after"
    console.print(
        f"\n[bold]{verb}[/bold] {end.step:,} steps a seed in {end.seconds:,.0f} s, {end.updates:,} updates.",
        highlight=False,
    )
    for seed, evals in run.evals.items():
        best = best_of(evals)
        console.print(
            f"  seed {seed}: mean return {evals[0].mean_return:,.1f} before training, "
            f"[bold]{best.mean_return:,.1f} ± {best.std_return:,.1f}[/bold] at its best (step {best.step:,}), "
            f"{evals[-1].mean_return:,.1f} at the end",
            highlight=False,
            soft_wrap=True,
        )


def _draw(run: Run, console: Console) -> None:
    from t3d.insight.plots import plot_curves  # noqa: PLC0415 (imports matplotlib)

    if run.evals:
        plot_curves([run], run.path / "curve.png")
        _say_path("curve", run.path / "curve.png", console)


def _film(run: Run, console: Console) -> None:
    """In a process of its own: graphics libraries want settings before their import, and may crash."""
    command = [sys.executable, "-m", "t3d", "record", str(run.path)]
    with console.status("filming the best policy"):
        filmed = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (our own command)
    if filmed.returncode == 0:
        _say_path("video", run.path / "video.mp4", console)
    else:
        reason = (filmed.stderr.strip().splitlines() or ["no reason given"])[-1]
        console.print(f"  no video: {reason.removeprefix('error: ')}", highlight=False, soft_wrap=True)


def _say_next(run: Run, console: Console) -> None:
    kind = "best" if run.evals else "last"
    seed = run.best_seed() if run.evals else run.cfg.seeds[0]
    _say_path("policy", run.path / kind / f"seed-{seed}.safetensors", console)
    console.print("\nNext, try:")
    commands = {
        f"t3d eval {run.path}": "ten fresh episodes of the best policy",
        f"t3d train {run.cfg.env.id} --preset {run.cfg.preset} --seeds 0 1 2": "three seeds at once",
        "t3d train HalfCheetah-v5": "a harder problem (an hour or two on two cores)",
    }
    for command, about in commands.items():
        console.print(f"  {command}  [dim]# {about}[/dim]", highlight=False, soft_wrap=True)


def _say_path(what: str, path: Path, console: Console) -> None:
    console.print(f"  {what:<7} {path}", highlight=False, soft_wrap=True)
