"""What `t3d bench` measures, case by case."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Callable, Iterator
from typing import Any

import torch

from t3d.bench.command import BenchArgs
from t3d.bench.trainings import train_rows
from t3d.bench.updates import Case, growth_cases, update_rows
from t3d.config import Config
from t3d.errors import UserError, did_you_mean
from t3d.run.placement import resolve, set_tf32_for_process
from t3d.store.folder import versions

UPDATE_ENGINES = {
    "cpu": ["oracle", "eager", "fused", "floor"],
    "cuda": ["oracle", "eager", "graph", "capture", "floor"],
}
TRAIN_ENGINES = {
    "cpu": ["eager", "fused", "fused@local:1", "sb3"],
    "cuda": ["eager", "graph", "graph@local:1", "graph@local:4", "sb3"],
}


def rows(args: BenchArgs, report: Callable[[str], object]) -> Iterator[dict[str, Any]]:
    """Yields a row for everything requested, as it is measured."""
    _check(args)
    set_tf32_for_process(args.tf32)
    device = resolve(Config(device=args.device, tf32=args.tf32)).device
    torch.compiler.set_stance("default" if args.inductor else "force_eager")
    default = torch.get_num_threads()
    for threads in args.threads or ((1, default) if device == "cpu" and default > 1 else (default,)):
        case = Case(device, threads, args.batch, args.hidden, args.seeds, args.critics)
        for what in ("update", "train") if args.what == "all" else (args.what,):
            report(f"measuring {what}, threads {threads} ...")
            yield from _measure(what, case, args)


def _measure(what: str, case: Case, args: BenchArgs) -> Iterator[dict[str, Any]]:
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
        raise UserError(f"--engines {' '.join(args.engines)}: only {', '.join(possible)} can be measured here")
    return chosen


def machine(args: BenchArgs) -> dict[str, Any]:
    """Describes the machine and the versions."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "machine": {"system": platform.platform(), "gpu": gpu, "tf32": args.tf32, "inductor": args.inductor},
        "versions": versions(),
    }


def _check(args: BenchArgs) -> None:
    known = {engine for engines in (*UPDATE_ENGINES.values(), *TRAIN_ENGINES.values()) for engine in engines}
    for engine in args.engines:
        if engine not in known:
            raise UserError(
                f"unknown engine {engine}{did_you_mean(engine, known)} (engines: {', '.join(sorted(known))})"
            )
    if min(args.threads, default=1) < 1 or args.turns < 1:
        raise UserError("--threads and --turns must be at least 1")
