"""`t3d bench`: measures how fast this machine trains, engine by engine, in turns."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.table import Table

from t3d.app.flags import read_flags
from t3d.app.terminal import PlainConsole
from t3d.store.folder import versions

PIPED_WIDTH = 140
COLUMNS = ("what", "engine", "device", "threads", "batch", "hidden", "seeds", "critics")
Engine = Literal[
    "oracle", "eager", "fused", "capture", "floor", "fused@local:1", "capture@local:1", "capture@local:4", "sb3"
]


@dataclass(frozen=True)
class BenchArgs:
    """Measure how fast this machine trains: single updates, or training including the environment.

    Engines take turns, so that a busy machine slows all of them alike. Single updates use HalfCheetah-v5's sizes.
    """

    what: Annotated[Literal["all", "update", "train", "growth"], tyro.conf.Positional] = "all"
    """update: one update; train: steps per second; growth: update time as batch size, width, seeds and critics vary."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to measure."""
    threads: tuple[int, ...] = ()
    """Numbers of CPU threads to measure with; default: 1, and torch's own default."""
    preset: str = "default"
    """Whose settings of td3 and normalise_observations to measure with; t3d presets lists them."""
    batch: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Transitions per update; default: the preset's."""
    hidden: tuple[int, ...] = ()
    """Hidden layer sizes of actor and critics; default: the preset's."""
    seeds: int = 1
    """Number of seeds trained at once."""
    critics: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Critics per seed; default: the preset's."""
    engines: tuple[Engine, ...] = ()
    """Only these; oracle and floor for update; those with actor processes and sb3 for train."""
    env: str = "HalfCheetah-v5"
    """Environment to train on."""
    seconds: float = 4.0
    """Seconds per engine (update only)."""
    turns: int = 6
    """How many turns of 500 steps train gives each engine."""
    tf32: bool = False
    """Let the GPU round the inputs of matrix products (TF32)."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write machine, versions and rows to this file."""


def main(arguments: list[str]) -> int:
    """Measures, prints a table and writes the file."""
    args = read_flags(BenchArgs, arguments, "t3d bench")
    console = PlainConsole(piped_width=PIPED_WIDTH)
    import torch  # noqa: PLC0415 (takes a second)

    from t3d.bench.measure import rows  # noqa: PLC0415

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    machine = {"system": platform.platform(), "gpu": gpu, "tf32": args.tf32}
    measured = []
    for row in rows(args, lambda text: console.print(text, style="dim")):
        measured.append(row)
        if args.json:
            report = {"machine": machine, "versions": versions(), "rows": measured}
            args.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
    columns = Table(*COLUMNS, "best", "median", "times as fast")
    for row, speeds in compared(measured):
        columns.add_row(*(plain(row[key]) for key in COLUMNS), *speeds)
    console.print(columns)
    return 0


def compared(rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], tuple[str, str, str]]]:
    """Yields every row with its best, its median, and how many times as fast it is as the first engine of its case."""
    first: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        reference = first.setdefault(tuple(plain(row[key]) for key in COLUMNS if key != "engine"), row)
        if row["what"] == "update":
            times = reference["ms_best"] / row["ms_best"]
            yield row, (f"{row['ms_best']:.3f} ms", f"{row['ms_median']:.3f} ms", f"{times:.2f}")
        else:
            times = row["steps_per_second"] / reference["steps_per_second"]
            yield row, ("", f"{row['steps_per_second']:,.0f} steps/s", f"{times:.2f}")


def plain(value: Any) -> str:
    """Formats a size as it is typed on the command line."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
