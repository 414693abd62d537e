"""Milliseconds an update on a GPU, in steady state: python experiments/capture_speed.py [--engines capture eager].

Sampling from a replay on the GPU is included; compiling and recording are not. `--source FOLDER` times the engines of
another revision, whose src that is. Each row has a process of its own; `--jobs N` of them get ready at the same time,
and are then timed one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch
from common import machine, write_results

from t3d.algo.learner import Learner
from t3d.algo.rules import PIXELS, rule_of
from t3d.bench.updates import HALF_CHEETAH
from t3d.config import merge
from t3d.config.presets import preset
from t3d.data.memory import Memory

CATEGORICAL: dict[str, Any] = {"critic_loss": "categorical", "value_low": -100.0, "value_high": 1000.0}
RESIDUAL: dict[str, Any] = {"actor_network": "residual", "critic_network": "residual"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {  # a preset, and what is changed of it
    **{"default": ("default", {}), "plus": ("plus", {}), "categorical": ("default", {"td3": CATEGORICAL})},
    **{"residual": ("default", {"td3": RESIDUAL}), "pixels": ("pixels", {}), "td7": ("default", {"algo": "td7"})},
}
ROWS, PICTURES, SECONDS = 100_000, 4_000, 1.0


def learner_of(engine: str, case: str, seeds: int) -> Learner:
    """A learner on a full replay of random rows, recorded."""
    members, (base, changes) = list(range(seeds)), CASES[case]
    cfg = merge(preset(base), {**changes, "total_steps": ROWS, "seeds": members})
    if case == "pixels":
        from pixel_speed import USUAL_SIDE, full_memory, spec_of  # noqa: PLC0415 (imports what others do not need)

        spec, rule = spec_of(USUAL_SIDE), PIXELS
        memory = full_memory(argparse.Namespace(rows=PICTURES, batch=cfg.td3.batch_size, device="cuda"), spec, seeds)
    else:
        spec, rule = HALF_CHEETAH, rule_of(cfg.algo)
        memory = Memory(spec, cfg, "cuda")
        memory.replay.rows.uniform_(-1, 1)
        memory.replay.set_added([ROWS] * seeds)
        if hasattr(memory.sampler, "added"):  # one that chooses by errors learns of rows when they are added
            memory.sampler.added(*((member, 0, ROWS) for member in members))
    settings = cfg.settings_of() if hasattr(cfg, "settings_of") else cfg.td3  # its name until 0.5
    learner = Learner(spec, settings, members, "cuda", engine=engine, rule=rule, source=memory)
    getattr(learner, "prepare" if hasattr(learner, "prepare") else "record")()  # its name until 0.5
    return learner


def row(engine: str, case: str, seeds: int) -> dict[str, Any]:
    learner, times, updates = learner_of(engine, case, seeds), list[float](), 64 if case == "pixels" else 256
    learner.run(updates)
    print("ready", flush=True)
    sys.stdin.readline()
    until = time.monotonic() + SECONDS
    while time.monotonic() < until or len(times) < 3:
        torch.cuda.synchronize()
        started = time.perf_counter()
        learner.run(updates)
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - started) / updates)
    best, median = min(times), statistics.median(times)
    return {"engine": engine, "case": case, "seeds": seeds, "ms_best": best, "ms_median": median}


def started(engine: str, case: str, seeds: int, source: str | None) -> subprocess.Popen[str]:
    """A process that gets ready to time one row."""
    command = [sys.executable, __file__, "--one", "--engines", engine, "--cases", case, "--seeds", str(seeds)]
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdin=pipe, stdout=pipe, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=["capture"])
    parser.add_argument("--cases", nargs="+", default=[*CASES], choices=CASES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 10])
    parser.add_argument("--source", help="folder of the sources to time; these if not given")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(row(args.engines[0], args.cases[0], args.seeds[0])))
        return
    rows, waiting, failed = [], list(product(args.engines, args.cases, args.seeds)), 0
    for first in range(0, len(waiting), args.jobs):
        group = [started(*what, args.source) for what in waiting[first : first + args.jobs]]
        is_ready = [process.stdout is not None and process.stdout.readline() == "ready\n" for process in group]
        for process, ready in zip(group, is_ready, strict=True):
            if not ready:
                failed += 1
                continue
            rows.append(json.loads(process.communicate("go\n")[0]))
            print(rows[-1], flush=True)
    if args.json:
        write_results(args.json, machine=machine(), rows=rows)
    sys.exit(f"{failed} failed" if failed else 0)


if __name__ == "__main__":
    main()
