"""Several environments side by side: single ones that T3D steps one by one, or a user's own VectorEnv."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from t3d.config import EnvConfig, plain
from t3d.errors import UserError
from t3d.policy.spec import Floats
from t3d.types import Fault
from t3d.world.guard import ENVIRONMENT_ERRORS, EnvFactory, EnvGuard, Environment, Result, close_quietly
from t3d.world.make import factory_for
from t3d.world.pixels import open_env
from t3d.world.spec import spec_of


class SingleEnvs:
    """Environments that T3D creates itself and steps one after the other; each is reset with a seed of its own.

    If one fails, its result carries the error, and the results of the others are kept.
    """

    def __init__(self, envs: list[Environment], make_env: EnvFactory, cfg: EnvConfig) -> None:
        self.envs, self.count, self.spec = envs, len(envs), envs[0].guard.spec
        self.guards = [env.guard for env in envs]
        self.make_env, self.cfg = make_env, cfg
        self.seconds_to_make = 0.0  # of the newest environment that was made again

    def reset(self, position: int, seed: int, episode: int, args: Mapping[str, Any] | None = None) -> NDArray[Any]:
        """Starts an episode, perhaps with other arguments: as options of reset, or in an environment made with them."""
        env, options, needed = self.envs[position], dict[str, Any](), dict[str, Any]()
        for name, value in (args or {}).items():
            (options if name in env.reset_options else needed)[name] = value
        if {**env.made_with, **needed} != env.made_with:
            started = time.monotonic()
            self._make_again(env, {**env.made_with, **needed})
            env.reset(seed, episode, options)  # PyBullet differs on the first reset only
            self.seconds_to_make = time.monotonic() - started
        return env.reset(seed, episode, options)

    def _make_again(self, env: Environment, args: dict[str, Any]) -> None:
        env.guard.beat()
        made = open_env(factory_for(self.make_env, replace(self.cfg, args=args)), self.cfg)
        close_quietly(env, env.guard.where)
        env.gym, env.made_with = made, args
        if spec_of(made, self.cfg).to_dict() != self.spec.to_dict():
            raise UserError(
                f"{env.guard.where}: made with {plain(args)} it has other observations or actions than with "
                f"{plain(self.cfg.args)}, and all environments of a run need the same"
            )

    def step(self, actions: Floats) -> list[Result]:
        """Steps each environment with its action; with fewer actions than environments, the rest are not stepped."""
        return [env.guard.attempt(env.step, action) for env, action in zip(self.envs, actions, strict=False)]

    def take_faults(self) -> list[Fault]:
        return [fault for guard in self.guards for fault in guard.take_faults()]

    def close(self) -> None:
        for env in self.envs:
            close_quietly(env, env.guard.where)


class VectorEnvBatch:
    """A user's VectorEnv; autoreset must be off, because it resets without seeds and hides the last state."""

    def __init__(
        self, env: VectorEnv[Any, Any, Any], where: str, cfg: EnvConfig, beat: Callable[[], object] = int
    ) -> None:
        self.env, self.count, self.spec, self.args = env, env.num_envs, spec_of(env, cfg), cfg.args
        names = [f"environment {index} of {where}" for index in range(self.count)]
        self.guards = [EnvGuard(self.spec, name, index, cfg, beat) for index, name in enumerate(names)]
        for position, guard in enumerate(self.guards):
            guard.metrics.position = position
        self.started = False

    def reset(self, position: int, seed: int, episode: int, args: Mapping[str, Any] | None = None) -> NDArray[Any]:
        if args not in (None, self.args):
            raise UserError("the arguments of a VectorEnv stay as they are; start a new run with others")

        def reset_one(seed: int | None) -> tuple[Any, dict[str, Any]]:
            mask = np.full(self.count, not self.started)  # the first reset of a VectorEnv must reset all environments
            mask[position] = True
            self.started = True
            seeds: Any = [seed if chosen else None for chosen in mask]  # Gymnasium takes a list but declares an int
            observations, info = self.env.reset(seed=seeds, options={"reset_mask": mask})
            return list(iterate(self.env.observation_space, observations))[position], info

        return self.guards[position].begin(episode, seed, reset_one)

    def step(self, actions: Floats) -> list[Result]:
        """Steps all environments; those without an action get the middle of the range and return no result."""
        idle = np.zeros((self.count - len(actions), actions.shape[1]), np.float32)
        scaled = [guard.action(action) for guard, action in zip(self.guards, [*actions, *idle], strict=True)]
        try:
            rows = self._step(np.stack(scaled))
        except ENVIRONMENT_ERRORS as error:  # one step() serves all of them, so all of them fail
            return [guard.failed(error) for guard in self.guards[: len(actions)]]
        answers = zip(self.guards, rows, strict=True)
        return [guard.attempt(guard.result, row) for guard, row in answers][: len(actions)]

    def _step(self, actions: NDArray[Any]) -> list[tuple[Any, ...]]:

        def step() -> tuple[Any, ...]:  # if observations cannot be split, the environment is at fault
            observations, *others = self.env.step(actions)
            return list(iterate(self.env.observation_space, observations)), *others

        observations, rewards, terminated, truncated, infos = self.guards[0].call(step)
        for name, values in {"reward": rewards, "terminated": terminated, "truncated": truncated}.items():
            if np.shape(values)[:1] != (self.count,):
                text = f"{name} of a VectorEnv of {self.count} environments has shape {np.shape(values)}"
                raise self.guards[0].refusal(name, text)
        return [(*row, infos) for row in zip(observations, rewards, terminated, truncated, strict=True)]

    def take_faults(self) -> list[Fault]:
        return [fault for guard in self.guards for fault in guard.take_faults()]

    def close(self) -> None:
        close_quietly(self.env, "the VectorEnv")


EnvBatch = SingleEnvs | VectorEnvBatch


def open_batch(
    make_env: Callable[..., Any],
    cfg: EnvConfig,
    where: str,
    indices: Sequence[int] = (0,),
    beat: Callable[[], object] = int,
) -> EnvBatch:
    """Creates the environments with these indices, or the VectorEnv that the user's factory returns."""
    first = open_env(make_env, cfg)
    if isinstance(first, VectorEnv):
        if first.num_envs != (cfg.num_envs or 1):
            raise UserError(
                f"the VectorEnv holds {first.num_envs} environments and env.num_envs is {cfg.num_envs or 1}; "
                f"set --env.num-envs {first.num_envs}, and use no more actors than seeds"
            )
        if cfg.action_repeat > 1:
            raise UserError("env.action_repeat does not work on a VectorEnv; repeat actions inside its environments")
        if cfg.schedule:
            raise UserError("env.schedule does not work on a VectorEnv; draw arguments inside its environments")
        return VectorEnvBatch(first, where, cfg, beat)
    if not isinstance(first, gym.Env):
        raise UserError(f"the environment factory returned {type(first).__name__}, not a gymnasium.Env or VectorEnv")
    envs = [first, *(open_env(make_env, cfg) for _ in indices[1:])]
    indexed = zip(envs, indices, strict=True)
    opened = [Environment(env, f"environment {index} of {where}", cfg, index, beat) for env, index in indexed]
    return SingleEnvs(opened, make_env, cfg)
