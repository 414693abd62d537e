"""`t3d explain RUN|ENV` takes one real update apart, or shows a claim of the paper; `t3d report RUN...`: about runs."""

from __future__ import annotations

import shlex
import tempfile
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.padding import Padding
from rich.rule import Rule as Line
from rich.text import Text

from t3d.api.groups import report as write_report
from t3d.app.console import View
from t3d.app.flags import RootFlag, read_flags
from t3d.app.tables import table
from t3d.app.terminal import PlainConsole, draw_picture, handling_signals
from t3d.config import Config, EnvConfig, merge
from t3d.config.presets import preset
from t3d.errors import EnvironmentFailed, UserError
from t3d.events import Eval
from t3d.files import display_path, followed, printable
from t3d.insight.groups import settings_of
from t3d.insight.html import check_folder, write_page
from t3d.insight.wording import size_text
from t3d.modules import NotImported, importing
from t3d.store.reader import Run, open_run
from t3d.store.summary import read_summary

if TYPE_CHECKING:
    from t3d.insight.explain import Quantity

STEPS = 3_000  # of the small run that explains an environment; chosen: Pendulum is half learned after ten seconds
INDENT = 4


@dataclass(frozen=True, kw_only=True)
class ExplainArgs(RootFlag):
    """Explain one real update in the steps of the paper, with its numbers, here and as a page (explain.html).

    With --claim, train the small comparison that shows a claim of the paper, and draw the picture.
    """

    target: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|ENV")] = None
    """A run's folder or name under --root; or an environment, on which a small run is trained first."""
    seed: Annotated[str | None, tyro.conf.arg(metavar="SEED")] = None
    """Explain an update of this seed, in a sweep of the member of this name, e.g. gamma-0.98-seed-0."""
    own: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE.py:NAME")] = ()
    """The run's rule and networks that are your own code; what is not named here is not imported."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.html")] = None
    """The page; default: explain.html in the run's folder, or here for an environment. With --claim the picture."""
    claim: Annotated[
        Literal["overestimation", "smoothing", "delay"] | None,
        tyro.conf.arg(metavar="overestimation|smoothing|delay", help_behavior_hint=""),
    ] = None
    """Single against twin critics, with and without target policy smoothing, or policy delay 1 against 2, on ENV
    (default: Pendulum-v1, about a minute)."""


def explain(arguments: list[str]) -> int:
    """Explains, and prints the path of the page."""
    args, console = read_flags(ExplainArgs, arguments, "t3d explain"), PlainConsole()
    check_folder(args.out)
    if args.claim is not None:
        return _claim(args.claim, args, console)
    if args.target is None:
        raise UserError("name a run or an environment, e.g. t3d explain runs/<name>, or t3d explain Pendulum-v1")
    if is_run(args.target, args.root):
        run = open_run(args.target, args.root)
        try:
            with importing(args.own):
                _explain(run, args, run.path / "explain.html", console)
        except NotImported as error:
            names = " ".join(map(shlex.quote, [*args.own, error.name]))
            raise UserError(f"{error}; if you trust it: t3d explain {args.target} --own {names}") from None
        return 0
    with tempfile.TemporaryDirectory(prefix="t3d-explain-") as folder:
        run = _train(args.target, folder, args, console)
        _explain(run, args, Path("explain.html"), console)
    return 0


def _claim(name: str, args: ExplainArgs, console: PlainConsole) -> int:
    from t3d.insight.claims import CLAIMS, claim_configs, findings, plot_claim  # noqa: PLC0415 (imports matplotlib)

    if args.seed is not None:
        raise UserError("--claim trains several seeds and compares them all; leave --seed out")
    if args.target is not None and is_run(args.target, args.root):
        raise UserError(f"{args.target} is a run, and --claim compares two that it trains itself; name an environment")
    console.print(CLAIMS[name].says, soft_wrap=True)
    configs = claim_configs(name, args.target or "Pendulum-v1", str(args.root))
    for cfg in configs:
        if exit_code := _train_claim(cfg, args.root / cfg.run.name, console):
            console.print("stopped before the end; the same command continues there", soft_wrap=True)
            return exit_code
    runs = [open_run(args.root / cfg.run.name) for cfg in configs]
    out = followed(args.out) if args.out else runs[-1].path / f"{name}.png"
    console.print("\n" + "\n".join(findings(runs, name)), soft_wrap=True)
    draw_picture(lambda: plot_claim(runs, name, out), out, console)
    return 0


def _train_claim(cfg: Config, path: Path, console: PlainConsole) -> int:
    """Trains a run that is not there yet, or continues one that was stopped; returns the exit code."""
    from t3d.api.run import resume, train  # noqa: PLC0415 (imports Gymnasium)
    from t3d.world.make import with_full_paths  # noqa: PLC0415

    if begun := path.exists():
        known, full = open_run(path).cfg, with_full_paths(cfg)
        is_env = f"{known.env.id}:".startswith(f"{full.env.id}:")  # a run adds the name that a file alone leaves out
        if not is_env or (known.seeds, settings_of(known)) != (full.seeds, settings_of(full)):
            raise UserError(
                f"{path} was trained with other settings than this claim's, or on another environment; rename it, or "
                "choose another --root"
            )
        if read_summary(path).status == "finished":
            return 0
    with handling_signals() as requested, closing(View(console, requested)) as view:
        begin = partial(resume, path, cfg=cfg) if begun else partial(train, cfg)
        for event in begin(stop=requested.stop, save=requested.save):
            view.show(event)
    return requested.exit_code


