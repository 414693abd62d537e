"""What a program may tell its run between two events: numbers of its own, and other settings from now on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np

from t3d.config import Config, NoiseConfig, flat, merge_named
from t3d.config.fields import settings_where
from t3d.config.sweeps import ENV_ARGS, noun, swept
from t3d.errors import UserError, did_you_mean
from t3d.policy.observations import numbers
from t3d.world.batch import open_batch
from t3d.world.factory import checked_factory
from t3d.world.guard import EnvFactory
from t3d.world.make import env_factory

NAME = re.compile(r"[A-Za-z]\w{0,63}", re.ASCII)


def own_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns numbers as an event holds them; raises if one is not finite, or has no usable name."""
    for name, value in values.items():
        if not NAME.fullmatch(name):
            raise UserError(f"{name!r:.80} is no name of a number: use a letter, then letters, digits and _")
        if not np.isfinite(numbers(name, value, ())):
            raise UserError(f"{name}={value!r:.80} is not a finite number")
    return {name: float(value) for name, value in values.items()}


def live_settings(cfg: Config, make_env: EnvFactory | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings by their full names, converted and checked; raises if one cannot be changed in this run."""
    sections = {cfg.section: type(cfg.settings_of()), "noise": NoiseConfig}
    full_names = {
        name: f"{section}.{name}"
        for section, kind in sections.items()
        for name in settings_where(kind, lambda about: about.get("live", False))
    }
    given = {name: value for name, value in settings.items() if name != "env_args"}
    for name in given:
        if name not in (*full_names, *full_names.values()):
            known = ", ".join([*full_names, "env_args"])
            raise UserError(
                f"{name} cannot be changed while a run trains{did_you_mean(name, full_names)}; these can: {known}"
            )
    env_args = {ENV_ARGS + name: value for name, value in settings.get("env_args", {}).items()}
    values = {full_names.get(name, name): value for name, value in given.items()} | env_args
    for name in values:
        if name in swept(cfg.members):
            raise UserError(f"{name} is what the {noun(cfg.members)}s of this sweep differ in; it cannot be changed")
        if name.removeprefix(ENV_ARGS) in cfg.env.schedule:
            raise UserError(f"{name} is in env.schedule, which sets it for each episode; it cannot be changed")
    changed = merge_named(cfg, values)
    if env_args:  # an episode is started with them, so that a mistake is a sentence and the run goes on
        factory = env_factory(cfg.env) if make_env is None else checked_factory(make_env, cfg.env)
        with closing(open_batch(factory, cfg.env, "run.set")) as batch:
            batch.reset(0, 0, 0, changed.env.args)
    known_values = flat(changed)
    return {name: known_values[name] for name in values}
