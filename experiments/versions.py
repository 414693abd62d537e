"""Shows how two versions of a MuJoCo task differ: python experiments/versions.py Hopper-v4 Hopper-v5

Plays the same actions in both, from the same seeds, and prints where their models, states, observations and rewards
differ. Without arguments: v4 and v5 of the tasks of the paper's Table 1.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import gymnasium
import numpy as np

TASKS = ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Reacher", "InvertedPendulum", "InvertedDoublePendulum")
EPISODES, MOST_STEPS = 100, 200
NOT_PHYSICAL = ("names", "paths")  # arrays of a model that hold names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", help="a Gymnasium id, e.g. Hopper-v4")
    parser.add_argument("new", nargs="?", help="another, e.g. Hopper-v5")
    args = parser.parse_args()
    if args.old and not args.new:
        parser.error("give two environments to compare")
    warnings.simplefilter("ignore")  # that v4 is out of date is expected here
    pairs = [(args.old, args.new)] if args.old else [(f"{task}-v4", f"{task}-v5") for task in TASKS]
    for names in pairs:
        envs = [gymnasium.make(name) for name in names]
        if not all(hasattr(env.unwrapped, "model") for env in envs):
            parser.error("only MuJoCo tasks have models to compare")
        print(" and ".join(names), *differences(*envs), sep="\n  ", flush=True)


def differences(old: Any, new: Any) -> list[str]:
    """Describes how the second differs from the first."""
    observations = [env.observation_space.shape[0] for env in (old, new)]
    changed = changed_arrays(old.unwrapped.model, new.unwrapped.model)
    return [
        f"observations: {observations[0]} and {observations[1]} values",
        f"models: {', '.join(changed) or 'the same'}",
        *played(old, new),
    ]


def changed_arrays(old: Any, new: Any) -> list[str]:
    """Lists the arrays of the model that differ, with the values that differ."""
    names = [name for name in dir(old) if isinstance(getattr(old, name), np.ndarray) and name not in NOT_PHYSICAL]
    pairs = {name: (getattr(old, name), getattr(new, name)) for name in names}
    return [
        f"{name} {a[a != b]} and {b[a != b]}" if a.shape == b.shape else f"{name} differs in shape"
        for name, (a, b) in pairs.items()
        if not np.array_equal(a, b)
    ]


def played(old: Any, new: Any) -> list[str]:
    """Describes how far the same actions drive them apart until an episode ends."""
    rng = np.random.default_rng(0)
    space = old.action_space
    steps, ends, alone = 0, 0, 0
    gaps: list[float] = []
    rewards: list[float] = []
    last_rewards: list[float] = []
    for seed in range(EPISODES):
        for env in (old, new):
            env.reset(seed=seed)
        for _ in range(MOST_STEPS):
            action = rng.uniform(space.low, space.high).astype(space.dtype)
            (_, r, ended, _, _), (_, r_new, ended_new, _, _) = old.step(action), new.step(action)
            steps += 1
            gaps.append(np.abs(state(old) - state(new)).max())
            (last_rewards if ended or ended_new else rewards).append(r_new - r)
            alone += ended != ended_new
            if ended or ended_new:
                ends += 1
                break
    return [
        f"{steps:,} steps in {EPISODES} episodes: states up to {max(gaps):.3g} apart",
        f"rewards: {span(rewards)} more; in the step that ends an episode {span(last_rewards)} more",
        f"{ends} episodes ended, {alone} of them in only one of the two",
    ]


def state(env: Any) -> Any:
    return np.concatenate([env.unwrapped.data.qpos, env.unwrapped.data.qvel])


def span(values: list[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g}" if values else "(none)"


if __name__ == "__main__":
    main()
