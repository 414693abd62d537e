"""What a person sees while a run trains: a progress bar and a table in a terminal, plain lines in a file."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from t3d.config import Config, diff
from t3d.events import EpisodeEnd, Eval, Event, Note, Start, Update

MOST_ROWS = 12


class View:
    """Follows the events of one run; used as a context, so that the terminal is given back whatever happens."""

    def __init__(self, cfg: Config, console: Console) -> None:
        self.cfg, self.console = cfg, console
        self.rows: dict[int, dict[str, Any]] = {seed: {} for seed in cfg.seeds}
        self.updates, self.steps_per_second = 0, 0.0
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            expand=True,
        )
        self.task = self.progress.add_task(cfg.env.id, total=cfg.total_steps)
        self.live = Live(console=console, refresh_per_second=4, get_renderable=self._picture)

    def __enter__(self) -> View:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def show(self, event: Event) -> None:
        """Takes in an event."""
        self.progress.update(self.task, completed=event.step)
        row = self.rows.get(-1 if event.seed is None else event.seed, {})
        match event:
            case Start():
                self._say_start(event)
            case Note():
                self.console.print(f"[yellow]note[/yellow] {event.text}")
            case EpisodeEnd():
                row["episode"] = event.total_reward
            case Update():
                row.update(vars(event))
                self.updates, self.steps_per_second = event.updates, event.steps_per_second
            case Eval():
                row["eval"] = event.mean_return
                row["best"] = max(event.mean_return, row.get("best", event.mean_return))
                if not self.console.is_terminal:
                    self._print_eval(event)

    def _say_start(self, event: Start) -> None:
        cfg, show = event.config, self.console.print
        seeds = ", ".join(map(str, cfg["seeds"]))
        show(
            f"[bold]TD3[/bold] on [bold]{cfg['env']['id']}[/bold], preset {cfg['preset']}, seeds {seeds}",
            highlight=False,
        )
        show(
            f"{event.parameters:,} parameters a seed, replay {event.replay_bytes / 2**20:,.1f} MiB, "
            f"{cfg['device']}, {cfg['threads']} threads, torch {event.versions['torch']}",
            highlight=False,
        )
        show(f"writing to {event.folder}", highlight=False, soft_wrap=True)

    def _print_eval(self, event: Eval) -> None:
        self.console.print(
            f"step {event.step:>9,}  seed {event.seed}  return {event.mean_return:10.2f} ± {event.std_return:.2f}"
            f"  updates {event.updates:,}  {self.steps_per_second:,.0f} steps/s",
            highlight=False,
        )

    def _picture(self) -> Group:
        table = Table(expand=True, caption=f"{self.steps_per_second:,.0f} steps/s a seed, {self.updates:,} updates")
        names = ["seed", "evaluation", "best", "last episode", "critic loss", "actor loss", "Q", "TD error"]
        for name in names:
            table.add_column(name, justify="right")
        fields = ["eval", "best", "episode", "critic_loss", "actor_loss", "q_mean", "td_abs_mean"]
        for seed, row in list(self.rows.items())[:MOST_ROWS]:
            table.add_row(str(seed), *(_number(row.get(field)) for field in fields))
        if len(self.rows) > MOST_ROWS:
            table.add_row(f"+{len(self.rows) - MOST_ROWS} more", *([""] * len(fields)))
        return Group(table, self.progress)


def say_differences(cfg: Config, console: Console) -> None:
    """Prints what this run does differently from the defaults."""
    changes = diff(cfg, Config())
    changes.pop("env.id", None)
    changes.pop("preset", None)
    if not changes:
        console.print("all settings are the defaults", highlight=False)
        return
    table = Table("setting", "default", "this run", title="What differs from the defaults", title_justify="left")
    for key, (default, value) in changes.items():
        table.add_row(key, _plain(default), _plain(value))
    console.print(table)


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"
