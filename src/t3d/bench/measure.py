"""What `t3d bench` measures, case by case."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from t3d.algo.engines import ENGINES, FASTEST_FIRST
from t3d.algo.rules import TD3
from t3d.algo.td3 import coefficients_of
from t3d.bench.command import BenchArgs
from t3d.bench.trainings import train_rows
from t3d.bench.updates import Case, growth_cases, update_rows
from t3d.config import Config
from t3d.config.presets import preset
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
        case = _case(device, threads, args)
        for what in ("update", "train") if args.what == "all" else (args.what,):
            report(f"measuring {what}, threads {threads} ...")
            yield from _measure(what, case, args)


def _case(device: str, threads: int, args: BenchArgs) -> Case:
    td3 = preset(args.preset).td3
    batch = td3.batch_size if args.batch is None else args.batch
    critics = td3.critics if args.critics is None else args.critics
    return Case(device, threads, batch, args.hidden or td3.critic_hidden, args.seeds, critics, args.preset)


def _measure(what: str, case: Case, args: BenchArgs) -> Iterator[dict[str, Any]]:
    if what == "growth":
        for one in growth_cases(case):
            fastest = [engine for engine in FASTEST_FIRST[case.device] if _computes(engine, one)][:1]
            yield from update_rows(one, _chosen(fastest, one, args), args.seconds / 4)
    elif what == "update":
        yield from update_rows(case, _chosen(UPDATE_ENGINES[case.device], case, args), args.seconds)
    else:
        engines = _chosen(TRAIN_ENGINES[case.device], case, args)
        if not args.engines and importlib.util.find_spec("stable_baselines3") is None:
            engines = [engine for engine in engines if engine != "sb3"]
        yield from train_rows(case, args.env, engines, args.turns)


def _computes(engine: str, case: Case) -> bool:
    """Whether an engine computes the updates of a case; oracle, floor and sb3 are of plain TD3, as fused is."""
    known = ENGINES.get(engine.partition("@")[0], ENGINES["fused"])
    return not known.refuses(TD3, case.cfg, coefficients_of(case.cfg))


def _chosen(measurable: Sequence[str], case: Case, args: BenchArgs) -> list[str]:
    possible = [engine for engine in measurable if _computes(engine, case)]
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
