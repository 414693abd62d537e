"""Where the time of a training step goes, part by part: python experiments/step_budget.py [--preset plus].

Trains on one thread in this process, and times what each part calls, without what it calls of other parts. The clock
itself costs about a third of a microsecond a call, so parts with many calls look a little dearer than they are; `all`
is the same training without clocks. Both are medians over turns, for docs/lab/performance.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import torch
from common import machine

import t3d
from t3d.actors.inline import InlineCollector
from t3d.algo.engines.fused import Fused
from t3d.config import merge
from t3d.data.memory import Memory
from t3d.data.replay import Links, Replay
from t3d.data.samplers import UniformSampler
from t3d.data.scaling import Normaliser
from t3d.events import Update
from t3d.run.build import DirectPublisher, SharedPublisher
from t3d.run.loop import Trainer
from t3d.run.reporter import Reporter
from t3d.world.episode import EpisodeRunner, MemberActor
from t3d.world.guard import EnvGuard

NEVER, RANDOM_STEPS, TURN = 10**12, 1_000, 500
PARTS: dict[str, list[tuple[type, str]]] = {
    "act: the policy, noise": [(MemberActor, "_actions")],
    "guard: actions in, results out": [(EnvGuard, "action"), (EnvGuard, "result"), (EnvGuard, "attempt")],
    "episode: what is recorded of it": [(EpisodeRunner, "advance")],
    "row: transitions as rows": [(MemberActor, "step"), (InlineCollector, "poll")],
    "replay: rows written": [(Replay, "add"), (Memory, "add")],
    "links between rows": [(Links, "add")],
    "sample": [(UniformSampler, "sample"), (Memory, "sample")],
    "scaling of observations": [(Normaliser, "normalised"), (Normaliser, "add"), (Normaliser, "put_into")],
    "update": [(Fused, "__call__")],
    "events, log": [(Reporter, "collected"), (Reporter, "learned"), (Trainer, "_record"), (Trainer, "_obey")],
    "publish": [(SharedPublisher, "publish"), (DirectPublisher, "_pass_on"), (InlineCollector, "publish")],
}


class Clocks:
    """Exclusive seconds of each part: a part's clock stands still while another part works for it."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.part, self.since = "loop: the rest", time.perf_counter()

    def switch(self, part: str) -> str:
        now, before = time.perf_counter(), self.part
        self.seconds[before] += now - self.since
        self.part, self.since = part, now
        return before

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            before = self.switch(part)
            try:
                return function(*arguments, **keywords)
            finally:
                self.switch(before)

        return call


@contextmanager
def clocks_in(env: str) -> Iterator[Clocks]:
    """Puts clocks around every part and the environment's own step."""
    clocks = Clocks()
    own = type(gym.make(env).unwrapped)
    with ExitStack() as patched:
        for part, methods in {**PARTS, "environment": [(own, "step")]}.items():
            for owner, name in methods:
                patched.enter_context(patch.object(owner, name, clocks.timed(part, getattr(owner, name))))
        yield clocks


def turns(args: argparse.Namespace, clocks: Clocks | None) -> Iterator[dict[str, float]]:
    """Yields the microseconds a step of each turn: of each part, or of all."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        changes: dict[str, Any] = {
            "env": {"id": args.env},
            "device": "cpu",
            "threads": 1,
            "engine": "fused",
            "random_steps": RANDOM_STEPS,
            "td3": {"batch_size": args.batch, "actor_hidden": args.hidden, "critic_hidden": args.hidden},
            "eval": {"every_steps": NEVER, "episodes": 1, "max_steps": 1},
            "checkpoint": {"every_steps": NEVER},
            "log": {"every_steps": TURN},
            "run": {"root": root, "name": "budget"},
        }
        with closing(t3d.train(merge(t3d.preset(args.preset), changes))) as events:
            last = None
            while event := next(events):
                if not isinstance(event, Update):
                    continue
                if clocks is not None:
                    clocks.switch(clocks.part)
                now = (event.step, time.perf_counter(), Counter(clocks.seconds if clocks else ()))
                if last is not None:
                    steps = event.step - last[0]
                    taken = (
                        {"all": now[1] - last[1]} if clocks is None else {p: s - last[2][p] for p, s in now[2].items()}
                    )
                    yield {part: 1e6 * seconds / steps for part, seconds in taken.items()}
                last = now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--turns", type=int, default=12, help="of 500 steps, each way; the first is not counted")
    args = parser.parse_args()
    plain = [turn for turn, _ in zip(turns(args, None), range(args.turns), strict=False)][1:]
    with clocks_in(args.env) as clocks:
        parts = [turn for turn, _ in zip(turns(args, clocks), range(args.turns), strict=False)][1:]
    print(f"{machine()}, torch {torch.__version__}, {args.env}, {args.preset}, {args.hidden}, batch {args.batch}\n")
    print("| part | microseconds a step |\n|---|---|")
    for part in sorted(parts[-1], key=lambda part: -statistics.median(turn.get(part, 0.0) for turn in parts)):
        print(f"| {part} | {statistics.median(turn.get(part, 0.0) for turn in parts):.1f} |")
    print(f"| sum of the parts, with clocks | {statistics.median(sum(turn.values()) for turn in parts):.1f} |")
    print(f"| all, without clocks | {statistics.median(turn['all'] for turn in plain):.1f} |")


if __name__ == "__main__":
    main()
