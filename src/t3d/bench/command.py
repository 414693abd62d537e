"""`t3d bench update` and `t3d bench train`: how fast this machine is, engine by engine, measured in turns."""

from __future__ import annotations

import importlib.util
import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.console import Console
from rich.table import Table

from t3d.bench.trainings import train_rows
from t3d.bench.updates import Case, growth_cases, update_rows
from t3d.config import Config
from t3d.errors import UserError, did_you_mean
from t3d.run.folder import versions
from t3d.run.machine import resolve

UPDATE_ENGINES = {"cpu": ["oracle", "eager", "fused", "floor"], "cuda": ["oracle", "eager", "graph", "floor"]}
TRAIN_ENGINES = {"cpu": ["eager", "fused", "sb3"], "cuda": ["eager", "graph", "sb3"]}
PIPED_WIDTH = 140
COLUMNS = ("what", "engine", "device", "threads", "batch", "hidden", "members", "critics")


@dataclass(frozen=True)
class BenchArgs:
    """Measure how fast this machine trains: single updates, or whole trainings with their environment.

    Candidates take turns, so that a busy machine slows all of them alike. Single updates have HalfCheetah-v5's sizes.
    """

    what: Annotated[Literal["all", "update", "train", "growth"], tyro.conf.Positional] = "all"
    """update: one update; train: steps a second; growth: an update against batch, width, members and critics."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to measure."""
    threads: tuple[int, ...] = ()
    """CPU threads, one or several numbers; default: one, and all that torch takes."""
    batch: int = 256
    """Transitions per update."""
    hidden: tuple[int, ...] = (256, 256)
    """Hidden layer sizes of actor and critics."""
    members: int = 1
    """Seeds trained at once."""
    critics: int = 2
    """Critics per member."""
    engines: tuple[str, ...] = ()
    """Only these of oracle, eager, fused, graph, floor (update) and eager, fused, graph, sb3 (train)."""
    env: str = "HalfCheetah-v5"
    """Environment to train on."""
    seconds: float = 4.0
    """How long to measure each candidate of update."""
    turns: int = 6
    """How many turns of 500 steps each candidate of train gets."""
    tf32: bool = False
    """Let the GPU round the inputs of products (TF32)."""
    inductor: bool = True
    """Let Inductor fuse the graph engine's kernels."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write machine, versions and rows here."""


def main(arguments: list[str]) -> int:
    """Measures, prints a table, writes the file."""
    args = tyro.cli(BenchArgs, args=arguments, prog="t3d bench")
    _refuse(args)
    torch.compiler.set_stance("default" if args.inductor else "force_eager")
    console = Console()
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    found = []
    for row in _rows(args, console):
        found.append(row)
        if args.json:
            args.json.write_text(json.dumps({**_machine(args), "rows": found}, indent=1), encoding="utf-8")
    console.print(table(found))
    return 0


def _refuse(args: BenchArgs) -> None:
    resolve(Config(device=args.device))
    known = {engine for engines in (*UPDATE_ENGINES.values(), *TRAIN_ENGINES.values()) for engine in engines}
    for engine in args.engines:
        if engine not in known:
            raise UserError(
                f"unknown engine {engine}{did_you_mean(engine, known)}; there are {', '.join(sorted(known))}"
            )
    if min(args.threads, default=1) < 1 or args.turns < 1:
        raise UserError("--threads and --turns begin at 1")


def table(found: list[dict[str, Any]]) -> Table:
    """The rows for people, each compared with the first candidate of its case."""
    shown = Table(*COLUMNS, "best", "median", "times as fast")
    first: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in found:
        case = tuple(str(row[key]) for key in COLUMNS if key != "engine")
        reference = first.setdefault(case, row)
        cells = [" ".join(map(str, row[key])) if key == "hidden" else str(row[key]) for key in COLUMNS]
        if row["what"] == "update":
            times = reference["ms_best"] / row["ms_best"]
            shown.add_row(*cells, f"{row['ms_best']:.3f} ms", f"{row['ms_median']:.3f} ms", f"{times:.2f}")
        else:
            times = row["steps_per_second"] / reference["steps_per_second"]
            shown.add_row(*cells, "", f"{row['steps_per_second']:,.0f} steps/s", f"{times:.2f}")
    return shown


def _rows(args: BenchArgs, console: Console) -> Iterator[dict[str, Any]]:
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    device = automatic if args.device == "auto" else args.device
    torch.backends.cuda.matmul.allow_tf32 = args.tf32
    usual = torch.get_num_threads()
    for threads in args.threads or ((1, usual) if device == "cpu" and usual > 1 else (usual,)):
        case = Case(device, threads, args.batch, args.hidden, args.members, args.critics)
        for what in ("update", "train") if args.what == "all" else (args.what,):
            console.print(f"measuring {what}, {threads} threads ...", style="dim")
            yield from _measured(what, case, args)


def _measured(what: str, case: Case, args: BenchArgs) -> Iterator[dict[str, Any]]:
    if what == "growth":
        for one in growth_cases(case):
            yield from update_rows(one, _chosen(UPDATE_ENGINES[case.device][2:3], args), args.seconds / 4)
    elif what == "update":
        yield from update_rows(case, _chosen(UPDATE_ENGINES[case.device], args), args.seconds)
    else:
        engines = _chosen(TRAIN_ENGINES[case.device], args)
        if not args.engines and importlib.util.find_spec("stable_baselines3") is None:
            engines.remove("sb3")
        yield from train_rows(case, args.env, engines, args.turns)


def _chosen(possible: list[str], args: BenchArgs) -> list[str]:
    chosen = [engine for engine in possible if engine in (args.engines or possible)]
    if not chosen:
        raise UserError(f"--engines {' '.join(args.engines)}: there is {', '.join(possible)} to measure here")
    return chosen


def _machine(args: BenchArgs) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "machine": {"system": platform.platform(), "gpu": gpu, "tf32": args.tf32, "inductor": args.inductor},
        "versions": versions(),
    }
