"""Shows a run while finish() trains it: a bar in a terminal; bar and learning curve in a notebook's cell."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from t3d.config import Config, Member, merge
from t3d.errors import UserError
from t3d.events import Eval, Event, Session
from t3d.files import display_path, printable
from t3d.insight.curves import DrawnRun
from t3d.insight.html import Html, element, table
from t3d.insight.report_charts import return_chart
from t3d.insight.wording import duration_text, members_text, notice_of, number_text, returned
from t3d.store.columns import Columns
from t3d.store.summary import read_summary

if TYPE_CHECKING:
    from t3d.api.run import Run

EVERY = 0.5  # seconds between two updates of a cell
DRAWING_SHARE = 0.02  # of the time, at most, that drawing curves takes
MOST_NOTICES = 8  # the newest, in a cell; chosen


@contextmanager
def shown(run: Run, progress: bool | None) -> Iterator[Callable[[Event], object]]:
    """Provides what shows events in the notebook or terminal there is; an interruption says how to continue."""
    shell, ending = _notebook(), ""
    view: Cell | Bar | None = None
    if progress is not False and shell is not None:
        view = Cell(shell)
    elif progress or (progress is None and sys.stderr.isatty()):
        view = Bar()
    try:
        yield view.show if view else lambda event: None
    except KeyboardInterrupt:
        with suppress(UserError):  # it has not begun
            made = "" if run.summary.config["env"]["id"] else ", make_env=..."  # in Python
            later = f"t3d.open_run({display_path(run.path)!r}{made}).finish()"
            ending = f"stopped at step {run.step:,} and saved; finish() continues it, later {later}"
        raise
    finally:
        if view:
            view.close(ending)


def progress_bar(console: Console) -> Progress:
    """Returns a line with a description, a bar, steps and times."""
    columns = TextColumn("[bold]{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn()
    times = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    return Progress(*columns, *times, console=console, expand=True)


class Bar:
    """A line in a terminal, and above it what is wrong."""

    def __init__(self) -> None:
        self.progress = progress_bar(Console(stderr=True, markup=False, emoji=False, highlight=False))
        self.task, self.members = self.progress.add_task("training", total=None), tuple[Member, ...]()
        self.progress.start()

    def show(self, event: Event) -> None:
        if isinstance(event, Session):
            cfg = merge(Config(), event.config)
            self.members = cfg.members
            self.progress.update(self.task, total=cfg.total_steps)
        if notice := _notice(event, self.members):
            self.progress.console.print(printable(notice), soft_wrap=True)
        if isinstance(event, Eval) and event.chooses:
            self.progress.update(self.task, description=f"return {number_text(event.mean_return)}")
        self.progress.update(self.task, completed=max(event.step, self.progress.tasks[0].completed))

    def close(self, ending: str) -> None:
        self.progress.stop()
        if ending:
            self.progress.console.print(ending, soft_wrap=True)


class Cell:
    """A bar, what is wrong and a learning curve in a notebook, which are redrawn."""

    newest: tuple[Path, int] | None = None  # the run that a cell has shown last, and the number of that cell

    def __init__(self, shell: Any) -> None:
        self.cell, self.total, self.step, self.first_step = shell.execution_count, 0, 0, 0
        self.started, self.shown_at, self.draw_at = time.monotonic(), 0.0, 0.0
        self.members, self.notices = tuple[Member, ...](), list[str]()
        self.columns: Columns | None = None
        self.curve: Html | None = None
        self.handle: Any = None

    def show(self, event: Event) -> None:
        if isinstance(event, Session):
            cfg = merge(Config(), event.config)
            self.members, self.total, self.first_step = cfg.members, cfg.total_steps, event.step
            self.columns = Columns(Path(event.folder), [Eval])
        self.step = max(self.step, event.step)
        self.notices += filter(None, [_notice(event, self.members)])
        if isinstance(event, Eval) and event.chooses and time.monotonic() >= self.draw_at:
            self._draw()
        if time.monotonic() - self.shown_at > EVERY:
            self._show()

    def close(self, ending: str) -> None:
        if self.columns is not None:  # otherwise there was nothing to train
            self._draw()
            self._show(ending)
            Cell.newest = self.columns.path, self.cell

    def _draw(self) -> None:
        started = time.monotonic()
        self.curve = None if self.columns is None else curve_of(self.columns)
        self.draw_at = time.monotonic() + (time.monotonic() - started) / DRAWING_SHARE

    def _show(self, ending: str = "") -> None:
        self.shown_at = time.monotonic()
        speed = (self.step - self.first_step) / max(1e-3, self.shown_at - self.started)
        text = f"{self.step:,} of {self.total:,} steps, {speed:,.0f} per second"
        bar = element("progress", {"max": self.total, "value": self.step, "style": "width: 20em"})
        notices = [element("div", None, notice) for notice in self.notices[-MOST_NOTICES:]]
        lines = [element("div", None, bar, " ", text), notices, self.curve, element("p", None, ending)]
        bundle = {"text/plain": ending or text, "text/html": element("div", None, lines)}
        if self.handle is None:
            self.handle = sys.modules["IPython.display"].display(bundle, raw=True, display_id=True)
        else:
            self.handle.update(bundle, raw=True)


def _notice(event: Event, members: Sequence[Member]) -> str:
    """Returns what an event tells at once, such as an alarm, in a line; empty: nothing."""
    label, _, text = notice_of(event, "" if event.member is None else members[event.member].title) or ("", "", "")
    return f"{label} {text}".strip()


def page_of(path: Path) -> Html | None:
    """Returns what a notebook shows of a run, what it is and its learning curve; None in the cell that trained it."""
    shell = _notebook()
    if shell is not None and Cell.newest == (path, shell.execution_count):
        return None
    run = read_summary(path)
    best = "-" if run.best_return is None else f"{number_text(run.best_return)} (best evaluations, mean over seeds)"
    rows = {
        "run": display_path(path),
        "environment": f"{run.env or 'defined in Python'}, preset {run.preset}, {members_text(run, named=True)}",
        "status": f"{run.status} at step {run.step:,} of {run.total_steps:,}, after {duration_text(run.took)}",
        "return": returned(run.fresh) if run.fresh else best,
        **{"started from": run.origin, "alarms": ", ".join(run.alarm_kinds), "failure": run.failure},
    }
    known = [(name, text) for name, text in rows.items() if text]
    return element("div", None, table((), known), curve_of(Columns(path, [Eval])))


def curve_of(columns: Columns) -> Html | None:
    """Returns the learning curve; None: there is none yet, or no matplotlib."""
    try:
        columns.refresh(math.inf)
        return return_chart(DrawnRun(columns.path.resolve().name, columns))
    except ImportError:
        return None


def _notebook() -> Any:
    """Returns the shell of the notebook that this program runs in; None: it does not."""
    ipython = sys.modules.get("IPython")
    shell = ipython and "IPython.display" in sys.modules and ipython.get_ipython()
    return shell if hasattr(shell, "kernel") else None
