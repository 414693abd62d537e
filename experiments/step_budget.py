"""Where the time of a training step goes, part by part: python experiments/step_budget.py [--preset plus].

Trains on one thread in this process, and times what each part calls, without what it calls of other parts. The clock
itself costs about a third of a microsecond a call, so parts with many calls look a little dearer than they are; `all`
is the same training without clocks. Both are medians over turns, for docs/lab/performance.md. With the src of another
revision on PYTHONPATH it measures that one: what stood elsewhere has both names, and what it lacks is left out.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import torch
from common import machine

import t3d
from t3d.config import merge
from t3d.events import Update

NEVER, RANDOM_STEPS, TURN = 10**12, 1_000, 500
PARTS = {  # classes, and which of their methods belong to a part
    "act: the policy, noise": ["world.episode:MemberActor _actions", "actors.inline:MemberActor _actions"],
    "guard: actions in, results out": ["world.guard:EnvGuard action result attempt"],
    "episode: what is recorded of it": ["world.episode:EpisodeRunner advance"],
    "row: transitions as rows": [
        *("world.episode:MemberActor step", "actors.inline:MemberActor step"),
        "actors.inline:InlineCollector poll",
    ],
    "replay: rows written": ["data.replay:Replay add", "data.memory:Memory add"],
    "links between rows": ["data.replay:Links add", "data.links:Links add"],
    "sample": ["data.samplers:UniformSampler sample", "data.memory:Memory sample"],
    "scaling of observations": ["data.scaling:Normaliser normalised add put_into"],
    "update": ["algo.engines.fused:Fused __call__"],
    "events, log": ["run.reporter:Reporter collected learned", "run.loop:Trainer _record _job_notes"],
    "publish": [
        *("run.build:SharedPublisher publish", "run.build:DirectPublisher _pass_on"),
        *("run.publish:DirectPublisher publish _pass_on", "actors.inline:InlineCollector publish"),
    ],
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
        patched.enter_context(patch.object(own, "step", clocks.timed("environment", own.step)))
        for part, names in ((part, names) for part, methods in PARTS.items() for names in methods):
            owner_name, *methods = names.split()
            with suppress(ImportError, AttributeError):  # another revision lacks it
                owner = resolve_name(f"t3d.{owner_name}")
                for name in (name for name in methods if name in vars(owner)):
                    patched.enter_context(patch.object(owner, name, clocks.timed(part, vars(owner)[name])))
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
