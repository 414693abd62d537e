"""`t3d train ENV`: trains, shows it, and leaves a curve and a film behind."""

from __future__ import annotations

import dataclasses
import re
import shutil
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

from t3d.app.console import View
from t3d.app.presets import preset
from t3d.config import Config, flat, load_toml, merge
from t3d.errors import UserError, did_you_mean
from t3d.events import End
from t3d.insight.runs import Run, best_of, open_run

FILMED_STEPS = 300  # of the film that ends a training; MuJoCo without a GPU draws some 20 pictures a second


@dataclass(frozen=True)
class TrainArgs:
    """Train TD3 on ENV: a Gymnasium id, dm:domain-task, module:id, or module:callable for your own environment.

    Settings come from the defaults, then the preset, then --config, then the flags below.
    """

    cfg: Annotated[Config, tyro.conf.arg(name="")]
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE.toml")] = None
    """A TOML file of settings, e.g. the config.toml of an earlier run."""
    video: bool = True
    """Film the best policy when training has ended."""


def main(arguments: list[str]) -> int:
    """Parses, trains, and says what was learned."""
    args = parse(arguments)
    console = Console()
    with _signals() as (stop, received):
        folder, end = _train(args.cfg, console, stop)
    run = open_run(folder)
    say_results(run, end, console)
    _draw(run, console)
    if args.video and end.reason == "finished":
        _film(run, console)
    say_next(run, end, console)
    return 128 + received[0] if end.reason == "stopped" and received else 0


def parse(arguments: list[str]) -> TrainArgs:
    """The configuration from preset, file and flags. ENV comes first, or after a flag with a single value."""
    arguments = [_whole(word) for word in arguments]
    file = _option(arguments, "--config")
    from_file = load_toml(Path(file)) if file else {}
    name = _option(arguments, "--preset") or str(from_file.get("preset", "default"))
    try:
        base = merge(preset(name), {**from_file, "preset": name})
    except UserError as error:
        raise UserError(f"{file}: {error}" if file else str(error)) from None
    args, rest = tyro.cli(
        TrainArgs, args=arguments, default=TrainArgs(base), prog="t3d train ENV", return_unknown_args=True
    )
    return dataclasses.replace(args, cfg=_with_env(args.cfg, base, rest))


def _with_env(cfg: Config, base: Config, rest: list[str]) -> Config:
    for word in rest:
        if word.startswith("-"):
            raise UserError(
                f"unknown flag {word.split('=')[0]}{did_you_mean(word, _flags())} (t3d train --help lists them)"
            )
    if not rest:
        return cfg
    if len(rest) > 1 or cfg.env.id != base.env.id:
        given = [*rest, cfg.env.id] if len(rest) == 1 else rest
        raise UserError(f"train takes one environment, and {' and '.join(given)} were given")
    return merge(cfg, {"env": {"id": rest[0]}})


def _flags() -> list[str]:
    return ["--" + key.replace("_", "-") for key in [*flat(Config()), "config", "video", "no-video"]]


def _option(arguments: list[str], flag: str) -> str | None:
    """The last value of `--flag value` or `--flag=value`, wanted before the real parse, whose defaults depend on it."""
    value = None
    for word, following in pairwise([*arguments, ""]):
        if word == flag:
            value = following
        elif word.startswith(flag + "="):
            value = word.partition("=")[2]
    return value


def _whole(word: str) -> str:
    """1e6 is how people write a million."""
    is_whole = re.fullmatch(r"\d+(\.\d+)?e\d+", word) and float(word).is_integer()
    return str(int(float(word))) if is_whole else word


def _train(cfg: Config, console: Console, stop: threading.Event) -> tuple[str, End]:
    from t3d.run.loop import train  # noqa: PLC0415 (imports torch)

    with View(cfg, preset(cfg.preset), console) as view:
        try:
            for event in train(cfg, stop=stop):
                view.show(event)
        except UserError as error:
            if view.folder:
                error.add_note(f"The run's folder, with its last sound policy, is {view.folder}")
            raise
    assert isinstance(event, End)  # noqa: S101 (a run that does not raise ends so)
    return view.folder, event


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


def say_results(run: Run, end: End, console: Console) -> None:
    """Prints each seed's returns before, at its best, and when last evaluated."""
    verb = "Trained" if end.reason == "finished" else "Stopped early after"
    console.print(
        f"\n[bold]{verb}[/bold] {end.step:,} steps a seed in {end.seconds:,.0f} s, {end.updates:,} updates.",
        highlight=False,
    )
    for seed, evals in run.evals.items():
        best, last = best_of(evals), evals[-1]
        console.print(
            f"  seed {seed}: mean return {evals[0].mean_return:,.1f} before training, "
            f"[bold]{best.mean_return:,.1f} ± {best.std_return:,.1f}[/bold] at its best (step {best.step:,}), "
            f"{last.mean_return:,.1f} when last evaluated (step {last.step:,})",
            highlight=False,
            soft_wrap=True,
        )
        if best.updates == 0 and end.updates > 0:
            console.print(
                f"  [yellow]Training made seed {seed} worse: its best policy is the untrained one.[/yellow] "
                'See "When it does not learn" in docs/own-environment.md; a good first try is '
                "--noise.kind pink --noise.exploration-noise 0.3",
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
    command = [sys.executable, "-m", "t3d", "record", str(run.path), "--max-steps", str(FILMED_STEPS)]
    console.print(
        f"  filming {FILMED_STEPS} steps of the best policy (--no-video leaves this out) ...", highlight=False
    )
    filmed = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (our own command)
    if filmed.returncode == 0:
        _say_path("video", run.path / "video.mp4", console)
    else:
        reason = (filmed.stderr.strip().splitlines() or ["no reason given"])[-1]
        console.print(f"  no video: {reason.removeprefix('error: ')}", highlight=False, soft_wrap=True)


def say_next(run: Run, end: End, console: Console) -> None:
    """Names the policy file and commands worth trying."""
    kind = "best" if run.evals else "last"
    seed = run.best_seed() if run.evals else run.cfg.seeds[0]
    _say_path("policy", run.path / kind / f"seed-{seed}.safetensors", console)
    if end.reason != "finished":
        return
    console.print("\nNext, try:")
    if shutil.which("t3d") is None:
        console.print(
            "  . .venv/bin/activate" if Path(".venv/bin/activate").exists() else "  alias t3d='python -m t3d'"
        )
    commands = {f"t3d eval {run.path}": "ten fresh episodes of the best policy"}
    if len(run.cfg.seeds) == 1:
        commands[f"t3d train {run.cfg.env.id} --preset {run.cfg.preset} --seeds 0 1 2"] = "three seeds at once"
    if run.cfg.env.id == "Pendulum-v1":
        commands["t3d train HalfCheetah-v5"] = "a harder problem (an hour or two on two cores)"
    else:
        commands[f"t3d plot {run.path}"] = "the curve again; docs/metrics.md says what the other figures mean"
    for command, about in commands.items():
        console.print(f"  {command}  [dim]# {about}[/dim]", highlight=False, soft_wrap=True)


def _say_path(what: str, path: Path, console: Console) -> None:
    console.print(f"  {what:<7} {path}", highlight=False, soft_wrap=True)
