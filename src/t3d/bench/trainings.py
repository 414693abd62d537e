"""Steps per second of training including the environment: T3D's engines and Stable-Baselines3, in turns.

An engine's name may say who collects: fused is fused@inline, fused@local:1 has an actor process.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from t3d.bench.updates import Case
from t3d.config import Config, merge
from t3d.errors import UserError
from t3d.events import Start, Update
from t3d.run.loop import train

NEVER = 10**12
STEPS_PER_TURN = 500
RANDOM_STEPS = 1_000  # before timing starts; by then the replay holds enough for a batch

Turn = Callable[[], int]  # trains for one turn and returns how many steps that took


def train_rows(case: Case, env_id: str, engines: list[str], turns: int) -> Iterator[dict[str, Any]]:
    """Yields each engine's median steps per second over turns. Evaluation and checkpoints are off."""
    with tempfile.TemporaryDirectory(prefix="t3d-bench-") as root, ExitStack() as opened:
        prepared = {engine: _prepare(engine, case, env_id, Path(root), opened) for engine in engines}
        speeds: dict[str, list[float]] = {engine: [] for engine in engines}
        for turn in range(turns + 1):
            for engine, take_turn in prepared.items():
                torch.set_num_threads(case.threads)
                started = time.perf_counter()
                steps = take_turn()
                if turn:  # the first one warms up
                    speeds[engine].append(steps / (time.perf_counter() - started))
    for engine, values in speeds.items():
        speed = round(statistics.median(values), 1)
        seeds = 1 if engine == "sb3" else case.seeds
        row = {"what": "train", "engine": engine, **vars(case), "seeds": seeds, "env": env_id}
        yield {**row, "steps_per_second": speed}


def _prepare(engine: str, case: Case, env_id: str, root: Path, opened: ExitStack) -> Turn:
    if engine == "sb3":
        return _stable_baselines(case, env_id)
    used, _, actors = engine.partition("@")
    cfg = merge(
        Config(),
        {
            "env": {"id": env_id},
            "seeds": list(range(case.seeds)),
            "device": case.device,
            "threads": case.threads,
            "engine": used,
            "actors": actors or "inline",
            "tf32": torch.backends.cuda.matmul.allow_tf32,
            "random_steps": RANDOM_STEPS,
            "td3": vars(case.cfg),
            "normalise_observations": case.normalised,
            "eval": {"every_steps": NEVER, "episodes": 1, "max_steps": 1},
            "checkpoint": {"every_steps": NEVER},
            "log": {"every_steps": STEPS_PER_TURN},
            "run": {"root": str(root), "name": engine.replace(":", "-")},
        },
    )
    events = opened.enter_context(closing(train(cfg)))
    step = RANDOM_STEPS
    while event := next(events):
        if isinstance(event, Start) and event.config["engine"] != used:
            raise UserError(f"engine {used} cannot be used here; t3d train says why")
        if isinstance(event, Update):
            break

    def take_turn() -> int:
        nonlocal step
        before = step
        while event := next(events):  # a for loop that is left would save the run, and resume it in the next turn
            if isinstance(event, Update) and event.member == case.seeds - 1 and event.step > before:
                step = event.step
                break
        return step - before

    return take_turn


def _stable_baselines(case: Case, env_id: str) -> Turn:
    """Prepares Stable-Baselines3's TD3 with the same networks, batch, rates, noise and one update per step."""
    try:
        from stable_baselines3 import TD3  # noqa: PLC0415 (an extra)
        from stable_baselines3.common.noise import NormalActionNoise  # noqa: PLC0415
    except ImportError:
        raise UserError("Stable-Baselines3 is not installed; add the extra: pip install 't3d[bench]'") from None
    env, cfg = gym.make(env_id), case.cfg
    size = int(np.prod(env.action_space.shape or (1,)))
    model = TD3(
        "MlpPolicy", env, device=case.device, learning_rate=cfg.critic_lr, batch_size=case.batch, tau=cfg.tau,
        gamma=cfg.gamma, learning_starts=RANDOM_STEPS, train_freq=1, gradient_steps=1, policy_delay=cfg.policy_delay,
        action_noise=NormalActionNoise(np.zeros(size), 0.1 * np.ones(size)),
        policy_kwargs={"net_arch": list(case.hidden), "n_critics": case.critics},
    )  # fmt: skip
    model.learn(RANDOM_STEPS)

    def take_turn() -> int:
        model.learn(STEPS_PER_TURN, reset_num_timesteps=False)
        return STEPS_PER_TURN

    return take_turn
