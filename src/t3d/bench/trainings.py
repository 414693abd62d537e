"""Steps a second of whole trainings, environment included: T3D's engines and Stable-Baselines3, in turns.

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
STEPS_A_TURN = 500
RANDOM_STEPS = 1_000  # before anything is timed; the replay holds enough for a batch then

Turn = Callable[[], int]  # trains on for a turn and returns the steps it took


def train_rows(case: Case, env_id: str, engines: list[str], turns: int) -> Iterator[dict[str, Any]]:
    """A row for each engine: the median over turns of its steps a second. Evaluation and checkpoints are off."""
    with tempfile.TemporaryDirectory(prefix="t3d-bench-") as root, ExitStack() as opened:
        going = {engine: _open(engine, case, env_id, Path(root), opened) for engine in engines}
        speeds: dict[str, list[float]] = {engine: [] for engine in engines}
        for turn in range(turns + 1):
            for engine, go_on in going.items():
                torch.set_num_threads(case.threads)
                begun = time.perf_counter()
                steps = go_on()
                if turn:  # the first one warms up
                    speeds[engine].append(steps / (time.perf_counter() - begun))
    for engine, values in speeds.items():
        speed = round(statistics.median(values), 1)
        members = 1 if engine == "sb3" else case.members
        row = {"what": "train", "engine": engine, **vars(case), "members": members, "env": env_id}
        yield {**row, "steps_per_second": speed}


def _open(engine: str, case: Case, env_id: str, root: Path, opened: ExitStack) -> Turn:
    if engine == "sb3":
        return _stable_baselines(case, env_id)
    td3, (used, _, actors) = {**vars(case.cfg), "random_steps": RANDOM_STEPS}, engine.partition("@")
    cfg = merge(
        Config(),
        {
            "env": {"id": env_id},
            "seeds": list(range(case.members)),
            "device": case.device,
            "threads": case.threads,
            "engine": used,
            "actors": actors or "inline",
            "tf32": torch.backends.cuda.matmul.allow_tf32,
            "td3": td3,
            "eval": {"every_steps": NEVER, "episodes": 1, "max_steps": 1},
            "checkpoint": {"every_steps": NEVER},
            "log": {"every_steps": STEPS_A_TURN},
            "run": {"root": str(root), "name": engine.replace(":", "-")},
        },
    )
    events = opened.enter_context(closing(train(cfg)))  # type: ignore[type-var]
    at = RANDOM_STEPS
    for event in events:
        if isinstance(event, Start) and event.config["engine"] != used:
            raise UserError(f"engine {used} was not taken here; t3d train says why")
        if isinstance(event, Update):
            break

    def go_on() -> int:
        nonlocal at
        before = at
        for event in events:
            if isinstance(event, Update) and event.member == case.members - 1 and event.step > before:
                at = event.step
                break
        return at - before

    return go_on


def _stable_baselines(case: Case, env_id: str) -> Turn:
    """Stable-Baselines3's TD3 with the same networks, batch, rates, noise and one update a step."""
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

    def go_on() -> int:
        model.learn(STEPS_A_TURN, reset_num_timesteps=False)
        return STEPS_A_TURN

    return go_on
