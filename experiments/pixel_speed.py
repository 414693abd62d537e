"""How fast images are learned from: `python experiments/pixel_speed.py [--device cuda] [--json FILE]`.

Measures, in turns, the preset pixels with 6 actions: how long a batch takes to be put together from the replay, an
update with each engine, and acting in NumPy on one thread. Times are milliseconds, best and median. `--table FILE...`
prints what was measured before.
A short try on a CPU:

    python experiments/pixel_speed.py --device cpu --sides 32 --members 1 2 --batch 4 --rows 300 --seconds 0.05
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import machine, write_results

from t3d.algo.engines.capture import compiled_if_possible
from t3d.algo.engines.capture import recorded as recorded_steps
from t3d.algo.learner import Learner
from t3d.algo.networks import initial
from t3d.algo.rules import PIXELS
from t3d.bench.updates import Run, repeated, timed_in_turns
from t3d.config import TD3Config, merge
from t3d.config.networks import actor_architecture
from t3d.config.presets import preset
from t3d.data.memory import Memory
from t3d.policy.acting import MemberPolicy, PolicySnapshot
from t3d.policy.spec import Image, Spec
from t3d.run.placement import set_tf32_for_process
from t3d.types import Rollout, row_sizes

USUAL_SIDE, ACTIONS, STACK, BLOCK, EPISODE = 84, 6, 3, 250, 125
PARTS = ("assembly", "update", "acting")
Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--sides", nargs="+", type=int, default=[32, 64, USUAL_SIDE, 128], help="pixels each way")
    parser.add_argument("--members", nargs="+", type=int, default=[1, 3, 5])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rows", type=int, default=10_000, help="transitions in the replay of each member")
    parser.add_argument("--seconds", type=float, default=0.6, help="for each figure")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--table", nargs="+", type=Path, metavar="FILE", help="measure nothing")
    args = parser.parse_args()
    if args.table:
        for file in args.table:
            print_tables(json.loads(file.read_text())["rows"])
        return 0
    set_tf32_for_process(False)
    measured: list[Row] = []
    for row in rows(args):
        measured.append(row)
        print(json.dumps(row), flush=True)
        if args.json:
            write_results(args.json, machine=machine(), rows=measured)
    print_tables(measured)
    return int(any("failed" in row for row in measured))


def rows(args: argparse.Namespace) -> Iterator[Row]:
    """Yields everything; what fails yields why, and the rest goes on."""
    usual = USUAL_SIDE if USUAL_SIDE in args.sides else args.sides[0]
    sizes = dict.fromkeys(
        [(usual, 1), *((side, 1) for side in args.sides), *((usual, count) for count in args.members)]
    )
    for side, members in sizes:
        if {"assembly", "update"} & set(args.only):
            yield from attempt(lambda side=side, members=members: learning(args, side, members), side, members)
    if "acting" in args.only:
        yield from attempt(lambda: acting(args), 0, 1)


def attempt(measure: Callable[[], Iterator[Row]], side: int, members: int) -> Iterator[Row]:
    try:
        yield from measure()
    except Exception as error:
        traceback.print_exc()
        yield {"what": "failed", "side": side, "members": members, "failed": f"{type(error).__name__}: {error:.200}"}
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def spec_of(side: int) -> Spec:
    image = Image((), (3, side, side), 0, 3 * side * side)
    return Spec((), (ACTIONS,), -np.ones(ACTIONS), np.ones(ACTIONS), images=(image,), stack=STACK)


def td3_of(args: argparse.Namespace) -> TD3Config:
    return replace(preset("pixels").td3, batch_size=args.batch)


def full_memory(args: argparse.Namespace, spec: Spec, members: int) -> Memory:
    """A replay of random images, episodes of 125 steps, as the preset samples from it."""
    changes = {"total_steps": args.rows, "seeds": list(range(members)), "td3": {"batch_size": args.batch}}
    memory = Memory(spec, merge(preset("pixels"), {**changes, "random_steps": 0}), args.device)
    rng, sizes = np.random.default_rng(0), row_sizes(spec)
    block = rng.integers(0, 256, (BLOCK, sum(sizes)), np.uint8)
    numbers = rng.uniform(-1, 1, (BLOCK, ACTIONS + 2)).astype(np.float32)
    numbers[:, -1] = 0
    block[:, sizes[0] : -sizes[-1]] = numbers.view(np.uint8)
    for first in range(0, args.rows, BLOCK):
        steps = np.arange(first, first + BLOCK)
        last = 2 * (steps % EPISODE == EPISODE - 1)
        origins = np.column_stack([0 * steps, steps // EPISODE, steps % EPISODE, last]).astype(np.int32)
        memory.add(*(Rollout(member, block, origins, sizes[0], [], []) for member in range(members)))
    return memory


def learning(args: argparse.Namespace, side: int, members: int) -> Iterator[Row]:
    """How long batches and updates take at one size."""
    spec, size = spec_of(side), {"side": side, "members": members, "batch": args.batch}
    memory = full_memory(args, spec, members)
    if "assembly" in args.only:
        runs = assemblies(args, memory)
        for name, times in timed_in_turns(runs, args.seconds, args.device).items():
            on_gpu = {"ms_gpu": gpu_milliseconds(runs[name])} if args.device == "cuda" else {}
            yield {"what": "assembly", "how": name, **size, **times, **on_gpu}
    if "update" in args.only:
        updates = {name: learner.run for name, learner in learners(args, spec, memory, members)}
        for name, times in timed_in_turns(updates, args.seconds, args.device).items():
            yield {"what": "update", "how": name, **size, **times}


def assemblies(args: argparse.Namespace, memory: Memory) -> dict[str, Run]:
    """Gathering rows that are chosen already, and sampling with 3-step returns, as the captured engine does both."""
    members = len(memory.added)
    index = torch.randint(0, args.rows, (members, args.batch), device=args.device)
    last = torch.randint(0, args.rows, (members, args.batch), device=args.device)
    functions = {"gather": lambda: memory.replay.gather(index, last), "sample": memory.sample}
    plain = {name: repeated(function) for name, function in functions.items()}
    if args.device == "cpu":
        return plain
    torch.compiler.reset()
    runs = {f"{name}, launched from Python": run for name, run in plain.items()}
    for name, function in functions.items():
        runs[f"{name}, recorded"] = recorded(function)
        runs[f"{name}, compiled and recorded"] = recorded(compiled_if_possible(function))
    return runs


def recorded(function: Callable[[], Any]) -> Run:
    graph, _ = recorded_steps(lambda _: function(), [(0,)])[0,]
    return repeated(graph.replay)


def gpu_milliseconds(run: Run, count: int = 200) -> float:
    """The same by the GPU's own clock."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    run(10)
    start.record()
    run(count)
    end.record()
    torch.cuda.synchronize()
    return round(start.elapsed_time(end) / count, 5)


