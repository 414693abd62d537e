"""What one call of a policy takes, for docs/lab/shipping.md: `python experiments/policy_calls.py [FILE.json]`.

Actors of 256-256 with 17 inputs and 6 actions: a policy file, one with smooth actions, the first as ONNX, and the
products of matrices and activations alone. They take turns, on one thread; the shortest of many rounds counts.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import seconds, write_results
from export_parity import SMOOTH, VECTORS, policy_of

from t3d import load_policy
from t3d.config import TD3Config
from t3d.config.networks import actor_architecture
from t3d.ship.export import export_policy

ROUNDS, CALLS = 500, 20


def main() -> None:
    torch.set_num_threads(1)
    x, previous = np.random.default_rng(0).normal(size=17).astype(np.float32), np.zeros(6, np.float32)
    saved = policy_of(actor_architecture(VECTORS, TD3Config()), VECTORS, scaled=False)
    plain, smooth = saved, policy_of(actor_architecture(SMOOTH, TD3Config()), SMOOTH, scaled=False)
    weights = [stack[0] for stack in saved.snapshot.architecture.parameters(saved.snapshot.flat)]
    with tempfile.TemporaryDirectory() as folder:
        export_policy(saved, Path(folder) / "policy.onnx", "onnx", {})
        onnx = load_policy(Path(folder) / "policy.onnx")
        calls: dict[str, Callable[[], Any]] = {
            "policy": lambda: plain(x),
            "policy, smooth": lambda: smooth(x, previous_action=previous),
            "ONNX": lambda: onnx(x),
            "products alone": lambda: products(x, weights),
        }
        best = dict.fromkeys(calls, float("inf"))
        for _ in range(ROUNDS):
            for name, call in calls.items():
                best[name] = min(best[name], seconds(call, CALLS))
    microseconds = {name: round(1e6 * time, 1) for name, time in best.items()}
    print(microseconds)
    for file in sys.argv[1:]:
        write_results(file, microseconds=microseconds)


def products(x: Any, weights: list[Any]) -> Any:
    for weight, bias in zip(weights[::2], weights[1::2], strict=True):
        x = np.maximum(x @ weight + bias, 0)
    return x


if __name__ == "__main__":
    main()
