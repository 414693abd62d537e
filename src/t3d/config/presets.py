"""Named settings. Order: defaults < preset < --config FILE.toml < flags."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any, NamedTuple

from t3d.config.algorithm import TD3Config
from t3d.config.merging import merge
from t3d.config.settings import Config
from t3d.errors import UserError, did_you_mean


class Preset(NamedTuple):
    """The purpose of a preset and what it changes."""

    purpose: str
    changes: dict[str, Any]


def _networks(first: int, second: int, lr: float) -> dict[str, Any]:
    sizes = [first, second]
    return {"actor_hidden": sizes, "critic_hidden": sizes, "actor_lr": lr, "critic_lr": lr}


EXPLORING = {"kind": "pink", "exploration_noise": 0.3}
SMALL: dict[str, Any] = {  # tuned on LunarLander: a return of 257 at 200,000 steps, where the defaults hover
    "td3": {**_networks(128, 128, lr=1e-3), "batch_size": 128, "gamma": 0.98, "tau": 0.01},
    "random_steps": 10_000,
    "noise": EXPLORING,
}

PRESETS = {
    "default": Preset("as in the authors' later code: 256-256 networks, batch 256, for MuJoCo-sized tasks", {}),
    "paper": Preset(
        "as in the paper: 400-300 networks, batch 100, learning rate 1e-3",
        {"td3": {**_networks(400, 300, lr=1e-3), "batch_size": 100}, "random_steps": 10_000},
    ),
    "plus": Preset(
        "beyond the paper, more return on Walker2d and Ant: critics that learn faster, the truncated mean of five of "
        "them, LayerNorm, normalised observations",
        {
            "td3": {
                **{"critic_lr": 1e-3, "actor_network": "layer_norm", "critic_network": "layer_norm"},
                **{"critics": 5, "aggregate": "truncated", "drop_highest": 2, "actor_objective": "mean"},
            },
            "random_steps": 10_000,
            "normalise_observations": True,
        },
    ),
    "bullet": Preset(
        "PyBullet's locomotion tasks, as in RL Baselines3 Zoo: 400-300 networks, learning rate 7e-4, gamma 0.98",
        {
            "td3": {**_networks(400, 300, lr=7e-4), "gamma": 0.98},
            "random_steps": 10_000,
            "replay": {"capacity": 200_000},
        },
    ),
    "box2d": Preset(
        "Box2D's lander and walker: small networks, learning rate 1e-3, gamma 0.98, pink noise (helps avoid hovering)",
        {**SMALL, "total_steps": 200_000, "replay": {"capacity": 200_000}},
    ),
    "dm": Preset(
        "dm_control's small tasks, e.g. dm:cartpole-swingup: as box2d, with each action repeated four times",
        {
            **SMALL,
            "total_steps": 40_000,
            "random_steps": 2_000,
            "td3": {**SMALL["td3"], "gamma": 0.99},
            "env": {"action_repeat": 4},
            "eval": {"every_steps": 2_000, "episodes": 5},
        },
    ),
    "pixels": Preset(
        "images as observations (--env.pixels 84 renders them), after DrQ-v2: 3 frames, 3-step returns, "
        "learning rate 1e-4, noise from 1 to 0.1",
        {
            "total_steps": 250_000,  # with the repeats half a million steps of the environment
            "random_steps": 2_000,
            "updates_per_step": 0.5,
            "env": {"frame_stack": 3, "action_repeat": 2},
            # DrQ-v2 has 1024-1024 networks; the default, 256-256, is kept: larger ones have not been tried
            "td3": {"actor_lr": 1e-4, "critic_lr": 1e-4, "tau": 0.01, "target_noise_clip": 0.3},
            "replay": {"capacity": 100_000, "n_step": 3},
            "noise": {"exploration_noise": 1.0, "final_noise": 0.1, "decay_steps": 50_000},
        },
    ),
    "quick": Preset(
        "small tasks such as Pendulum: small networks, higher learning rate, pink noise, done within a minute",
        {
            "total_steps": 10_000,
            "random_steps": 1_000,
            "td3": {**_networks(64, 64, lr=1e-3), "batch_size": 128, "gamma": 0.98, "tau": 0.02},
            "replay": {"capacity": 100_000},
            "noise": EXPLORING,
            "eval": {"every_steps": 1_000},
            "log": {"every_steps": 250, "diagnose_every_steps": 1_000},
        },
    ),
}


def preset(name: str) -> Config:
    """Returns the configuration of a preset."""
    if not isinstance(name, str) or name not in PRESETS:
        raise UserError(f"unknown preset {name}{did_you_mean(str(name), PRESETS)} (presets: {', '.join(PRESETS)})")
    return merge(Config(preset=name), PRESETS[name].changes)


class Family(NamedTuple):
    """Environments, by their ids without a version, that a preset was measured to suit, and the measurement."""

    ids: list[str]
    preset: str
    because: str


def families() -> list[Family]:
    """Reads what is known of presets and environments."""
    text = (resources.files("t3d.config") / "families.toml").read_text(encoding="utf-8")
    return [Family(**fields) for fields in tomllib.loads(text)["families"]]


def better_preset(cfg: Config) -> str:
    """Says which preset is known to suit the environment better than the run's, or what of the run's does not apply."""
    if cfg.section != "td3" and preset(cfg.preset).td3 != TD3Config():
        return f"preset {cfg.preset} says nothing about {cfg.rule_title}: its td3 settings do not apply"
    name = cfg.env.id.rpartition("-v")[0] or cfg.env.id
    for ids, suited, because in families():
        if name in ids and cfg.preset != suited and cfg.algo == "td3" and not cfg.env.pixels:
            return f"{suited} suits {name} better: --preset {suited} ({because})"
    return ""


def as_config(value: Config | Mapping[str, Any] | str, preset_name: str | None = None) -> Config:
    """Accepts a Config, settings by name (over the defaults or their preset), or an environment's id."""
    known = value.preset if isinstance(value, Config) else value.get("preset") if isinstance(value, Mapping) else None
    if None not in (known, preset_name) and known != preset_name:
        raise UserError(f"the settings have preset={known}, and preset={preset_name} is given; leave one of them out")
    if isinstance(value, Config):
        return value
    if isinstance(value, str):
        value = {"env": {"id": value}}
    if isinstance(value, Mapping):
        name = preset_name or known or "default"
        return merge(preset(name), {**value, "preset": name})
    raise UserError(f"{value!r} is not a configuration; give a t3d.Config, settings by name, or an environment's id")
