"""A fingerprint of an environment: by it a run notices that it resumes, or a policy plays, in another one.

What it holds beside the id, the versions and the spaces, which a run stores anyway: the class, the arguments, and what
a short episode of a fixed seed and fixed actions gave.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3d.config import Config, EnvConfig, plain
from t3d.config.settings import short_id
from t3d.config.sweeps import by_values, values_title
from t3d.errors import UserError
from t3d.files import to_fields, to_list, to_number
from t3d.policy.acting import SavedPolicy
from t3d.policy.observations import newest, split
from t3d.policy.spec import Part, Spec
from t3d.seeds import derive
from t3d.world.batch import EnvBatch, SingleEnvs, open_batch
from t3d.world.factory import label_of
from t3d.world.guard import ENVIRONMENT_ERRORS, EnvFactory
from t3d.world.spec import size_of

SEED = derive(0, "fingerprint")  # of no run's own streams
STEPS = 5  # chosen: dynamics and rewards show, and rounding has not grown yet
MOST_SECONDS = 0.5  # then no further step is taken and no second environment made; chosen
MOST_VALUES = 32  # of an observation: of a longer one the means of as many parts are kept; chosen
DIGITS = 6
TOLERANCES = {"observations": (1e-5, 1e-4), "images": (2.0, 0.0), "rewards": (1e-5, 1e-4)}  # absolute, relative; chosen


def fingerprint(make_env: EnvFactory, cfg: EnvConfig, beat: Callable[[], object] = int) -> dict[str, Any]:
    """Returns the fingerprint as plain values; its episode is empty if a seed does not decide what happens."""
    return _look(make_env, cfg, beat)[0]


def _look(make_env: EnvFactory, cfg: EnvConfig, beat: Callable[[], object]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the fingerprint and the outline of an environment.

    To find out what a seed decides it plays in two, or twice in one that is slow. Nothing else ever uses these.
    """
    started = time.monotonic()
    with _global_streams_kept():
        with closing(open_batch(make_env, cfg, "the fingerprint", beat=beat)) as batch:
            env: Any = batch.envs[0].gym if isinstance(batch, SingleEnvs) else batch.env
            first = next(iter(getattr(env.unwrapped, "envs", ())), env)  # of those in a VectorEnv
            label, spaces, episode = label_of(first), outline(batch.spec), _episode(batch)
            is_slow = time.monotonic() - started > MOST_SECONDS
            again = _episode(batch) if is_slow else {}
        if not is_slow:
            with closing(open_batch(make_env, cfg, "the fingerprint", beat=beat)) as batch:
                again = _episode(batch)
    is_decided = bool(episode and again) and not _changes(episode, again)
    wrappers = {"wrappers": [*map(short_id, cfg.wrappers)]} if cfg.wrappers else {}
    return {"class": label, "args": cfg.args, **wrappers, "episode": episode if is_decided else {}}, spaces


def fingerprints(
    cfg: Config, factory_of: Callable[[EnvConfig], EnvFactory], beat: Callable[[], object] = int
) -> dict[str, Any]:
    """Returns the fingerprint of a run: of its first member's environment and, as `others`, of those unlike it.

    Members and evaluations may have other arguments, but all must have the same observations and actions.
    """
    (_, first), *others = _environments(cfg).items()
    stored, expected = _look(factory_of(first), first, beat)
    prints = dict[str, Any]()
    for title, env in others:
        prints[title], spaces = _look(factory_of(env), env, beat)
        if changed := difference(expected, spaces, "in training", f"in {title}"):
            raise UserError(f"all environments of a run need the same observations and actions: {changed}")
    return {**stored, **({"others": prints} if others else {})}


def _environments(cfg: Config) -> dict[str, EnvConfig]:
    """Returns the different environments of a run, and what each is for; the first member's comes first."""
    known: dict[str, EnvConfig] = {}
    for values, (member, *_) in by_values(cfg.members).items():
        suffix = f" with {values_title(values)}" if values else ""
        envs = {f"training{suffix}": cfg.env_of(member)}
        envs |= {f"evaluation{name and f' {name}'}{suffix}": cfg.eval_env(member, name) for name in cfg.eval.set_names}
        for title, env in envs.items():
            if env not in known.values():
                known[title] = env
    return known


def least_differences(stored: Any, now: Mapping[str, Any]) -> list[str]:
    """Says how the task differs from the one of a run that is most like it."""
    others = stored.get("others") if isinstance(stored, dict) else None
    known = [stored, *(others.values() if isinstance(others, dict) else ())]
    return min((differences(each, now) for each in known), key=len)


def differences(then: Any, now: Mapping[str, Any]) -> list[str]:
    """Says how the task differs between two fingerprints, the first of which is from a file and may be anything.

    A class of another name that plays the same is the same task.
    """
    if not isinstance(then, dict) or not isinstance(then.get("args"), dict):
        return []
    before, after = then["args"], now["args"]
    texts = [
        f"argument {key} {plain(before.get(key))} -> {plain(after.get(key))}"
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    ]
    if (wrappers := then.get("wrappers", [])) != now.get("wrappers", []):
        texts.append(f"wrappers {wrappers!s:.100} -> {now.get('wrappers', [])}")
    others = to_fields(then.get("others", {}))
    for title, other in now.get("others", {}).items():
        texts += [f"in {title}: {text}" for text in differences(others.get(title), other)]
    is_known = bool(then.get("episode") and now["episode"])
    changes = _changes(then["episode"], now["episode"]) if is_known else []
    if then.get("class") != now["class"] and (changes or not is_known):
        texts.append(f"class {then.get('class')!s:.100} -> {now['class']}")
    return texts + changes