def learners(args: argparse.Namespace, spec: Spec, memory: Memory, members: int) -> Iterator[tuple[str, Learner]]:
    """The engines; in CUDA graphs, products and convolutions keep the precision they were recorded with."""
    for name, tf32 in (("eager", False), ("capture", False), ("capture, TF32", True)):
        engine = name.split(",")[0]
        if engine == "capture" and args.device == "cpu":
            continue
        learner = Learner(spec, td3_of(args), range(members), args.device, engine=engine, rule=PIXELS, source=memory)
        if engine == "capture":
            set_tf32_for_process(tf32)
            try:
                learner.prepare()
            finally:
                set_tf32_for_process(False)
        yield name, learner


def acting(args: argparse.Namespace) -> Iterator[Row]:
    """Acting on one observation, in a process whose BLAS has one thread, as actors have."""
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        one_thread = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        command = [sys.executable, __file__, "--device", "cpu", "--only", "acting", "--seconds", str(args.seconds)]
        ran = subprocess.run(
            [*command, "--sides", *map(str, args.sides)],
            env={**os.environ, **one_thread},
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [line for line in ran.stdout.splitlines() if line.startswith("{")]
        if ran.returncode or not lines:
            raise RuntimeError(ran.stderr[-500:])
        yield from map(json.loads, lines)
        return
    runs = {}
    for side in args.sides:
        network = actor_architecture(spec_of(side), preset("pixels").td3)
        policy = MemberPolicy(PolicySnapshot(0, network, initial(network, [0], torch.float32).numpy()), 0)
        seen = np.random.default_rng(0).integers(0, 256, (1, spec_of(side).observation_width), np.uint8)
        runs[str(side)] = repeated(lambda policy=policy, seen=seen: policy(seen))
    for side, times in timed_in_turns(runs, args.seconds, "cpu").items():
        yield {"what": "acting", "how": "numpy, one thread", "side": int(side), **times}


def print_tables(measured: list[Row]) -> None:
    """Prints a table in Markdown for each thing measured."""
    for what in dict.fromkeys(row["what"] for row in measured):
        rows = [row for row in measured if row["what"] == what]
        columns = [key for key in dict.fromkeys(key for row in rows for key in row) if key != "what"]
        rate = ["a second"] if what in ("update", "acting") else []
        print(f"\n**{what}**\n\n| {' | '.join([*columns, *rate])} |\n|{'---|' * len([*columns, *rate])}")
        for row in rows:
            cells = [str(row.get(key, "")) for key in columns] + [f"{1000 / row['ms_median']:,.0f}" for _ in rate]
            print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    sys.exit(main())
