"""The doctor's checks: each looks at a trial and yields one sentence per problem it finds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from t3d.policy.actions import random_action
from t3d.policy.observations import split
from t3d.policy.spec import Spec
from t3d.world.doctor.trial import EPISODES, MOST_SECONDS, MOST_STEPS, Trial, play, reset
from t3d.world.guard import EnvGuard, GymEnv
from t3d.world.spec import size_of

SLOW_MILLISECONDS = 5.0  # chosen: as long as an update takes on one core
LARGE, SMALL = 100.0, 1e-3  # chosen: networks learn best with inputs and targets of about one
REPLAYED = 20  # steps played twice to see whether the seed determines everything
ENOUGH = 100  # observations needed before a value that never changed is reported; chosen
MOST_NAMED = 4  # of the values that never changed; chosen
MANY = 1000  # values of an array with several axes that may have been meant to be an image; chosen


def _outside_its_space(trial: Trial) -> Iterator[str]:
    if trial.outside:
        yield f"an observation lies outside observation_space ({trial.outside}); make the space match what is returned"


def _bad_values(trial: Trial) -> Iterator[str]:
    if trial.bad_values:
        first = trial.guard.faults[0]
        yield (
            f"{trial.bad_values} of {trial.steps} steps returned a bad value (first: {first.text}); "
            f"env.bad_values={trial.guard.bad_values} keeps such values out of the replay"
        )


def _reused_buffer(trial: Trial) -> Iterator[str]:
    if len(trial.newest) < 2:
        return
    before, after = (list(_arrays(raw)) for raw in trial.newest)
    if any(np.shares_memory(one, other) for one, other in zip(before, after, strict=False)):
        yield "observations share one buffer; T3D copies them, other libraries may not: return a copy from step()"


def _arrays(raw: Any) -> Iterator[Any]:
    """Yields all arrays of an observation, however nested."""
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
    elif any(not np.array_equal(one, other) for one, other in zip(first, second, strict=False)):
        yield "the same seed and actions give other observations; draw from self.np_random, or runs cannot be repeated"


def _replay(env: GymEnv, guard: EnvGuard) -> list[NDArray[Any]]:
    """Returns the first observations of an episode with a fixed seed and actions; fewer of them if steps are slow."""
    rng, started = np.random.default_rng(1), time.monotonic()
    seen = [reset(env, guard, seed=1)[1]]
    while len(seen) < REPLAYED and time.monotonic() - started < MOST_SECONDS:
        action = guard.action(random_action(rng, guard.spec))
        result = guard.result(guard.call(env.step, action))
        seen.append(result.observation)
        if result.terminated or result.truncated:
            break
    return seen


def images(spec: Spec) -> Iterator[str]:
    """Says what is done with images, and whether motion can be seen in them."""
    if spec.images:
        chosen = " and ".join(f"{image.name} {size_of(image)}" for image in spec.images)
        many = len(spec.images) > 1
        frames = f", {spec.stack} frames stacked" if spec.stack > 1 else ""
        values = spec.own_size
        beside = f"; the vector of {values:,} values beside {'them' if many else 'it'} as it is" if values else ""
        still = "" if spec.stack > 1 else "; one frame cannot show motion: if that matters, use --env.frame-stack 3"
        yield f"{chosen} {'are encoded as images' if many else 'is encoded as an image'}{frames}{beside}{still}"
    for part in spec.observation:
        if part.stop - part.start >= MANY and len(part.shape) > 1:
            sides = " x ".join(map(str, part.shape))
            yield (
                f"{part.name} of {sides} is not recognised as an image and is flattened to {part.stop - part.start:,} "
                "values; an image is uint8, or floats with bounds 0 and 1, of 32 to 128 pixels each way and at most 12 "
                "channels"
            )


def _images(trial: Trial) -> Iterator[str]:
    yield from images(trial.guard.spec)


def _still_images(trial: Trial) -> Iterator[str]:
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
        constant &= (split(first, trial.guard.spec)[0] if trial.guard.spec.images else first) == trial.least
    indices = np.flatnonzero(constant)
    if len(indices):
        named = ", ".join(map(str, indices[:MOST_NAMED]))
        more = f" and {len(indices) - MOST_NAMED:,} more" if len(indices) > MOST_NAMED else ""
        yield f"observation value {named}{more} never changed; leave it out, or check that step() sets it"


def _constant(trial: Trial) -> NDArray[np.bool_]:
    """Marks the values that have not changed, but not choices that did not occur."""
    constant: NDArray[np.bool_] = trial.least == trial.most
    for part in trial.guard.spec.observation:
        mine = constant[part.start : part.stop]
        if part.first_choice is not None and not mine.all():
            mine[:] = False
    return constant


def _slow(trial: Trial) -> Iterator[str]:
    milliseconds = float(np.median(trial.seconds)) * 1000
    if milliseconds > SLOW_MILLISECONDS:
        hours = milliseconds / 1000 * 1_000_000 / 3600
        yield f"one step takes {milliseconds:.1f} ms: a million steps take {hours:.1f} hours before any learning"


def _badly_scaled(trial: Trial) -> Iterator[str]:
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
    _bad_values,
    _outside_its_space,
    _reused_buffer,
    _mixed_up_endings,
    _no_time_limit,
    _not_repeatable,
    _images,
    _still_images,
    _never_changes,
    _slow,
    _badly_scaled,
]
