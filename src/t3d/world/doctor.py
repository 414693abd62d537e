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
from t3d.world.numbers import random_action

MOST_STEPS, MOST_SECONDS, EPISODES = 2000, 1.0, 3  # chosen: no more than a moment before every training
SLOW_MILLISECONDS = 5.0  # chosen: as long as an update takes on one core
LARGE, SMALL = 100.0, 1e-3  # chosen: networks like inputs and targets of about one
REPLAYED = 20  # steps played twice to see whether a seed decides everything


class Ending(NamedTuple):
    """How an episode of the trial ended."""

    length: int
    terminated: bool
    truncated: bool


class Trial:
    """What the doctor sees; only figures and the newest answers are kept, because observations may be large."""

    def __init__(self, env: GymEnv, gate: Gate) -> None:
        self.env, self.gate = env, gate
        self.steps, self.bad_values = 0, 0
        self.outside = ""  # how an observation lay outside its space
        self.newest: list[Any] = []  # the last two observations, as returned
        self.odd_flags: list[Any] = []
        self.largest = np.zeros(gate.spec.observation_size)
        self.largest_reward = 0.0
        self.endings: list[Ending] = []
        self.seconds: list[float] = []

    def see(self, raw: Any, flat: Floats) -> None:
        """An observation, as returned and as checked; one that the gate had to refuse or mend only counts."""
        if len(self.gate.faults) > self.bad_values:
            self.bad_values = len(self.gate.faults)
            return
        self.newest = [*self.newest[-1:], raw]
        self.largest = np.maximum(self.largest, np.abs(flat))
        if not self.outside and not self.env.observation_space.contains(raw):
            self.outside = _how_outside(raw, self.env.observation_space)

    def step(self, rng: np.random.Generator) -> Result:
        """One random action."""
        action = self.gate.action(random_action(rng, self.gate.spec))
        before = time.perf_counter()
        answer = self.gate.call(self.env.step, action)
        self.seconds.append(time.perf_counter() - before)
        result = self.gate.result(answer)
        self.steps += 1
        self.see(answer[0], result.observation)
        self.largest_reward = max(self.largest_reward, abs(result.reward))
        self.odd_flags += [flag for flag in answer[2:4] if not isinstance(flag, bool | np.bool_)][:1]
        if result.terminated or result.truncated:
            self.endings.append(Ending(self.gate.step, result.terminated, result.truncated))
        return result


def examine(make_env: EnvFactory, bad_values: str = "raise") -> list[str]:
    """Warnings about the environment that this makes; raises UserError for what training cannot work with."""
    env = make_env()
    if not isinstance(env, gym.Env | VectorEnv):
        raise UserError(f"the environment factory returned {type(env).__name__}, not a gymnasium.Env or VectorEnv")
    try:
        gate = Gate(spec_of(env), name_of(env), bad_values=bad_values)
        if isinstance(env, VectorEnv):
            return [f"{gate.where} is a VectorEnv; its environments are checked only while they are stepped"]
        trial = _play(env, gate)
        return [f"{gate.where}: {text}" for check in CHECKS for text in check(trial)]
    finally:
        env.close()


def _play(env: GymEnv, gate: Gate) -> Trial:
    """Some episodes of random actions; every value passes the gate, which refuses what is not sound."""
    rng, trial = np.random.default_rng(0), Trial(env, gate)
    trial.see(*_reset(env, gate, seed=0))
    begun = time.monotonic()
    while trial.steps < MOST_STEPS and len(trial.endings) < EPISODES and time.monotonic() - begun < MOST_SECONDS:
        result = trial.step(rng)
        if result.terminated or result.truncated:
            trial.see(*_reset(env, gate, seed=len(trial.endings)))
    return trial


def _reset(env: GymEnv, gate: Gate, seed: int) -> tuple[Any, Floats]:
    """The first observation of an episode, as returned and as checked."""
    raw: list[Any] = []

    def reset(seed: int | None) -> Any:
        answer = env.reset(seed=seed)
        raw[:] = [answer[0] if isinstance(answer, tuple) and answer else None]
        return answer

    try:
        flat = gate.begin(seed, seed, reset)
    except TypeError as error:
        if "seed" not in str(error):
            raise
        raise UserError(
            f"{gate.where} cannot be seeded ({error}); write def reset(self, *, seed=None, options=None)"
        ) from None
    return raw[0], flat


def _how_outside(raw: Any, space: gym.Space[Any]) -> str:
    dtype = getattr(raw, "dtype", space.dtype)
    if dtype != space.dtype:
        return f"its type is {dtype}, not {space.dtype}"
    return "a value is beyond its bounds, or of another type" if space.shape is None else "a value is beyond its bounds"


