"""How two versions of an environment differ: python experiments/versions.py Hopper-v4 Hopper-v5

Plays the same actions in both, from the same seeds, and prints where their answers part. Without arguments: v4 and v5
of the tasks of the paper's Table 1.
"""

from __future__ import annotations

import sys
import warnings

import gymnasium
import numpy as np

TASKS = ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Reacher", "InvertedPendulum", "InvertedDoublePendulum")
EPISODES, MOST_STEPS = 100, 200


def main() -> None:
    warnings.simplefilter("ignore")  # that v4 is out of date is why this exists
    pairs = [(f"{task}-v4", f"{task}-v5") for task in TASKS]
    for old, new in [(sys.argv[1], sys.argv[2])] if len(sys.argv) == 3 else pairs:
        print(f"{old} and {new}: {differences(old, new)}", flush=True)


def differences(old: str, new: str) -> str:
    envs = gymnasium.make(old), gymnasium.make(new)
    sizes = [env.observation_space.shape for env in envs]
    if sizes[0] != sizes[1]:
        return f"observations of {sizes[0]} and {sizes[1]} numbers"
    rng = np.random.default_rng(0)
    steps, ends = 0, 0
    moved: list[float] = []
    rewards: list[float] = []
    last_rewards: list[float] = []
    for seed in range(EPISODES):
        starts = [env.reset(seed=seed)[0] for env in envs]
        moved.append(np.abs(starts[0] - starts[1]).max())
        for _ in range(MOST_STEPS):
            action = envs[0].action_space.low + rng.random(envs[0].action_space.shape) * np.ptp(bounds(envs[0]), axis=0)
            (s, r, ended, *_), (s_new, r_new, ended_new, *_) = (env.step(action) for env in envs)
            steps += 1
            moved.append(np.abs(s - s_new).max())
            (last_rewards if ended else rewards).append(r_new - r)
            if ended != ended_new:
                return f"one ends where the other goes on (episode {seed})"
            if ended:
                ends += 1
                break
    return (
        f"{steps:,} steps, {ends} of {EPISODES} episodes ended early; observations differ by up to {max(moved):.3g}, "
        f"rewards by {span(rewards)}, in the step that ends an episode by {span(last_rewards)}"
    )


def bounds(env: gymnasium.Env) -> np.ndarray:
    return np.stack([env.action_space.low, env.action_space.high])


def span(values: list[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g}" if values else "nothing"


if __name__ == "__main__":
    main()