def _episode(batch: EnvBatch) -> dict[str, list[Any]]:
    started, spec = time.monotonic(), batch.spec
    try:
        for _ in range(2):  # PyBullet differs on the first reset only
            observations = [batch.reset(position, SEED, 0) for position in range(batch.count)]
        shown, rewards = [observations[0]], list[float]()
        while len(rewards) < STEPS and time.monotonic() - started < MOST_SECONDS:
            action = np.sin(np.arange(1, spec.action_size + 1) * (len(rewards) + 1.0))
            result = batch.step(np.tile(action.astype(np.float32), (batch.count, 1)))[0]
            if not result.valid:
                return {}
            shown.append(result.observation)
            rewards.append(_rounded(result.reward))
            if result.terminated or result.truncated:
                break
    except ENVIRONMENT_ERRORS:
        return {}
    parts = [split(newest(observation, spec), spec) for observation in shown]
    images = {"images": [_means(frame) for _, frame in parts]} if spec.images else {}
    return {"observations": [_means(vector) for vector, _ in parts], **images, "rewards": rewards}


def _means(values: NDArray[Any]) -> list[float]:
    parts = np.array_split(values.astype(np.float64), min(len(values), MOST_VALUES)) if len(values) else []
    return [_rounded(float(part.mean())) for part in parts]


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _changes(then: Any, now: dict[str, list[Any]]) -> list[str]:
    """Says what differs between two episodes, as far as both were played, by more than rounding explains."""
    texts = []
    for name, (absolute, relative) in TOLERANCES.items():
        try:
            before, after = np.asarray(then.get(name, []), np.float64), np.asarray(now.get(name, []))
        except (AttributeError, TypeError, ValueError, OverflowError):  # a file may say anything
            continue
        if before.ndim != after.ndim or before.shape[1:] != after.shape[1:]:
            continue  # other spaces, which are refused
        count = min(len(before), len(after))
        gap = np.abs(before[:count] - after[:count])
        outside = gap > absolute + relative * np.maximum(np.abs(before[:count]), np.abs(after[:count]))
        if outside.any():
            first = int(outside.reshape(count, -1).any(axis=1).argmax()) + (name == "rewards")
            texts.append(f"{name} of a seeded episode differ from step {first} by up to {gap.max():.3g}")
    return texts


@contextmanager
def _global_streams_kept() -> Iterator[None]:
    """Restores the random streams of the process, which an environment may draw from."""
    torch: Any = sys.modules.get("torch")
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    of_torch = torch and torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002
        if of_torch is not None:
            torch.set_rng_state(of_torch)


def check_fits(policy: SavedPolicy, spec: Spec, env_id: str) -> None:
    """Raises UserError if a policy was trained on an environment with other spaces."""
    if changed := difference(outline(policy.spec), outline(spec)):
        raise UserError(f"the policy does not fit {env_id}: {changed}")


def outline(spec: Spec) -> dict[str, Any]:
    """Describes an environment's spaces in plain values that a checkpoint can hold."""
    images = {"images": [[image.name, size_of(image)] for image in spec.images], "stack": spec.stack}
    return {
        "observed": spec.observation_size,
        "observation": [_outline_of(part) for part in spec.observation],
        "action_shape": list(spec.action_shape),
        "bounds": [list(pair) for pair in zip(spec.action_low.tolist(), spec.action_high.tolist(), strict=True)],
        **(images if spec.images else {}),
        **({"max_action_change": spec.max_action_change} if spec.max_action_change else {}),
    }


def _outline_of(part: Part) -> list[Any]:
    if isinstance(part.first_choice, tuple):
        return [f"{part.name} of {part.counts} choices", list(part.shape), list(part.first_choice)]
    return [part.name, list(part.shape), part.first_choice]


def difference(then: dict[str, Any], now: dict[str, Any], first: str = "then", second: str = "now") -> str:
    """Describes the first difference between two outlines, the first from a file; empty if there is none."""
    for name, (default, sentence, in_words) in COMPARED.items():
        before, after = to_fields(then).get(name, default), now.get(name, default)
        if before != after:
            return sentence.format(in_words(before), in_words(after), then=first, now=second)
    for index, (before, after) in enumerate(zip(to_list(then["bounds"]), now["bounds"], strict=True)):
        if before != after:
            return f"the bounds of action {index} were {before} {first}, {second} {after}"
    return ""


def _parts(parts: Any) -> str:
    return ", ".join(f"{name} {shape}" for name, shape, _ in map(to_list, to_list(parts)))


def _images(images: Any) -> str:
    return " and ".join(f"the image {name} of {size}" for name, size in map(to_list, to_list(images))) or "no image"


def _limit(limit: Any) -> str:
    return f"by at most {to_number(limit):g} of their range per step" if limit else "freely"


COMPARED: dict[str, tuple[Any, str, Callable[[Any], str]]] = {  # what an outline that lacks it means, and sentences
    "images": ([], "it observed {} {then}, {} {now}", _images),
    "stack": (1, "its observations had {} frames {then}, {} {now} (env.frame_stack)", str),
    "max_action_change": (0.0, "its actions changed {} {then}, {} {now} (env.max_action_change)", _limit),
    "observed": (None, "{} observation values {then}, {} {now}", str),
    "observation": (None, "its observation was {} {then}, {now} {}", _parts),
    "action_shape": (None, "its actions had the shape {} {then}, {now} {}", str),
}
