"""Steps a second of t3d.sb3.TD3 and of stable_baselines3.TD3: `python experiments/import_changed.py Pendulum-v1 64-64`.

The same script trains with one import or the other, in a process each, with one thread and a batch of 256 (theirs by
default). They take turns of 500 steps of learn(), so a busy moment slows both; speeds are medians over the turns, of
the clock and of processor time.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from importlib import import_module

TURN = 500  # steps
PACKAGES = ("stable_baselines3", "t3d.sb3")


def main(env: str, hidden: str, turns: int) -> None:
    trainings = {}
    for package in PACKAGES:
        command = [sys.executable, __file__, "--train", package, env, hidden]
        trainings[package] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    seconds: dict[str, list[list[float]]] = {package: [] for package in PACKAGES}
    for turn in range(turns + 1):
        for package, training in trainings.items():
            assert training.stdin is not None and training.stdout is not None
            print(file=training.stdin, flush=True)
            taken = [float(word) for word in training.stdout.readline().split()]
            if turn:  # the first warms up
                seconds[package].append(taken)
    for training in trainings.values():
        training.communicate()
    for clock, name in enumerate(("clock", "processor")):
        speeds = {package: TURN / statistics.median(turn[clock] for turn in seconds[package]) for package in PACKAGES}
        ratios = [theirs[clock] / ours[clock] for theirs, ours in zip(*seconds.values(), strict=True)]
        about = f"{statistics.median(ratios):.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f})"
        print(
            f"{env} {hidden}, {name}: {', '.join(f'{speeds[each]:,.0f}' for each in PACKAGES)} steps a second, {about}"
        )


def train(package: str, env: str, hidden: str) -> None:
    """Makes a turn for each line of standard input, and prints its seconds."""
    np, torch = import_module("numpy"), import_module("torch")
    torch.set_num_threads(1)
    noise = import_module("stable_baselines3.common.noise").NormalActionNoise
    size = import_module("gymnasium").make(env).action_space.shape[0]
    model = import_module(package).TD3(
        "MlpPolicy",
        env,
        learning_starts=100,
        action_noise=noise(np.zeros(size), 0.1 * np.ones(size)),
        policy_kwargs={"net_arch": [*map(int, hidden.split("-"))]},
        device="cpu",
        seed=0,
    )
    for _ in sys.stdin:
        clock, processor = time.perf_counter(), time.process_time()
        model.learn(TURN, reset_num_timesteps=False)
        print(time.perf_counter() - clock, time.process_time() - processor, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--train":
        train(*sys.argv[2:])
    else:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 10)
