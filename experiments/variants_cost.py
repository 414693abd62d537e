"""What an update of each variant costs, sampling included: `python experiments/variants_cost.py`.

The variants of experiments/variants.py, each with the fastest engine that computes it, take turns on one thread of the
CPU, or on the GPU with --device cuda. Prints the table of docs/lab/ablations.md.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from common import gpu_name, random_rollout
from variants_studies import CHANGES, FINALISTS

import t3d
from t3d.algo.engines import ENGINES, FASTEST_FIRST
from t3d.algo.learner import Learner
from t3d.algo.rules import TD3
from t3d.algo.td3 import coefficients_of
from t3d.bench.updates import HALF_CHEETAH, REPLAY_ROWS, timed_in_turns
from t3d.config import TD3Config
from t3d.data.memory import Memory

BLOCK = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=FASTEST_FIRST)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each variant")
    args = parser.parse_args()
    torch.set_num_threads(1)
    variants = {**CHANGES, **FINALISTS}
    learners = {name: learner_of(settings, args) for name, settings in variants.items()}
    runs = {name: learner.run for name, (learner, _) in learners.items()}
    best = {name: times["ms_best"] for name, times in timed_in_turns(runs, args.seconds, args.device).items()}
    print("| variant | engine | ms per update | / that of default |\n|---|---|---|---|")
    for name in sorted(best, key=best.__getitem__):
        print(f"| {name} | {learners[name][1]} | {best[name]:.2f} | {best[name] / best['default']:.2f} × |")
    where = gpu_name() if args.device == "cuda" else "CPU, 1 thread"
    print(f"\nseeds trained at once: {args.seeds}; {where}, torch {torch.__version__}")


def learner_of(settings: dict[str, Any], args: argparse.Namespace) -> tuple[Learner, str]:
    """A learner with a full replay, and its engine."""
    changes = {"total_steps": REPLAY_ROWS, "seeds": list(range(args.seeds))}
    cfg = t3d.merge(t3d.merge(t3d.preset("default"), settings), changes)
    memory = Memory(HALF_CHEETAH, cfg, args.device)
    for number in range(REPLAY_ROWS // BLOCK):
        memory.add(*(random_rollout(HALF_CHEETAH, member, number, BLOCK) for member in range(args.seeds)))
    engine = fastest(cfg.td3, args.device)
    learner = Learner(HALF_CHEETAH, cfg.td3, cfg.seeds, args.device, engine=engine, source=memory)
    learner.prepare()
    return learner, engine


def fastest(cfg: TD3Config, device: str) -> str:
    coefficients = coefficients_of(cfg)
    return next(name for name in FASTEST_FIRST[device] if not ENGINES[name].refuses(TD3, cfg, coefficients))


if __name__ == "__main__":
    main()
