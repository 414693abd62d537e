"""A person's view of a run from its first event to what it left behind: `t3d train` and `t3d resume` share it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from t3d.app.console import View, acting_in_words
from t3d.app.signals import Heard, listening
from t3d.errors import StoppedEarly, UserError
from t3d.events import ActingEvent, End, Event
from t3d.insight.runs import Run, best_of, open_run

FILMED_STEPS = 300  # of the film that ends a training; MuJoCo without a GPU draws some 20 pictures a second


def show(events: Callable[[Heard], Iterator[Event]], *, video: bool) -> int:
    """Follows a run to its end and says what was learned; returns the exit code."""
    console, saved = Console(), True
    with listening() as heard:
        try:
            folder, end, acting = _follow(events(heard), console)
            saved = end.saved
            run = open_run(folder)
            say_results(run, end, console)
            if acting is not None:
                console.print(f"  {acting_in_words(acting)}", highlight=False, soft_wrap=True)
            _draw(run, console)
            seed = _best_seed(run, end, console, heard.stop)
            if video and end.reason == "finished":
                _film(run, seed, console, heard.stop)
            say_next(run, end, seed, console)
        except StoppedEarly as stopped:
            console.print(str(stopped), soft_wrap=True, highlight=False)
        except BrokenPipeError:  # nobody reads any more; the run has saved itself when its events were left
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return heard.exit_code or (0 if saved else 1)


def _follow(events: Iterator[Event], console: Console) -> tuple[str, End, ActingEvent | None]:
    with View(console) as view:
        try:
            for event in events:
                view.show(event)
        except UserError as error:
            if view.folder:
                error.add_note(f"The run's folder, with its last sound policy, is {view.folder}")
            raise
    assert isinstance(event, End)  # noqa: S101 (a run that does not raise ends so)
    return view.folder, event, view.acting


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

    if not run.evals:
        return
    try:
        plot_curves([run], run.path / "curve.png")
    except OSError as error:
        console.print(f"  no curve: {error.strerror or error}", highlight=False, soft_wrap=True)
    else:
        _say_path("curve", run.path / "curve.png", console)


def _best_seed(run: Run, end: End, console: Console, stop: threading.Event) -> int:
    from t3d.app.choice import best_seed  # noqa: PLC0415 (imports Gymnasium)
    from t3d.world.evaluate import Stopped  # noqa: PLC0415

    def heed_stop() -> None:
        if stop.is_set():
            raise Stopped

    if not run.evals:
        return run.cfg.seeds[0]
    return best_seed(run, console, heed_stop) if end.reason == "finished" else run.best_seed()


def _film(run: Run, seed: int, console: Console, stop: threading.Event) -> None:
    """In a process of its own: graphics libraries want settings before their import, and may crash."""
    chosen = ["--seed", str(seed)] if run.evals else []
    command = [sys.executable, "-m", "t3d", "record", str(run.path), *chosen, "--max-steps", str(FILMED_STEPS)]
    console.print(
        f"  filming {FILMED_STEPS} steps of the best policy (--no-video leaves this out) ...", highlight=False
    )
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output,
        subprocess.Popen(command, stdout=output, stderr=output, text=True) as filming,  # noqa: S603
    ):
        while filming.poll() is None and not stop.wait(0.1):
            pass
        if stop.is_set():
            filming.terminate()
        filming.wait()
        output.seek(0)
        said = output.read()
    if filming.returncode == 0:
        _say_path("video", run.path / "video.mp4", console)
    else:
        reason = (said.strip().splitlines() or ["it was broken off"])[-1]
        console.print(f"  no video: {reason.removeprefix('error: ')}", highlight=False, soft_wrap=True)


def say_next(run: Run, end: End, seed: int, console: Console) -> None:
    """Names the policy file and commands worth trying."""
    kind = "best" if run.evals else "last"
    _say_path("policy", run.path / kind / f"seed-{seed}.safetensors", console)
    where = shlex.quote(str(run.path))
    if not end.saved:
        console.print(f"\n[red]The run could not be saved[/red] ({end.text}): its end is lost.", soft_wrap=True)
        return
    if end.reason != "finished":
        exactly = "" if run.cfg.local_actors else "exactly "
        console.print(f"\nGo on {exactly}here with:\n  t3d resume {where}", highlight=False, soft_wrap=True)
        return
    console.print("\nNext, try:")
    if shutil.which("t3d") is None:
        console.print(
            "  . .venv/bin/activate" if Path(".venv/bin/activate").exists() else "  alias t3d='python -m t3d'"
        )
    commands = {
        f"t3d eval {where}": "ten fresh episodes of the best policy",
        f"t3d resume {where} --total-steps {2 * end.step}": "train it for twice as long",
    }
    if len(run.cfg.seeds) == 1:
        commands[f"t3d train {run.cfg.env.id} --preset {run.cfg.preset} --seeds 0 1 2"] = "three seeds at once"
    if run.cfg.env.id == "Pendulum-v1":
        commands["t3d train HalfCheetah-v5"] = "a harder problem (an hour or two on two cores)"
    else:
        commands[f"t3d plot {where}"] = "the curve again; docs/metrics.md says what the other figures mean"
    for command, about in commands.items():
        console.print(f"  {command}  [dim]# {about}[/dim]", highlight=False, soft_wrap=True)


def _say_path(what: str, path: Path, console: Console) -> None:
    console.print(f"  {what:<7} {path}", highlight=False, soft_wrap=True)
