"""Milliseconds an update on a GPU, in steady state: python experiments/capture_speed.py [--engines capture eager].

Sampling from a replay on the GPU is included; compiling and recording are not. `--source FOLDER` times the engines of
another revision, whose src that is. Each case has a process of its own, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from common import machine, write_results

from t3d.algo.learner import Learner
from t3d.algo.rules import PIXELS, TD3
from t3d.bench.updates import HALF_CHEETAH
from t3d.config import Config, merge
from t3d.config.presets import preset
from t3d.data.memory import Memory

CATEGORICAL: dict[str, Any] = {"critic_loss": "categorical", "value_low": -100.0, "value_high": 1000.0}
RESIDUAL: dict[str, Any] = {"actor_network": "residual", "critic_network": "residual"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {  # a preset, and what is changed of it
    **{"default": ("default", {}), "plus": ("plus", {}), "categorical": ("default", CATEGORICAL)},
    **{"residual": ("default", RESIDUAL), "pixels": ("pixels", {})},
}
ROWS, PICTURES, SECONDS = 100_000, 4_000, 1.0


def learner_of(engine: str, case: str, seeds: int) -> Learner:
    """A learner on a full replay of random rows, recorded."""
    base = preset(CASES[case][0])
    td3, members = replace(base.td3, **CASES[case][1]), list(range(seeds))
    if case == "pixels":
        from pixel_speed import USUAL_SIDE, full_memory, spec_of  # noqa: PLC0415 (imports what others do not need)

        spec, rule = spec_of(USUAL_SIDE), PIXELS
        memory = full_memory(argparse.Namespace(rows=PICTURES, batch=td3.batch_size, device="cuda"), spec, seeds)
    else:
        spec, rule = HALF_CHEETAH, TD3
        changes = {"total_steps": ROWS, "seeds": members, "normalise_observations": base.normalise_observations}
        memory = Memory(spec, replace(merge(Config(), changes), td3=td3), "cuda")
        memory.replay.rows.uniform_(-1, 1)
        memory.replay.set_added([ROWS] * seeds)
    learner = Learner(spec, td3, members, "cuda", engine=engine, rule=rule, source=memory)
    getattr(learner, "prepare" if hasattr(learner, "prepare") else "record")()  # its name until 0.5
    return learner


def row(engine: str, case: str, seeds: int) -> dict[str, Any]:
    learner, times, updates = learner_of(engine, case, seeds), list[float](), 64 if case == "pixels" else 256
    learner.run(updates)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until or len(times) < 3:
        torch.cuda.synchronize()
        started = time.perf_counter()
        learner.run(updates)
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - started) / updates)
    return {
        "engine": engine,
        "case": case,
        "seeds": seeds,
        "ms_best": min(times),
        "ms_median": statistics.median(times),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=["capture"])
    parser.add_argument("--cases", nargs="+", default=[*CASES], choices=CASES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 10])
    parser.add_argument("--source", help="folder of the sources to time; these if not given")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(row(args.engines[0], args.cases[0], args.seeds[0])))
        return
    rows = []
    for case in args.cases:
        for seeds in args.seeds:
            for engine in args.engines:
                command = [
                    sys.executable,
                    __file__,
                    "--one",
                    "--engines",
                    engine,
                    "--cases",
                    case,
                    "--seeds",
                    str(seeds),
                ]
                path = os.pathsep.join(filter(None, [args.source, os.environ.get("PYTHONPATH")]))
                ran = subprocess.run(
                    command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True
                )
                rows.append(json.loads(ran.stdout.splitlines()[-1]))
                print(rows[-1], flush=True)
    if args.json:
        write_results(args.json, machine=machine(), rows=rows)


if __name__ == "__main__":
    main()
