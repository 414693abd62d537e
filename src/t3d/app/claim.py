"""`t3d explain --claim`: trains the small comparison that shows a claim of the paper, and draws the picture."""

from __future__ import annotations

from pathlib import Path

from t3d.app.console import View
from t3d.app.pictures import draw_picture
from t3d.app.plain_console import PlainConsole
from t3d.app.signals import handling_signals
from t3d.config import Config
from t3d.errors import UserError
from t3d.store.reader import Run, open_run

ENV = "Pendulum-v1"


def show_claim(name: str, cfg: Config, out: Path | None) -> int:
    """Trains both kinds of members in one run, and prints what they show; returns the exit code."""
    from t3d.insight.claims import CLAIMS  # noqa: PLC0415 (imports torch)
    from t3d.run.loop import train  # noqa: PLC0415

    console = PlainConsole()
    console.print(CLAIMS[name].says, soft_wrap=True)
    with handling_signals() as requested:
        with View(console, requested) as view:
            for event in train(cfg, stop=requested.stop, save=requested.save):
                view.show(event)
        if requested.exit_code:
            text = f"stopped before the end; when t3d resume {view.folder} has finished it, "
            console.print(f"{text}t3d explain {view.folder} --claim {name} shows it", soft_wrap=True)
            return requested.exit_code
        _report(name, open_run(view.folder), out, console)
    return 0


def show_run(name: str, run: Run, out: Path | None) -> int:
    """Prints what a run that was trained for a claim shows; returns the exit code."""
    from t3d.insight.claims import CLAIMS  # noqa: PLC0415 (imports torch)

    if run.cfg.sweep != (CLAIMS[name].sweep,):
        raise UserError(f"{run.path} was not trained for the claim {name}, which compares {CLAIMS[name].sweep}")
    console = PlainConsole()
    console.print(CLAIMS[name].says, soft_wrap=True)
    _report(name, run, out, console)
    return 0


def _report(name: str, run: Run, out: Path | None, console: PlainConsole) -> None:
    from t3d.insight.claim_picture import findings, plot_claim  # noqa: PLC0415 (imports torch)

    picture = out or run.path / f"{name}.png"
    console.print()
    for line in findings(run, name):
        console.print(line, soft_wrap=True)
    draw_picture(lambda: plot_claim(run, name, picture), picture, console)
