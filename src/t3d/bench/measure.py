"""What `t3d bench` measures, case by case; updates.py times single updates, this file trainings with their environment.

An engine's name may say who collects: fused is fused@inline, fused@local:1 has an actor process.
"""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from t3d.algo.engines import ENGINES, FASTEST_FIRST
from t3d.algo.rules import TD3
from t3d.algo.td3 import coefficients_of
from t3d.bench.command import BenchArgs
from t3d.bench.updates import Case, growth_cases, update_rows
from t3d.config import Config, merge
from t3d.config.presets import preset
from t3d.errors import UserError, check_installed
from t3d.events import Start, Update
from t3d.run.live import train
from t3d.run.placement import resolve, set_tf32_for_process

UPDATE_ENGINES = {
    "cpu": ["oracle", "eager", "fused", "floor"],
    "cuda": ["oracle", "eager", "capture", "floor"],
}
TRAIN_ENGINES = {
    "cpu": ["eager", "fused", "fused@local:1", "sb3"],
    "cuda": ["eager", "capture", "capture@local:1", "capture@local:4", "sb3"],
}

NEVER = 10**12
STEPS_PER_TURN = 500
RANDOM_STEPS = 1_000  # before timing starts; by then the replay holds enough for a batch

Turn = Callable[[], int]  # trains for one turn and returns how many steps that took


def rows(args: BenchArgs, report: Callable[[str], object]) -> Iterator[dict[str, Any]]:
    """Yields a row for everything requested, as it is measured."""
    if min(args.threads, default=1) < 1 or args.turns < 1:
        raise UserError("--threads and --turns must be at least 1")
    set_tf32_for_process(args.tf32)
    device = resolve(Config(device=args.device, tf32=args.tf32)).device
    default, td3 = torch.get_num_threads(), preset(args.preset).td3
    batch, hidden = args.batch or td3.batch_size, args.hidden or td3.critic_hidden
    for threads in args.threads or ((1, default) if device == "cpu" and default > 1 else (default,)):
        case = Case(device, threads, batch, hidden, args.seeds, args.critics or td3.critics, args.preset)
        for part in ("update", "train") if args.what == "all" else (args.what,):
            report(f"measuring {part}, threads {threads} ...")
            yield from _measure(part, case, args)


def _measure(part: str, case: Case, args: BenchArgs) -> Iterator[dict[str, Any]]:
    if part == "growth":
        for varied in growth_cases(case):
            fastest = [engine for engine in FASTEST_FIRST[case.device] if _computes(engine, varied)][:1]
            yield from update_rows(varied, _chosen(fastest, varied, args), args.seconds / 4)
    elif part == "update":
        yield from update_rows(case, _chosen(UPDATE_ENGINES[case.device], case, args), args.seconds)
    else:
        engines = _chosen(TRAIN_ENGINES[case.device], case, args)
        if not args.engines and importlib.util.find_spec("stable_baselines3") is None:
            engines = [engine for engine in engines if engine != "sb3"]
        yield from train_rows(case, args.env, engines, args.turns)


def _computes(engine: str, case: Case) -> bool:
    """Whether an engine computes the updates of a case; oracle and floor compute what fused does."""
    if engine == "sb3":
        return not case.normalised and case.cfg.critic_network == case.cfg.actor_network == "mlp"
    known = ENGINES.get(engine.partition("@")[0], ENGINES["fused"])
    return not known.refuses(TD3, case.cfg, coefficients_of(case.cfg))


def _chosen(measurable: Sequence[str], case: Case, args: BenchArgs) -> list[str]:
    possible = [engine for engine in measurable if _computes(engine, case)]
    chosen = [engine for engine in possible if engine in (args.engines or possible)]
    if not chosen:
        raise UserError(f"--engines {' '.join(args.engines)}: only {', '.join(possible)} can be measured here")
    return chosen


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
    check_installed("--engines sb3", ["stable_baselines3"], "bench")
    from stable_baselines3 import TD3  # noqa: PLC0415 (an extra)
    from stable_baselines3.common.noise import NormalActionNoise  # noqa: PLC0415

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
