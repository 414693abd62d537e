"""Shows a run while it trains: evaluations, a progress bar and a table in a terminal, plain lines in a file."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich import box
from rich.console import Group
from rich.live import Live
from rich.table import Table

from t3d import events
from t3d.api.progress import progress_bar
from t3d.app.history import HistoryLines, earlier_rows, groups_of
from t3d.app.tables import print_settings
from t3d.app.terminal import STOPPING, PlainConsole, SignalRequests, labelled
from t3d.config import Config, Member, diff, merge, plain
from t3d.config.presets import better_preset
from t3d.config.sweeps import counted, short, swept
from t3d.files import display_path
from t3d.insight.wording import metrics_text, notice_of

ERRORS = (events.SaveFailed, events.SeedStopped)  # told even if the console is quiet, as are the doctor's notes
LINES_AROUND_ROWS = 7  # of the live table, with the progress bar
COLUMNS = {
    "evaluation": "eval",
    "best": "best",
    "last\nepisode": "episode",
    "critic\nloss": "critic_loss",
    "actor\nloss": "actor_loss",
    "Q": "q_mean",
}
IN_A_SWEEP = ("evaluation", "best", "critic\nloss", "Q")  # the values of up to three settings need the room
NARROWEST, GAP = 8, 2  # characters of a column, and between two


class View:
    """Shows the events of one run until it is closed, which restores the terminal."""

    def __init__(self, console: PlainConsole, requested: SignalRequests) -> None:
        self.console, self.requested = console, requested
        self.errors = PlainConsole(stderr=True) if console.quiet else console
        self.members, self.rows = tuple[Member, ...](), list[dict[str, Any]]()  # rows: the newest metrics of each
        self.stopped: set[int] = set()  # members that have diverged
        self.lines = HistoryLines((Member(0),), console.width)
        self.acting: events.ActingEvent | None = None
        self.saved = ""  # about the newest checkpoint
        self.learns_from = 0
        self.updates, self.started, self.first_step, self.folder = 0, time.monotonic(), 0, ""
        self.progress = progress_bar(console)
        self.task = self.progress.add_task("random actions")
        self.live = Live(console=console, refresh_per_second=4, get_renderable=self._display)

    def close(self) -> None:
        if self.live.is_started:
            self.lines.print(self.lines.take(()), self.console)
            self.live.stop()
            self.requested.on_screen = False

    def show(self, event: events.Event) -> None:
        self.progress.update(self.task, completed=max(event.step, self.progress.tasks[0].completed))
        if event.step > self.learns_from:
            self.progress.update(self.task, description="learning")
        row, who = ({}, "") if event.member is None else (self.rows[event.member], self.members[event.member].title)
        if notice := notice_of(event, who):
            is_told = isinstance(event, ERRORS) or (isinstance(event, events.Note) and event.step == 0)
            (self.errors if is_told else self.console).print(labelled(*notice), soft_wrap=True)
        match event:
            case events.Start():
                self._show_start(event)
            case events.Resumed():
                self._show_resume(event)
            case events.SeedStopped(member=int(member)):
                self.stopped.add(member)
                self.lines.print(self.lines.take(self._living()), self.console)
            case events.Saved():
                self.saved = f", saved at step {event.step:,}"
            case events.EpisodeEnd():
                row["episode"] = event.total_reward
            case events.Update():
                row.update(vars(event))
                self.updates = event.updates
            case events.ActingEvent():
                self.acting = event
                if not self.console.is_terminal and not event.summary:  # a summary is printed with the results
                    self.console.print(f"step {event.step:>9,}  {acting_in_words(event)}", soft_wrap=True)
            case events.Eval():
                self._show_eval(event, row, who)

    def _show_eval(self, event: events.Eval, row: dict[str, Any], who: str) -> None:
        if event.chooses:
            row["eval"] = event.mean_return
            row["best"] = max(event.mean_return, row.get("best") or -math.inf)
        if self.console.is_terminal:
            self.lines.arriving[event.step]["" if event.chooses else event.set, event.member] = event
            self.lines.print(self.lines.take(self._living()), self.console)
            return
        returned = f"return {event.mean_return:10.2f} ± {event.std_return:.2f}{metrics_text(event.metrics)}"
        self.console.print(
            f"step {event.step:>9,}  {', '.join(filter(None, [who, event.set]))}  {returned}"
            f"  updates {event.updates:,}  {self._speed():,.0f} steps/s",
            soft_wrap=True,
        )

    def _show_start(self, event: events.Start | events.Resumed) -> None:
        cfg, show = merge(Config(), event.config), self.console.print
        self.folder, self.started, self.first_step = event.folder, time.monotonic(), event.step
        self.members, self.rows = cfg.members, [{} for _ in cfg.members]
        self.learns_from = cfg.steps_before_learning
        acting = "random actions" if cfg.random_actions else "collecting"
        self.progress.update(self.task, description=acting, total=cfg.total_steps, completed=event.step)
        sweep = f", sweep {plain(cfg.sweep)}" if cfg.sweep else ""
        title = (
            f"{cfg.rule_title} on {cfg.env.title}, preset {cfg.preset}, seeds {', '.join(map(str, cfg.seeds))}{sweep}"
        )
        show(title, style="bold", soft_wrap=True)
        if isinstance(event, events.Start) and (advice := better_preset(cfg)):
            show(advice, style="yellow", soft_wrap=True)
        why = f" (no faster one: {event.engine_reason})" if event.engine_reason else ""
        show(
            f"{event.parameters:,} parameters per seed, replay {event.replay_bytes / 2**20:,.1f} MiB, "
            f"{cfg.device}, engine {cfg.engine}{why}, threads {cfg.threads}, torch {event.versions['torch']}",
            soft_wrap=True,
        )
        if cfg.async_actors:
            envs = f"{counted(cfg.num_envs, 'environment')} per seed"
            show(f"actors {cfg.actors}, {envs}, at most {cfg.most_ahead} transitions ahead")
        print_settings(diff(cfg, Config()), cfg.members, cfg.preset, self.console)
        show(f"writing to {display_path(Path(event.folder))}", soft_wrap=True)
        if self.console.is_terminal:
            self.lines = HistoryLines(self.members, self.console.width, cfg.eval.set_names[1:])
            self.lines.since = event.step, event.time
            self.live.start()
            self.requested.on_screen = True

    def _show_resume(self, event: events.Resumed) -> None:
        if not self.folder:  # else the run starts over and has already been shown
            self._show_start(event)
            for row, best in zip(self.rows, event.best, strict=False):
                row["best"] = best if math.isfinite(best) else None
            self.console.print(f"resuming at step {event.step:,} from {event.checkpoint}")
            if self.console.is_terminal:  # the last evaluations from before
                earlier = earlier_rows(Path(event.folder), self.members)
                self.lines.print(earlier, self.console, at_most=max(1, self.console.height // 3))
                self.lines.since = event.step, event.time
        for text in event.notes:
            self.errors.print(labelled("note:", "yellow", text), soft_wrap=True)

    def _speed(self) -> float:
        return (self.progress.tasks[0].completed - self.first_step) / max(time.monotonic() - self.started, 1e-3)

    def _living(self) -> set[int]:
        return set(range(len(self.members))) - self.stopped

    def _display(self) -> Group:
        caption = f"{self._speed():,.0f} steps/s per seed so far, {self.updates:,} updates{self.saved}"
        if self.acting is not None:
            caption = f"{caption}\n{acting_in_words(self.acting)}"
        room = max(1, self.console.height // 2 - LINES_AROUND_ROWS)
        table = live_table(self.members, self.rows, self.stopped, room, caption, self.console.width)
        if self.requested.stop.is_set():
            table.caption = STOPPING
        return Group(self.progress, table)


def acting_in_words(event: events.ActingEvent) -> str:
    """Describes actors and learner in one line."""
    ways = [] if event.ring_fill is None else [f"ring buffers {event.ring_fill:.0%} full"]
    ways += [] if event.bytes_per_step is None else [f"{event.bytes_per_step:,.0f} bytes a step"]
    ways += [] if event.bytes_per_version is None else [f"{event.bytes_per_version / 1000:,.0f} kB a policy"]
    return "; ".join(
        [
            f"{counted(event.actors, 'actor')}, {counted(event.restarts, 'restart')}; ratio {event.ratio:.3g}",
            f"policy age {event.age_median} updates (p99 {event.age_p99})",
            *ways,
            f"waited: actors {event.actors_waited:.0%}, learner {event.learner_waited:.0%}",
        ]
    )


def live_table(
    members: Sequence[Member],
    newest: Sequence[Mapping[str, Any]],
    diverged: Collection[int],
    room: int,
    caption: str,
    width: int = 80,
) -> Table:
    """Shows the newest metrics of each member, of a combination their mean over seeds, in at most `room` rows."""
    fields, groups = swept(members), groups_of(members)
    table = Table(expand=True, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column(", ".join(map(short, fields)) or "seed", justify="right", overflow="fold")
    left, columns = width - max(map(len, ["seed", *groups])), list[str]()
    for name in [name for name in COLUMNS if not fields or name in IN_A_SWEEP]:
        needed = max(NARROWEST, len(name.partition("\n")[0]))
        left -= needed + GAP
        if left >= 0:
            columns.append(name)
            table.add_column(name, justify="right", min_width=needed)
    for name, numbers in [*groups.items()][:room]:
        living = [newest[number] for number in numbers if number not in diverged]
        cells = [_mean_text([metrics.get(COLUMNS[column]) for metrics in living]) for column in columns]
        table.add_row(name, *(cells if living else ["diverged"]))
    hidden = len(groups) - room
    more = f"; {counted(hidden, 'more combination' if fields else 'more seed')}" if hidden > 0 else ""
    table.caption = f"{caption}{more}"
    return table


def _mean_text(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):,.4g}" if known else "-"
