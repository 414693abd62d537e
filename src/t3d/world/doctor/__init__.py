"""The environment doctor: plays an environment for a moment and reports what is wrong with it.

Problems that training cannot survive are raised as a UserError; those it can survive are returned as warnings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from t3d.config import EnvConfig
from t3d.errors import UserError
from t3d.world.doctor.checks import CHECKS, images
from t3d.world.doctor.trial import play
from t3d.world.doctor.watch import CALL_SECONDS, Watch, watching
from t3d.world.guard import EnvFactory, EnvGuard, close_quietly
from t3d.world.pixels import open_env
from t3d.world.spec import name_of, spec_of


def examine(make_env: EnvFactory, cfg: EnvConfig | None = None, call_seconds: float = CALL_SECONDS) -> list[str]:
    """Returns warnings about the environment; raises UserError if training cannot work with it.

    A call into the environment that takes longer than call_seconds raises a UserError too.
    """
    cfg = replace(cfg or EnvConfig(), action_repeat=1)  # every step is looked at
    with watching(call_seconds) as watch:
        watch.begin("the environment factory has not returned")
        env = open_env(make_env, cfg)
        if not isinstance(env, gym.Env | VectorEnv):
            raise UserError(f"the environment factory returned {type(env).__name__}, not a gymnasium.Env or VectorEnv")
        try:
            return _examine(env, cfg, watch)
        finally:
            watch.begin(f"{name_of(env)} has not returned from close()")
            close_quietly(env, name_of(env))


def _examine(env: Any, cfg: EnvConfig, watch: Watch) -> list[str]:
    spec, name = spec_of(env, cfg), name_of(env)
    guard = EnvGuard(spec, name, bad_values=cfg.bad_values, beat=lambda: watch.begin(_calling(guard)))
    if isinstance(env, VectorEnv):
        only = f"{guard.where} is a VectorEnv; its environments are checked only while they are stepped"
        return [only, *(f"{guard.where}: {text}" for text in images(guard.spec))]
    trial = play(env, guard)
    return [f"{guard.where}: {text}" for check in CHECKS for text in check(trial)]


def _calling(guard: EnvGuard) -> str:
    method = f"step {guard.step}" if guard.step else "reset()"
    return f"{guard.where} has not returned from {method} of episode {guard.episode}"
