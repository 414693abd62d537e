"""One interface to every environment.

Past this file observations are flat arrays of finite numbers and actions are in [-1, 1] in every dimension, so noise
scales and clips mean the same everywhere.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from t3d.config import EnvConfig
from t3d.errors import Diverged, EnvironmentFailed, NotRendered, OwnSignal, UserError, what_happened
from t3d.policy.observations import InvalidValue, fixed, fixed_number, flatten, newest, number, stacked
from t3d.policy.spec import Floats, Spec, limited, middle, put_previous, to_bounds
from t3d.types import GOES_ON, TERMINATED, TRUNCATED, Fault
from t3d.world.metrics import InfoMetrics
from t3d.world.spec import spec_of

LOG = logging.getLogger("t3d.environment")
GymEnv = gym.Env[Any, Any]
MOST_RESETS = 100  # in a row without a valid first observation, under `skip`; chosen
EnvFactory = Callable[..., Any]  # creates a gymnasium.Env or a gymnasium.vector.VectorEnv


class Result(NamedTuple):
    """The result of one step of one environment."""

    observation: NDArray[Any]
    reward: float
    terminated: bool
    truncated: bool
    valid: bool = True  # False: the environment returned a bad value, and this transition must not be stored
    error: Exception | None = None  # why the step failed: the episode is lost
    info: Mapping[str, Any] = MappingProxyType({})  # as returned; a VectorEnv returns that of all its environments

    @property
    def ending(self) -> int:
        return TERMINATED if self.terminated else TRUNCATED if self.truncated else GOES_ON


class BadValue(UserError):
    """An environment returned something that must not reach the replay."""

    def __init__(self, where: str, fault: Fault) -> None:
        super().__init__(f"{where}: {fault.text}")
        self.where, self.fault = where, fault
        self.member: int | None = None  # unknown while evaluating


ENVIRONMENT_ERRORS = (EnvironmentFailed, BadValue)  # errors of a step or a reset that are not T3D's fault


class Environment:
    """One Gymnasium environment with flat observations and actions in [-1, 1], stepped and seeded by T3D."""

    def __init__(
        self, env: GymEnv, where: str, cfg: EnvConfig | None = None, index: int = 0, beat: Callable[[], object] = int
    ) -> None:
        cfg = cfg or EnvConfig()
        self.gym, self.action_repeat = env, cfg.action_repeat
        self.made_with, self.reset_options = cfg.args, _reset_options(env, where)
        self.guard = EnvGuard(spec_of(env, cfg), where, index, cfg, beat)

    def reset(self, seed: int, episode: int, options: dict[str, Any] | None = None) -> NDArray[Any]:
        given = {"options": options} if options else {}
        return self.guard.begin(episode, seed, lambda seed: self.gym.reset(seed=seed, **given))

    def step(self, action: Floats) -> Result:
        """Takes an action in [-1, 1]; repeats stop when the episode ends, and their rewards are summed.

        Of the frames of all repeats only the newest is part of the observation and of those after it.
        """
        scaled = self.guard.action(action)
        total = 0.0
        for _ in range(self.action_repeat):
            result = self.guard.result(self.guard.call(self.gym.step, scaled.copy()))  # step may modify its argument
            total += result.reward
            if result.terminated or result.truncated:
                break
        return result._replace(reward=total)

    def close(self) -> None:
        self.gym.close()


def _reset_options(env: GymEnv, where: str) -> tuple[str, ...]:
    """Returns the arguments that an environment declares to take as options of reset, too."""
    names = (env.metadata or {}).get("reset_options", ())
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{where}: metadata['reset_options'] is {names!r:.60}; make it a list of names of arguments")
    if names and "options" not in (takes := inspect.signature(env.unwrapped.reset).parameters):
        known = ", ".join(takes) or "nothing"
        raise UserError(f"{where}: metadata['reset_options'] names {', '.join(names)}, but its reset takes {known}")
    return tuple(names)


class EnvGuard:
    """Stands between T3D and one environment: scales actions, checks results, keeps track of episode and step.

    A bad value ends the run (`raise`), ends the episode as truncated (`skip`), or is fixed (`clip`). `beat` is called
    before every call into the environment, which shows that the previous call has returned. If changes of actions are
    limited, it keeps the previous action: the first of an episode departs from the middle of the range.
    """

    def __init__(self, spec: Spec, where: str, index: int, cfg: EnvConfig, beat: Callable[[], object] = int) -> None:
        self.spec, self.index, self.bad_values, self.beat = spec, index, cfg.bad_values, beat
        self.metrics = InfoMetrics(cfg.metrics)
        self.where = where  # for messages, e.g. "environment 0 of seed 3"
        self.episode, self.step = 0, 0
        self.last = self._nothing()  # the newest valid observation
        self._before: NDArray[Any] | None = None  # the observation of the step before, whose frames are kept
        self._previous = middle(spec)  # action
        self.faults: list[Fault] = []  # since take_faults was last called
        self._process = os.getpid()

    def begin(self, episode: int, seed: int, reset: Callable[[int | None], Any]) -> NDArray[Any]:
        """Starts an episode; under `skip` the environment is reset until its first observation is valid."""
        self.episode, self.step = episode, 0
        self.metrics.begin()
        self.last, self._before, self._previous = self._nothing(), None, middle(self.spec)
        for attempt in range(MOST_RESETS):
            answer = self.call(reset, None if attempt else seed)
            if not (isinstance(answer, tuple) and len(answer) == 2):
                raise self.refusal("reset", "reset() must return (observation, info), as Gymnasium requires")
            result = self.checked(answer[0], 0.0, terminated=False, truncated=False, info=answer[1])
            if result.valid:
                return result.observation
        raise BadValue(self.now(), self.faults[-1]) from None

    def action(self, action: Floats) -> Any:
        self.step += 1
        self._before = self.last
        if not action.dot(action) < np.inf:  # as isfinite, and faster
            raise Diverged(f"the action for {self.now()} is {action}")
        scaled = to_bounds(action, self.spec)
        if not self.spec.max_action_change:
            return scaled
        self._previous = limited(scaled, self._previous, self.spec)
        return self._previous.copy()  # the environment may modify it

    def result(self, answer: Any) -> Result:
        if not (isinstance(answer, tuple) and len(answer) == 5):
            required = "(observation, reward, terminated, truncated, info), as Gymnasium requires"
            raise self.refusal("step", f"step() must return {required}")
        observation, reward, terminated, truncated, info = answer
        result = self.checked(observation, reward, self.flag(terminated), self.flag(truncated), info)
        if self.metrics.each_step and result.valid:
            self.metrics.add(info)
        return result

    def checked(self, observation: Any, reward: Any, terminated: bool, truncated: bool, info: Any) -> Result:
        """Handles bad values as configured and returns a result with only valid values in it."""
        try:
            valid_reward = number("reward", reward)
            flat = flatten(observation, self.spec)
        except InvalidValue as error:
            refusal = self.refusal(error.field, str(error))
            if self.bad_values == "raise":
                raise refusal from None
            self.faults.append(refusal.fault)
            if self.bad_values == "skip":
                return Result(self.last, 0.0, terminated=False, truncated=True, valid=False)
            flat = fixed(observation, self.spec, newest(self.last, self.spec))
            valid_reward = fixed_number(reward)
        if self.spec.max_action_change:
            put_previous(flat, self._previous, self.spec)
        self.last = stacked(flat, self._before, self.spec) if self.spec.images else flat
        return Result(self.last, valid_reward, terminated, truncated, info=info)

    def _nothing(self) -> NDArray[Any]:
        return np.zeros(self.spec.observation_width, self.spec.observation_dtype)

    def flag(self, value: Any) -> bool:
        """Returns terminated or truncated as a bool; 0 and 1 are accepted."""
        if not isinstance(value, bool | np.bool_) and (np.shape(value) != () or value not in (0, 1)):
            text = f"terminated and truncated must be True or False, and {value!r:.60} was returned"
            raise self.refusal("terminated or truncated", text)
        return bool(value)

    def call(self, method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Calls into the environment; what it raises becomes EnvironmentFailed, distinct from T3D's own errors."""
        self.beat()
        try:
            return method(*arguments, **keywords)
        except OwnSignal:
            raise
        except NotRendered as error:
            if error.__cause__ is None:
                raise self.refusal("image", str(error)) from None
            raise EnvironmentFailed(self.now(), error) from error.__cause__
        except BaseException as error:  # an environment may raise anything, even SystemExit or KeyboardInterrupt
            raise EnvironmentFailed(self.now(), error) from error
        finally:
            if os.getpid() != self._process:
                os._exit(1)  # a process that the environment forked must not run T3D's code

    def attempt(self, step: Callable[..., Result], *arguments: Any) -> Result:
        try:
            return step(*arguments)
        except ENVIRONMENT_ERRORS as error:
            return self.failed(error)

    def failed(self, error: Exception) -> Result:
        return Result(self.last, 0.0, terminated=False, truncated=True, valid=False, error=error)

    def refusal(self, field: str, text: str) -> BadValue:
        return BadValue(self.now(), Fault(self.index, self.episode, self.step, field, text))

    def now(self) -> str:
        return f"{self.where}, episode {self.episode}, step {self.step}"

    def take_faults(self) -> list[Fault]:
        taken, self.faults = self.faults, []
        return taken


def close_quietly(env: Any, where: str) -> None:
    """Closes an environment; errors are logged and otherwise ignored."""
    try:
        env.close()
    except OwnSignal:
        raise
    except BaseException as error:
        LOG.warning("%s: %s in close(); the run is not affected", where, what_happened(error))