def is_run(text: str, root: Path) -> bool:
    """Whether there is a folder of a run, or of anything else, at a path or of a name under root."""
    return Path(text).is_dir() or (root / text).is_dir()


def _train(env_id: str, folder: str, args: ExplainArgs, console: PlainConsole) -> Run:
    """Trains the small run that explains an environment."""
    from t3d.api.run import train  # noqa: PLC0415 (imports Gymnasium)
    from t3d.world.make import env_factory  # noqa: PLC0415

    try:
        env_factory(EnvConfig(env_id))
    except UserError as error:
        raise UserError(f"there is no run {env_id} in {args.root}, and it is no environment either: {error}") from None
    if args.seed is not None:
        raise UserError(f"{env_id} is an environment, of which one small run is trained; leave --seed out")
    console.print(f"training {env_id} for {STEPS:,} steps to explain an update of it ...", soft_wrap=True)
    changes = {"env": {"id": env_id}, "total_steps": STEPS, "run": {"root": folder, "name": "small"}}
    try:
        for event in train(merge(preset("quick"), changes)):
            if isinstance(event, Eval):
                console.print(f"  step {event.step:,}: mean return {event.mean_return:,.1f}")
    except (EnvironmentFailed, UserError, KeyboardInterrupt) as error:
        error.__notes__ = []  # how to resume a run whose folder is deleted now
        raise
    return open_run(Path(folder) / "small")


def _explain(run: Run, args: ExplainArgs, default: Path, console: PlainConsole) -> None:
    from t3d.insight.explain import explained, heading, letters_of, returned  # noqa: PLC0415 (imports torch)
    from t3d.insight.explain_page import page  # noqa: PLC0415
    from t3d.insight.one_update import one_update  # noqa: PLC0415

    update = one_update(run, args.seed)
    steps = explained(update)
    others = returned(update) if not steps else []
    console.print(Text(printable(heading(update)), "bold"))
    console.print(letters_of(update.cfg))
    for step in steps:
        console.print()
        console.print(Line(Text(f"{step.number}  {step.text.title}", "bold"), align="left", style="dim"))
        settings = f"    [{step.settings}]" if step.settings else ""
        _print_line("", step.text.formula + settings, console, "bold cyan")
        _print_quantities(step.quantities, console)
        for label, sentence in step.sentences:
            _print_line(label and f"{label} ", sentence, console)
    if others:
        console.print(f"The steps of {update.cfg.rule_title} are its own; this is what its update returned.")
        _print_quantities(others, console)
    try:
        text, has = page(update, steps, others), "with pictures"
    except ImportError as error:
        text, has = page(update, steps, others, pictures=False), f"without pictures, which need matplotlib ({error})"
    out = write_page(text.encode(), args.out, default)
    console.print(f"\nthe same as a page, {has}: {display_path(out)}", soft_wrap=True)


def _print_line(label: str, line: str, console: PlainConsole, style: str = "") -> None:
    text = Text.assemble((label, "dim"), (printable(line), style))
    for part in text.wrap(console, console.width - INDENT):
        part.rstrip()
        console.print(Text(" " * INDENT).append_text(part))


def _print_quantities(quantities: list[Quantity], console: PlainConsole) -> None:
    if quantities:
        rows = table("", "tensor", "shape", "mean", "std", "min", "max", words=["tensor"])
        for tensor in quantities:
            rows.add_row(tensor.symbol, tensor.shape, *tensor.statistics)
        console.print(Padding(rows, (0, 0, 0, INDENT), expand=False))


@dataclass(frozen=True, kw_only=True)
class ReportArgs(RootFlag):
    """Write a report of one or more runs: one HTML file with everything in it, to keep, mail or print.

    It has the verdict in words, curves, diagnostics, alarms, settings, machine, a video if there is one, and how the
    best policy did on fresh episodes, if t3d train or t3d eval has played them. Several runs are compared as t3d
    compare does. It reads files, and runs no code of the run.
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")]
    """Runs, folders of runs, or patterns in quotes such as 'quick-*', also under --root."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.html")] = None
    """The file; default: report.html in the run's folder, or here for several runs."""


def report(arguments: list[str]) -> int:
    """Writes the report and prints its path."""
    args = read_flags(ReportArgs, arguments, "t3d report")
    out = write_report(*args.runs, out=args.out, root=args.root)
    PlainConsole().print(f"report: {display_path(out)} ({size_text(out.stat().st_size)})", soft_wrap=True)
    return 0
