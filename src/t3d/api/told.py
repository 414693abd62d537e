"""What a program may tell its run between two events: numbers of its own, and other settings from now on."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from t3d.config import Config, flat, merge_named
from t3d.config.fields import settings_where
from t3d.config.sweeps import noun, short, swept
from t3d.errors import UserError, did_you_mean

LIVE = settings_where(Config, lambda about: about.get("live", False))  # may be changed while a run trains
NAME = re.compile(r"[A-Za-z]\w{0,63}", re.ASCII)


def own_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns numbers as an event holds them; raises if one is not finite, or has no usable name."""
    for name, value in values.items():
        if not NAME.fullmatch(name):
            raise UserError(f"{name!r:.80} is no name of a number: use a letter, then letters, digits and _")
        try:
            is_finite = not isinstance(value, str) and math.isfinite(float(value))
        except (TypeError, ValueError, OverflowError):
            is_finite = False
        if not is_finite:
            raise UserError(f"{name}={value!r:.80} is not a finite number")
    return {name: float(value) for name, value in values.items()}


def live_settings(cfg: Config, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings by their full names, converted and checked; raises if one cannot be changed in this run."""
    full_names = {short(name): name.replace("td3.", f"{cfg.section}.") for name in LIVE}
    for given in settings:
        if given.startswith(("env_args", "env.args")):
            raise UserError("env_args cannot be changed while a run trains; start another run from it: start_from")
        if given not in (*full_names, *full_names.values()):
            hint = did_you_mean(given, full_names)
            raise UserError(f"{given} cannot be changed while a run trains{hint}; these can: {', '.join(full_names)}")
    values = {full_names.get(name, name): value for name, value in settings.items()}
    for name in values:
        if name in swept(cfg.members):
            raise UserError(f"{name} is what the {noun(cfg.members)}s of this sweep differ in; it cannot be changed")
        if cfg.actors_kind == "ray" and name.startswith("noise."):
            raise UserError(f"{name} cannot be changed while actors={cfg.actors} act; with inline or local:N it can")
    known = flat(merge_named(cfg, values))
    return {name: known[name] for name in values}
