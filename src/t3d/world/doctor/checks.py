"""The doctor's trial of an environment, a few episodes of random actions, and its checks of what was observed there.

Each check yields one sentence per problem it finds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from t3d.errors import EnvironmentFailed, UserError
from t3d.policy.observations import newest, split
from t3d.policy.spec import Spec, random_action
from t3d.world.guard import EnvGuard, GymEnv, Result
from t3d.world.spec import IMAGES, size_of

MOST_STEPS, MOST_SECONDS, EPISODES = 2000, 1.0, 3  # chosen: training should start without a noticeable delay
SLOW_MILLISECONDS = 5.0  # chosen: as long as an update takes on one core
LARGE, SMALL = 100.0, 1e-3  # chosen: networks learn best with inputs and targets of about one
REPLAYED = 20  # steps played twice to see whether the seed determines everything
ENOUGH = 100  # observations needed before a value that never changed is reported; chosen
MOST_NAMED = 4  # of the values that never changed; chosen
MANY = 1000  # values of an array with several axes that may have been meant to be an image; chosen


class Trial:
    """What the doctor observed; keeps only statistics and the newest observations, because these may be large."""

    def __init__(self, env: GymEnv, guard: EnvGuard) -> None:
        self.env, self.guard = env, guard
        self.steps, self.bad_values = 0, 0
        self.outside = ""  # how an observation violated its space
        self.newest: list[Any] = []  # the last two observations, as returned
        self.odd_flags: list[Any] = []
        self.observed = 0  # valid observations
        self.least = self.most = np.zeros(guard.spec.observation_size, np.float32)  # of each value, over all of them
        self.changed = dict.fromkeys(guard.spec.images, False)
        self._first_frame = np.zeros(0, np.uint8)
        self.largest_reward = 0.0
        self.endings: list[tuple[int, bool, bool]] = []  # length, terminated, truncated
        self.seconds: list[float] = []

    def see(self, raw: Any, flat: NDArray[Any]) -> None:
        """Takes an observation, as returned and as checked; one that the guard refused or fixed is only counted."""
        if len(self.guard.faults) > self.bad_values:
            self.bad_values = len(self.guard.faults)
            return
        self.newest = [*self.newest[-1:], raw]
        vector, frame = split(newest(flat, self.guard.spec), self.guard.spec)
        self._first_frame = self._first_frame if self.observed else frame
        for image in self.guard.spec.images:
            pixels = slice(image.start, image.stop)
            self.changed[image] |= not np.array_equal(self._first_frame[pixels], frame[pixels])
        self.least = np.minimum(self.least, vector) if self.observed else vector
        self.most = np.maximum(self.most, vector) if self.observed else vector
        self.observed += 1
        space = self.env.observation_space
        if not self.outside and not space.contains(raw):
            dtype = getattr(raw, "dtype", space.dtype)
            is_other = dtype != space.dtype
            self.outside = f"its type is {dtype}, not {space.dtype}" if is_other else "a value is out of bounds"

    def step(self, rng: np.random.Generator) -> Result:
        action = self.guard.action(random_action(rng, self.guard.spec))
        before = time.perf_counter()
        answer = self.guard.call(self.env.step, action)
        self.seconds.append(time.perf_counter() - before)
        result = self.guard.result(answer)
        self.steps += 1
        self.see(answer[0], result.observation)
        self.largest_reward = max(self.largest_reward, abs(result.reward))
        self.odd_flags += [flag for flag in answer[2:4] if not isinstance(flag, bool | np.bool_)][:1]
        if result.terminated or result.truncated:
            self.endings.append((self.guard.step, result.terminated, result.truncated))
        return result


def play(env: GymEnv, guard: EnvGuard, episodes: int = EPISODES) -> Trial:
    """Plays some episodes of random actions; every value passes the guard, which refuses bad ones."""
    rng, trial = np.random.default_rng(0), Trial(env, guard)
    trial.see(*reset(env, guard, seed=0))
    started = time.monotonic()
    while trial.steps < MOST_STEPS and len(trial.endings) < episodes and time.monotonic() - started < MOST_SECONDS:
        result = trial.step(rng)
        if result.terminated or result.truncated:
            trial.see(*reset(env, guard, seed=len(trial.endings)))
    return trial


def reset(env: GymEnv, guard: EnvGuard, seed: int) -> tuple[Any, NDArray[Any]]:
    """Starts an episode; returns its first observation, as returned by the environment and as checked."""
    raw: list[Any] = []

    def call(seed: int | None) -> Any:
        answer = env.reset(seed=seed)
        raw[:] = [answer[0] if isinstance(answer, tuple) and answer else None]
        return answer

    try:
        flat = guard.begin(seed, seed, call)
    except EnvironmentFailed as error:
        if not (isinstance(error.__cause__, TypeError) and "seed" in str(error.__cause__)):
            raise
        raise UserError(
            f"{guard.where} cannot be seeded ({error.__cause__}); write def reset(self, *, seed=None, options=None)"
        ) from None
    return raw[0], flat


def _values(trial: Trial) -> Iterator[str]:
    if trial.bad_values:
        first = trial.guard.faults[0]
        yield (
            f"{trial.bad_values} of {trial.steps} steps returned a bad value (first: {first.text}); "
            f"env.bad_values={trial.guard.bad_values} keeps such values out of the replay"
        )
    if trial.outside:
        yield f"an observation lies outside observation_space ({trial.outside}); make the space match what is returned"
    if len(trial.newest) == 2:
        before, after = (list(_arrays(raw)) for raw in trial.newest)
        if any(np.shares_memory(array, other) for array, other in zip(before, after, strict=False)):
            yield "observations share one buffer; T3D copies them, other libraries may not: return a copy from step()"


def _arrays(raw: Any) -> Iterator[Any]:
    if isinstance(raw, np.ndarray):
        yield raw
    elif isinstance(raw, dict | tuple):
        for part in raw.values() if isinstance(raw, dict) else raw:
            yield from _arrays(part)


def _endings(trial: Trial) -> Iterator[str]:
    if trial.odd_flags:
        yield f"terminated and truncated must be True or False; {trial.odd_flags[0]!r} was returned"
    if any(terminated and truncated for _, terminated, truncated in trial.endings):
        yield "an episode was terminated and truncated at once; terminated wins, and nothing after it counts"
    lengths = {length for length, *_ in trial.endings}
    if len(trial.endings) == EPISODES and len(lengths) == 1 and all(terminated for _, terminated, _ in trial.endings):
        yield (
            f"every episode was terminated after exactly {lengths.pop()} steps; if that is a time limit, "
            "return truncated instead: termination tells TD3 that there is no future"
        )
    if not trial.endings and trial.steps >= MOST_STEPS // 2 and not _has_limit(trial.env):
        yield (
            f"no episode ended within {trial.steps} random steps; if none ever does, wrap the environment in "
            "gymnasium.wrappers.TimeLimit (evaluation stops at eval.max_steps)"
        )


def _has_limit(env: Any) -> bool:
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            return True
        env = env.env
    return False


def _not_repeatable(trial: Trial) -> Iterator[str]:
    first, second = (_replay(trial.env, trial.guard) for _ in range(2))
    if not np.array_equal(first[0], second[0]):
        yield "reset(seed=...) does not fix the first observation; draw from self.np_random, or runs cannot be repeated"
    elif any(not np.array_equal(before, after) for before, after in zip(first, second, strict=False)):
        yield "the same seed and actions give other observations; draw from self.np_random, or runs cannot be repeated"


def _replay(env: GymEnv, guard: EnvGuard) -> list[NDArray[Any]]:
    """Returns the first observations of an episode with a fixed seed and actions; fewer of them if steps are slow."""
    rng, started = np.random.default_rng(1), time.monotonic()
    observations = [reset(env, guard, seed=1)[1]]
    while len(observations) < REPLAYED and time.monotonic() - started < MOST_SECONDS:
        action = guard.action(random_action(rng, guard.spec))
        result = guard.result(guard.call(env.step, action))
        observations.append(result.observation)
        if result.terminated or result.truncated:
            break
    return observations


def images(spec: Spec) -> Iterator[str]:
    """Says what is done with images, and whether motion can be seen in them."""
    if spec.images:
        names = " and ".join(f"{image.name} {size_of(image)}" for image in spec.images)
        are, them = ("are encoded as images", "them") if len(spec.images) > 1 else ("is encoded as an image", "it")
        frames = f", {spec.stack} frames stacked" if spec.stack > 1 else ""
        beside = f"; the vector of {spec.own_size:,} values beside {them} as it is" if spec.own_size else ""
        still = "" if spec.stack > 1 else "; one frame cannot show motion: if that matters, use --env.frame-stack 3"
        yield f"{names} {are}{frames}{beside}{still}"
    for part in spec.observation:
        if part.stop - part.start >= MANY and len(part.shape) > 1:
            sides = " x ".join(map(str, part.shape))
            yield (
                f"{part.name} of {sides} is not recognised as an image and is flattened to {part.stop - part.start:,} "
                f"values; {IMAGES}"
            )


def _images(trial: Trial) -> Iterator[str]:
    yield from images(trial.guard.spec)
    if trial.observed >= ENOUGH:
        for image in trial.guard.spec.images:
            if not trial.changed[image]:
                yield f"{image.name} never changed in {trial.steps} steps; check what the camera sees"


def _never_changes(trial: Trial) -> Iterator[str]:
    if trial.observed < ENOUGH or not _constant(trial).any():
        return
    trial = play(trial.env, trial.guard, episodes=MOST_STEPS)  # longer, because a foot may rarely touch the ground
    constant = _constant(trial)
    for seed in (1, 2):  # what differs between episodes may be constant within them
        first = reset(trial.env, trial.guard, seed=seed)[1]
        constant &= split(first, trial.guard.spec)[0] == trial.least
    indices = np.flatnonzero(constant)
    if len(indices):
        named = ", ".join(map(str, indices[:MOST_NAMED]))
        more = f" and {len(indices) - MOST_NAMED:,} more" if len(indices) > MOST_NAMED else ""
        yield f"observation value {named}{more} never changed; leave it out, or check that step() sets it"


def _constant(trial: Trial) -> NDArray[np.bool_]:
    """Marks the values that have not changed, but not choices that did not occur."""
    constant: NDArray[np.bool_] = trial.least == trial.most
    for part in trial.guard.spec.observation:
        vectors = np.split(constant[part.start : part.stop], np.cumsum(part.counts)[:-1])  # one, but of MultiDiscrete
        for vector in vectors if part.first_choice is not None else []:
            vector[:] = vector.all()
    return constant


def _speed_and_scale(trial: Trial) -> Iterator[str]:
    milliseconds = float(np.median(trial.seconds)) * 1000
    if milliseconds > SLOW_MILLISECONDS:
        hours = milliseconds / 1000 * 1_000_000 / 3600
        yield f"one step takes {milliseconds:.1f} ms: a million steps take {hours:.1f} hours before any learning"
    remedy = "scale it, or try --normalise-observations"
    each = np.maximum(np.abs(trial.least), np.abs(trial.most))
    largest, reward = each.max(initial=0), trial.largest_reward
    if largest > LARGE:
        yield f"observation value {int(each.argmax())} reaches {largest:.3g}; {remedy}"
    if 0 < largest < SMALL:
        yield f"no observation is larger than {largest:.3g}; {remedy}"
    if reward > LARGE:
        yield f"rewards reach {reward:.3g} in magnitude; TD3 learns best with rewards of about one: --scale-rewards"
    if 0 < reward < SMALL:
        yield f"no reward is larger than {reward:.3g}; TD3 learns best with rewards of about one: scale them up"
    if reward == 0:
        yield f"all {trial.steps} rewards of random actions were zero; TD3 learns only from rewards that it sees"


CHECKS: list[Callable[[Trial], Iterator[str]]] = [
    _values,
    _endings,
    _not_repeatable,
    _images,
    _never_changes,
    _speed_and_scale,
]