def _outside_its_space(trial: Trial) -> Iterator[str]:
    if trial.outside:
        yield f"an observation lies outside observation_space ({trial.outside}); make the space say what really comes"


def _bad_values(trial: Trial) -> Iterator[str]:
    if trial.bad_values:
        first = trial.gate.faults[0]
        yield (
            f"{trial.bad_values} of {trial.steps} steps held a bad value (first: {first.text}); "
            f"env.bad_values={trial.gate.bad_values} keeps such out of the replay"
        )


def _reused_buffer(trial: Trial) -> Iterator[str]:
    if len(trial.newest) < 2:
        return
    before, after = (list(_arrays(raw)) for raw in trial.newest)
    if any(np.shares_memory(one, other) for one, other in zip(before, after, strict=False)):
        yield "observations share one buffer; T3D copies them, others may not: return a copy from step()"


def _arrays(raw: Any) -> Iterator[Any]:
    """All arrays in an observation, however nested."""
    if isinstance(raw, np.ndarray):
        yield raw
    elif isinstance(raw, dict | tuple):
        for part in raw.values() if isinstance(raw, dict) else raw:
            yield from _arrays(part)


def _mixed_up_endings(trial: Trial) -> Iterator[str]:
    if trial.odd_flags:
        yield f"terminated and truncated must be True or False; {trial.odd_flags[0]!r} was returned"
    if any(ending.terminated and ending.truncated for ending in trial.endings):
        yield "an episode was terminated and truncated at once; terminated wins, and nothing after it counts"
    lengths = {ending.length for ending in trial.endings}
    if len(trial.endings) == EPISODES and len(lengths) == 1 and all(ending.terminated for ending in trial.endings):
        yield (
            f"every episode was terminated after exactly {lengths.pop()} steps; if that is a time limit, "
            "return truncated instead: termination tells TD3 that there is no future"
        )


def _no_time_limit(trial: Trial) -> Iterator[str]:
    if not trial.endings and trial.steps >= MOST_STEPS // 2 and not _has_limit(trial.env):
        yield (
            f"no episode ended within {trial.steps} random steps; if none ever does, wrap it in "
            "gymnasium.wrappers.TimeLimit (evaluation cuts at eval.max_steps)"
        )


def _has_limit(env: Any) -> bool:
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            return True
        env = env.env
    return False


def _not_repeatable(trial: Trial) -> Iterator[str]:
    first, second = (_replay(trial.env, trial.gate) for _ in range(2))
    if not np.array_equal(first[0], second[0]):
        yield "reset(seed=...) does not decide the first observation; draw from self.np_random, or runs cannot repeat"
    elif any(not np.array_equal(one, other) for one, other in zip(first, second, strict=False)):
        yield "the same seed and actions give other observations; draw from self.np_random, or runs cannot repeat"


def _replay(env: GymEnv, gate: Gate) -> list[Floats]:
    """The first observations of an episode of fixed seed and actions; fewer of them where steps are slow."""
    rng, begun = np.random.default_rng(1), time.monotonic()
    seen = [_reset(env, gate, seed=1)[1]]
    while len(seen) < REPLAYED and time.monotonic() - begun < MOST_SECONDS:
        action = gate.action(random_action(rng, gate.spec))
        result = gate.result(gate.call(env.step, action))
        seen.append(result.observation)
        if result.terminated or result.truncated:
            break
    return seen


def _slow(trial: Trial) -> Iterator[str]:
    milliseconds = float(np.median(trial.seconds)) * 1000
    if milliseconds > SLOW_MILLISECONDS:
        hours = milliseconds / 1000 * 1_000_000 / 3600
        yield f"one step takes {milliseconds:.1f} ms: a million steps take {hours:.1f} hours before any learning"


def _badly_scaled(trial: Trial) -> Iterator[str]:
    remedy = "scale it, or try --td3.normalise-observations"
    largest, reward = trial.largest.max(), trial.largest_reward
    if largest > LARGE:
        yield f"observation number {int(trial.largest.argmax())} reaches {largest:.3g}; {remedy}"
    if 0 < largest < SMALL:
        yield f"no observation is larger than {largest:.3g}; {remedy}"
    if reward > LARGE:
        yield f"rewards reach {reward:.3g}; TD3 learns best with rewards of about one: scale them down"
    if 0 < reward < SMALL:
        yield f"no reward is larger than {reward:.3g}; TD3 learns best with rewards of about one: scale them up"
    if reward == 0:
        yield f"all {trial.steps} rewards of random actions were zero; TD3 learns only from rewards that it meets"


CHECKS: list[Callable[[Trial], Iterator[str]]] = [
    _bad_values,
    _outside_its_space,
    _reused_buffer,
    _mixed_up_endings,
    _no_time_limit,
    _not_repeatable,
    _slow,
    _badly_scaled,
]
