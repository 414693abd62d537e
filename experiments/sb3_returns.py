"""Our returns beside those of Stable-Baselines3's TD3 with the same settings: `python experiments/sb3_returns.py`.

Five seeds of each task with one thread: ours side by side in one run, theirs one after the other. Both are evaluated on
the same starts, ten episodes every 5,000 steps, without noise. What has a file in docs/lab/sb3/ is not trained again.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from common import drawing, machine, train_or_resume, write_into, write_results

import t3d
from t3d.config import Config
from t3d.events import Eval
from t3d.insight.comparison import LAST
from t3d.insight.drawing import look
from t3d.insight.statistics import band, estimate, mean
from t3d.insight.wording import estimated, number_text
from t3d.store.reader import open_run
from t3d.world.evaluate import eval_seeds

RESULTS, PAGES = Path("docs/lab/sb3"), (Path("docs/lab/results.md"), Path("README.md"))
SEEDS, STEPS, EVERY = 5, 50_000, 5_000
TASKS: dict[str, tuple[str, dict[str, Any]]] = {  # a preset, and what is changed of it
    "Pendulum-v1": ("quick", {"noise": {"kind": "gaussian"}}),
    "Hopper-v5": ("default", {"random_steps": 10_000}),
    "HalfCheetah-v5": ("default", {"random_steps": 10_000}),
}
NAMES = {"t3d": "T3D", "sb3": "Stable-Baselines3"}


def settings(task: str, root: Path) -> Config:
    name, changes = TASKS[task]
    common = {
        "env": {"id": task},
        "seeds": range(SEEDS),
        "total_steps": STEPS,
        "eval": {"every_steps": EVERY},
        "threads": 1,
        "engine": "fused",
        "run": {"root": str(root), "name": task},
    }
    return t3d.merge(t3d.merge(t3d.preset(name), changes), common)


def ours(cfg: Config) -> list[dict[int, float]]:
    for event in train_or_resume(cfg):
        if isinstance(event, Eval):
            print(f"T3D {cfg.env.id} step {event.step:,} seed {event.seed}: {event.mean_return:.1f}", flush=True)
    evals = open_run(Path(cfg.run.root, cfg.run.name)).evals
    return [{result.step: result.mean_return for result in evals[member]} for member in cfg.members]


def theirs(cfg: Config, seed: int) -> dict[int, float]:
    from stable_baselines3 import TD3  # noqa: PLC0415 (an extra)
    from stable_baselines3.common.noise import NormalActionNoise  # noqa: PLC0415

    torch.set_num_threads(1)
    td3, env = cfg.td3, gym.make(cfg.env.id)
    size = int(np.prod(env.action_space.shape or (1,)))
    model = TD3(
        "MlpPolicy", env, seed=seed, device="cpu", learning_rate=td3.critic_lr, buffer_size=cfg.replay.capacity,
        learning_starts=cfg.random_steps, batch_size=td3.batch_size, tau=td3.tau, gamma=td3.gamma, train_freq=1,
        gradient_steps=1, policy_delay=td3.policy_delay, target_policy_noise=td3.target_noise,
        target_noise_clip=td3.target_noise_clip, policy_kwargs={"net_arch": list(td3.actor_hidden)},
        action_noise=NormalActionNoise(np.zeros(size), cfg.noise.exploration_noise * np.ones(size)),
    )  # fmt: skip
    returns = {0: played(model, cfg)}
    for step in range(EVERY, STEPS + 1, EVERY):
        model.learn(EVERY, reset_num_timesteps=False)
        returns[step] = played(model, cfg)
        print(f"Stable-Baselines3 {cfg.env.id} step {step:,} seed {seed}: {returns[step]:.1f}", flush=True)
    return returns


def played(model: Any, cfg: Config) -> float:
    """The mean return of its policy on the starts of our evaluations."""
    env, total = gym.make(cfg.env.id), 0.0
    for seed in eval_seeds(cfg, ""):
        observation, ended = env.reset(seed=seed)[0], False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(model.predict(observation, deterministic=True)[0])
            total, ended = total + float(reward), terminated or truncated
    return total / cfg.eval.episodes


def train_all(runs: Path) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    for task in TASKS:
        cfg = settings(task, runs)
        for seed in range(SEEDS):
            file = RESULTS / f"{task}-sb3-{seed}.json"
            if not file.exists():
                curves = [theirs(cfg, seed)]
                write_results(file, machine=machine(), returns=curves)
        if not (file := RESULTS / f"{task}-t3d.json").exists():
            write_results(file, machine=machine(), returns=ours(cfg))


def curves_of(task: str, system: str) -> tuple[list[int], np.ndarray[Any, Any]]:
    """Returns the steps, and the returns (seeds, steps)."""
    files = sorted(RESULTS.glob(f"{task}-{system}*.json"))
    curves = [curve for file in files for curve in json.loads(file.read_text())["returns"]]
    steps = sorted(map(int, curves[0]))
    return steps, np.array([[curve[str(step)] for step in steps] for curve in curves])


def gap(ours: list[np.ndarray[Any, Any]], theirs: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    return mean(ours) - mean(theirs)


def draw() -> None:
    """Writes the table and the curves of all tasks of which both systems have trained at least a seed."""
    rows = ["| task | seeds | T3D | Stable-Baselines3 | difference |", "|---|---|---|---|---|"]
    tasks = [task for task in TASKS if all([*RESULTS.glob(f"{task}-{system}*.json")] for system in NAMES)]
    with drawing(RESULTS / "curves.png", (4 * len(tasks), 3.2)) as figure:
        for axes, task in zip(np.ravel(figure.subplots(1, len(tasks))), tasks, strict=True):
            last = {}
            for index, (system, name) in enumerate(NAMES.items()):
                steps, values = curves_of(task, system)
                last[system] = [values[:, -LAST:].mean(axis=1)]
                middle, low, high = band(mean, values)
                axes.plot(steps, middle, **look(index), label=name)
                axes.fill_between(steps, low, high, color=look(index)["color"], alpha=0.2, linewidth=0)
            axes.set(title=task, xlabel="step", ylabel="return")
            seeds = " and ".join(dict.fromkeys(str(len(scores)) for (scores,) in last.values()))
            each = " | ".join(estimated(estimate(mean, scores)) for scores in last.values())
            apart = estimated(estimate(gap, *last.values()), lambda value: f"{'+' * (value > 0)}{number_text(value)}")
            numbers = f"{seeds} | {each} | {apart}".replace("-", "\N{MINUS SIGN}")
            rows.append(f"| {task} | {numbers} |")
        axes.legend()
    for page in PAGES:
        write_into(page, "sb3", "sb3_returns.py", "\n".join(rows))
    print("\n".join(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="train nothing: write the table and draw the curves")
    parser.add_argument("--runs", type=Path, default=Path("runs/sb3-returns"), help="folder of our runs")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if not args.draw:
        train_all(args.runs)
    draw()


if __name__ == "__main__":
    main()
