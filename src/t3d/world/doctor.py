"""The environment doctor: plays an environment for a moment and says in sentences what is wrong with it.

What training cannot survive is raised as a UserError. What it can survive, but you should know, comes as warnings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from t3d.errors import UserError
from t3d.types import Floats
from t3d.world.envs import EnvFactory, Gate, GymEnv, Result, name_of, spec_of
from t3d.world.numbers import to_bounds

MOST_STEPS, MOST_SECONDS, EPISODES = 2000, 1.0, 3  # chosen: no more than a moment before every training
SLOW_MILLISECONDS = 5.0  # chosen: as long as an update takes on one core
LARGE, SMALL = 100.0, 1e-3  # chosen: networks like inputs and targets of about one
REPLAYED = 20  # steps played twice to see whether a seed decides everything


class Ending(NamedTuple):
    """How an episode of the trial ended."""

    length: int
    terminated: bool
    truncated: bool


class Trial(NamedTuple):
    """What the doctor saw."""

    results: list[Result]  # checked and flat
    answers: list[tuple[Any, ...]]  # as step() returned them
    endings: list[Ending]
    milliseconds: float  # of one step, median


def examine(make_env: EnvFactory) -> list[str]:
    """Warnings about the environment that this makes; raises UserError for what training cannot work with."""
    env = make_env()
    if isinstance(env, VectorEnv):
        env.close()
        return [f"{name_of(env)} is a VectorEnv; its environments are checked only while they are stepped"]
    if not isinstance(env, gym.Env):
        raise UserError(f"the environment factory returned {type(env).__name__}, not a gymnasium.Env or VectorEnv")
    try:
        gate = Gate(spec_of(env), name_of(env))
        trial = _play(env, gate)
        return [f"{gate.where}: {text}" for check in CHECKS for text in check(env, gate, trial)]
    finally:
        env.close()


def _play(env: GymEnv, gate: Gate) -> Trial:
    """Some episodes of random actions; every value passes the gate, which refuses what is not sound."""
    rng = np.random.default_rng(0)
    results: list[Result] = []
    answers: list[tuple[Any, ...]] = []
    endings: list[Ending] = []
    seconds: list[float] = []
    _reset(env, gate, seed=0)
    begun = time.monotonic()
    while len(results) < MOST_STEPS and len(endings) < EPISODES and time.monotonic() - begun < MOST_SECONDS:
        action = gate.action(rng.uniform(-1, 1, gate.spec.action_size).astype(np.float32))
        before = time.perf_counter()
        answer = gate.call(env.step, action)
        seconds.append(time.perf_counter() - before)
        result = gate.result(answer)
        results.append(result)
        answers.append(answer)
        if result.terminated or result.truncated:
            endings.append(Ending(gate.step, result.terminated, result.truncated))
            _reset(env, gate, seed=len(endings))
    return Trial(results, answers, endings, float(np.median(seconds)) * 1000)


def _reset(env: GymEnv, gate: Gate, seed: int) -> Floats:
    gate.begin(seed)
    try:
        answer = gate.call(env.reset, seed=seed)
    except TypeError as error:
        if "seed" not in str(error):
            raise
        raise UserError(
            f"{gate.where} cannot be seeded ({error}); write def reset(self, *, seed=None, options=None)"
        ) from None
    return gate.first(answer)


def _outside_its_space(env: GymEnv, gate: Gate, trial: Trial) -> Iterator[str]:
    space = env.observation_space
    for observation, *_ in trial.answers:
        if not space.contains(observation):
            dtype = getattr(observation, "dtype", None)
            why = f"its type is {dtype}, not {space.dtype}" if dtype != space.dtype else "a value is beyond its bounds"
            yield f"an observation lies outside observation_space ({why}); make the space say what really comes"
            return


def _reused_buffer(env: GymEnv, gate: Gate, trial: Trial) -> Iterator[str]:
    arrays = [answer[0] for answer in trial.answers[-2:] if isinstance(answer[0], np.ndarray)]
    if len(arrays) == 2 and np.shares_memory(arrays[0], arrays[1]):
        yield "observations share one buffer; T3D copies them, others may not: return a copy from step()"


def _mixed_up_endings(env: GymEnv, gate: Gate, trial: Trial) -> Iterator[str]:
    flags = [flag for answer in trial.answers for flag in answer[2:4]]
    odd = [flag for flag in flags if not isinstance(flag, bool | np.bool_)]
    if odd:
        yield f"terminated and truncated must be True or False; {odd[0]!r} was returned"
    if any(ending.terminated and ending.truncated for ending in trial.endings):
        yield "an episode was terminated and truncated at once; terminated wins, and nothing after it counts"
    lengths = {ending.length for ending in trial.endings}
    if len(trial.endings) == EPISODES and len(lengths) == 1 and all(ending.terminated for ending in trial.endings):
        yield (
            f"every episode was terminated after exactly {lengths.pop()} steps; if that is a time limit, "
            "return truncated instead: termination tells TD3 that there is no future"
        )


def _no_time_limit(env: GymEnv, gate: Gate, trial: Trial) -> Iterator[str]:
    limited = env.spec is not None and env.spec.max_episode_steps is not None
    if not trial.endings and not limited:
        yield (
            f"no episode ended within {len(trial.results)} random steps; if none ever does, wrap it in "
            "gymnasium.wrappers.TimeLimit (evaluation cuts at eval.max_steps)"
        )


def _not_repeatable(env: GymEnv, gate: Gate, trial: Trial) -> Iterator[str]:
    first, second = (_replay(env, gate) for _ in range(2))
    if not np.array_equal(first[:1], second[:1]):
        yield "reset(seed=...) does not decide the first observation; draw from self.np_random, or runs cannot repeat"
    elif not np.array_equal(first, second):
        yield "the same seed and actions give other observations; draw from self.np_random, or runs cannot repeat"


def _replay(env: GymEnv, gate: Gate) -> Floats:
    rng = np.random.default_rng(1)
    seen = [_reset(env, gate, seed=1)]
    for _ in range(REPLAYED):
        action = to_bounds(rng.uniform(-1, 1, gate.spec.action_size).astype(np.float32), gate.spec)
        result = gate.result(gate.call(env.step, action))
        seen.append(result.observation)
        if result.terminated or result.truncated:
            break
    return np.array(seen)


def _slow(env: GymEnv, gate: Gate, trial: Trial) -> Iterator[str]:
    if trial.milliseconds > SLOW_MILLISECONDS:
        hours = trial.milliseconds / 1000 * 1_000_000 / 3600
        yield f"one step takes {trial.milliseconds:.1f} ms: a million steps take {hours:.1f} hours before any learning"


def _badly_scaled(env: GymEnv, gate: Gate, trial: Trial) -> Iterator[str]:
    size = np.abs([result.observation for result in trial.results]).max(axis=0)  # (observation_size,)
    remedy = "scale it, or try --td3.normalise-observations"
    if size.max() > LARGE:
        yield f"observation number {int(size.argmax())} reaches {size.max():.3g}; {remedy}"
    if 0 < size.max() < SMALL:
        yield f"no observation is larger than {size.max():.3g}; {remedy}"
    reward = max(abs(result.reward) for result in trial.results)
    if reward > LARGE:
        yield f"rewards reach {reward:.3g}; TD3 learns best with rewards of about one: scale them down"


CHECKS: list[Callable[[GymEnv, Gate, Trial], Iterator[str]]] = [
    _outside_its_space,
    _reused_buffer,
    _mixed_up_endings,
    _no_time_limit,
    _not_repeatable,
    _slow,
    _badly_scaled,
]
