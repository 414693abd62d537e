"""Steps a second of revisions and of Stable-Baselines3: `python experiments/speed_in_turns.py adb9050 . sb3`.

Each trains in a process of its own, with one thread, and makes 500 steps while the others wait, so a busy moment slows
all of them. `.` is the working tree, and `REVISION:PRESET` trains with a preset. A round starts new processes; the
speeds of a round are medians, and the ratios are to the first. With --cpu times are those of the processor, which
other programs lengthen too, but much less than those of a clock.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from importlib import import_module, util
from inspect import signature
from pathlib import Path
from typing import Any

from same_bits import checked_out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trained", nargs="+", help="REVISION, REVISION:PRESET, or sb3")
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--hidden", default="64-64")
    parser.add_argument("--batch", default="128")
    parser.add_argument("--engine", default="fused")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    rounds = []
    with ExitStack() as opened:
        sources: dict[str, Path] = {}
        for name in args.trained:
            revision = "." if name == "sb3" else name.partition(":")[0]
            sources[name] = opened.enter_context(checked_out(None if revision == "." else revision))
        for _ in range(args.rounds):
            rounds.append(one_round(sources, args))
            print({name: round(speed) for name, speed in rounds[-1].items()}, flush=True)
    first = args.trained[0]
    for name in sources:
        ratios = [speeds[name] / speeds[first] for speeds in rounds]
        speed = statistics.median(speeds[name] for speeds in rounds)
        median = statistics.median(ratios)
        print(
            f"{name}: {speed:,.0f} steps a second, {median:.3f} times {first} ({min(ratios):.3f} to {max(ratios):.3f})"
        )


def one_round(sources: dict[str, Path], args: argparse.Namespace) -> dict[str, float]:
    """Returns the median steps a second of each."""
    trainings: dict[str, subprocess.Popen[str]] = {}
    times: dict[str, list[float]] = {name: [] for name in sources}
    for name, source in sources.items():
        preset = name.partition(":")[2] or "default"
        engine = "sb3" if name == "sb3" else args.engine
        words = [engine, args.batch, args.hidden, preset, args.env, "cpu" if args.cpu else "wall"]
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--train", *words]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        trainings[name] = subprocess.Popen(command, env=environment, **pipes)
        answer(trainings[name])
    for _ in range(args.turns):
        for name, training in trainings.items():
            print(file=training.stdin, flush=True)
            times[name].append(answer(training))
    for training in trainings.values():
        training.communicate()
    return {name: 1 / statistics.median(seconds) for name, seconds in times.items()}


def answer(training: subprocess.Popen[str]) -> float:
    assert training.stdout is not None
    return float(training.stdout.readline())


def train(engine: str, batch: str, hidden: str, preset: str, env: str, clock: str) -> None:
    """Makes a turn for each line of standard input, and prints its seconds a step."""
    import torch  # noqa: PLC0415 (only this process needs it)

    torch.set_num_threads(1)
    now = time.process_time if clock == "cpu" else time.perf_counter
    Case = import_module("t3d.bench.updates").Case  # noqa: N806
    trainings = import_module("t3d.bench.trainings" if util.find_spec("t3d.bench.trainings") else "t3d.bench.measure")
    prepare = getattr(trainings, "_open", None) or trainings._prepare  # its name in revisions before 0.5, and since
    fields: dict[str, Any] = {"device": "cpu", "threads": 1, "batch": int(batch), "critics": 2}
    fields["hidden"] = tuple(map(int, hidden.split("-")))
    fields["seeds" if "seeds" in signature(Case).parameters else "members"] = 1
    if preset != "default":
        critics = import_module("t3d.config.presets").preset(preset).td3.critics
        fields |= {"preset": preset, "critics": critics}
    with tempfile.TemporaryDirectory() as root, ExitStack() as opened:
        take_turn = prepare(engine, Case(**fields), env, Path(root), opened)
        take_turn()  # warms up
        print(0.0, flush=True)
        for _ in sys.stdin:
            started = now()
            steps = take_turn()
            print((now() - started) / steps, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(*sys.argv[2:])
    else:
        main()
