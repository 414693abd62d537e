"""How far torch, ONNX and C are from a policy, for docs/lab/shipping.md: `python experiments/export_parity.py FILE`.

Each figure is the largest difference over 10,000 observations with extremes, as a share of the range of actions. Actors
have 17 inputs, hidden layers 256-256 and 6 actions, with and without scaled observations; images are three frames of
84 x 84 x 3. Their numbers are those that training starts from, moved by noise so that no scale is 1 and no shift 0.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import write_results
from numpy.typing import NDArray

from t3d.algo.networks import Actor, ImageActor, initial
from t3d.config import TD3Config
from t3d.config.networks import actor_architecture, architecture
from t3d.policy import files
from t3d.policy.acting import SCALED_LIMIT, PolicySnapshot, SavedPolicy, Scaling
from t3d.policy.architectures import ACTIVATIONS, KINDS, Architecture
from t3d.policy.spec import Image, Part, Spec, limited, to_bounds
from t3d.ship.export import export_policy, largest_difference

NOISE = 0.02
ABOUT = {"env": "", "kind": "best", "seed": 0, "step": 0}
VECTORS = Spec((Part((), (17,), 0, 17),), (6,), -np.ones(6), np.ones(6))
SMOOTH = VECTORS._replace(max_action_change=0.2)
IMAGES = Spec((), (6,), -np.ones(6), np.ones(6), images=(Image((), (3, 84, 84), 0, 3 * 84 * 84),), stack=3)


def policy_of(network: Architecture, spec: Spec, scaled: bool) -> SavedPolicy:
    rng = np.random.default_rng(0)
    flat = initial(network, [0], torch.float32).numpy()
    flat = flat + NOISE * rng.normal(size=flat.shape).astype(np.float32)
    size = (1, spec.observation_size)
    scaling = Scaling(rng.normal(size=size).astype(np.float32), rng.uniform(0.1, 3, size).astype(np.float32))
    snapshot = PolicySnapshot(0, network, flat, scaling if scaled else None)
    return files.policy_of(snapshot, spec, ABOUT)


def torch_actions(policy: SavedPolicy) -> Callable[[NDArray[Any], NDArray[Any] | None], NDArray[Any]]:
    network, scaling = policy.snapshot.architecture, policy.snapshot.scaling
    flat = torch.from_numpy(policy.snapshot.flat)
    actor = Actor(network, flat) if network.encoder is None else ImageActor(network, flat)

    @torch.no_grad()
    def actions(seen: NDArray[Any], previous: NDArray[Any] | None = None) -> NDArray[Any]:
        s = torch.from_numpy(seen)
        if scaling is not None:
            mean, std = map(torch.from_numpy, scaling)
            s = ((s - mean) / std).clamp(-SCALED_LIMIT, SCALED_LIMIT)
        action = actor(s.unsqueeze(0))[0].numpy()
        scaled = to_bounds(action, policy.spec)
        return scaled if previous is None else limited(scaled, previous, policy.spec)

    return actions


def row(title: str, policies: list[SavedPolicy], folder: Path) -> dict[str, Any]:
    """Prints a line of the table, the largest over the policies, and returns it."""
    kinds = ["onnx"] if policies[0].spec.images else ["onnx", "c"]
    largest = dict.fromkeys(["torch", *kinds], 0.0)
    for policy in policies:
        largest["torch"] = max(largest["torch"], largest_difference(policy, torch_actions(policy)))
        for kind in kinds:
            file = folder / f"policy.{kind}"
            file.unlink(missing_ok=True)
            largest[kind] = max(largest[kind], export_policy(policy, file, kind, {}).difference or 0.0)
    cells = [f"{largest[kind]:.1e}" if kind in largest else "refused" for kind in ("torch", "onnx", "c")]
    print(f"| {title} | {' | '.join(cells)} |", flush=True)
    return {"policy": title, **largest}


def main() -> None:
    torch.set_num_threads(1)
    print("| network | torch | ONNX | C |\n|---|---|---|---|")
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in KINDS:
            for activation in ACTIVATIONS:
                network = architecture(kind, (17, 256, 256, 6), activation)
                policies = [policy_of(network, VECTORS, scaled) for scaled in (False, True)]
                rows.append(row(f"`{kind}`, {activation}", policies, folder))
        network = actor_architecture(SMOOTH, TD3Config())
        policies = [policy_of(network, SMOOTH, scaled) for scaled in (False, True)]
        rows.append(row("smooth, `mlp`, relu", policies, folder))
        for kind in KINDS:
            cfg = TD3Config(actor_network=kind)  # type: ignore[arg-type]
            policies = [policy_of(actor_architecture(IMAGES, cfg), IMAGES, False)]
            rows.append(row(f"images, `{kind}`, relu", policies, folder))
    for file in sys.argv[1:]:
        write_results(file, rows=rows)


if __name__ == "__main__":
    main()
