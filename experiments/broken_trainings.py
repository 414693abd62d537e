"""Trains three tasks that are broken in some way: python experiments/broken_trainings.py FOLDER

For each it writes to FOLDER what `t3d train` and `t3d runs show` print. A reader should be able to name the cause of
each from that alone, so names give nothing away: A has an actor that saturates because its learning rate is far too
high, B rewards of 10,000, and C a time limit that it reports as termination. Each takes about a minute.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym

CASES = {"A": ["--td3.actor-lr", "0.1"], "B": [], "C": []}
TRAIN = ["--preset", "quick", "--threads", "1", "--no-video"]


class Task(gym.Wrapper[Any, Any, Any, Any]):
    """Pendulum's swing-up, with another scale of rewards or another way to end."""

    def __init__(self, reward_scale: float = 1.0, terminates: bool = False) -> None:
        super().__init__(gym.make("Pendulum-v1"))
        self.reward_scale, self.terminates = reward_scale, terminates

    def step(self, action: Any) -> Any:
        observation, reward, _, is_over, info = self.env.step(action)
        reward = self.reward_scale * float(reward)
        return observation, reward, is_over and self.terminates, is_over and not self.terminates, info


def task_a() -> Task:
    return Task()


def task_b() -> Task:
    return Task(reward_scale=1e4)


def task_c() -> Task:
    return Task(terminates=True)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, flags in CASES.items():
        env = ["--env.name", f"task {name}", "--run.root", str(folder / "runs"), "--run.name", name]
        train = ["train", f"{__file__}:task_{name.lower()}", *TRAIN, *flags, *env]
        for command, what in ((train, "train"), (["runs", "show", str(folder / "runs" / name)], "show")):
            t3d = [sys.executable, "-m", "t3d", *command]
            said = subprocess.run(t3d, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            (folder / f"{name}-{what}.txt").write_text(said.stdout, encoding="utf-8")
            print(f"{name} {what}: exit code {said.returncode}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
