"""Finds the environment that the user's id names, or explains in one sentence why it cannot."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # before Gymnasium imports pygame

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import VectorEnv

from t3d.config import Config, EnvConfig, merge
from t3d.errors import UserError, did_you_mean
from t3d.modules import (
    EXTRAS,
    file_of,
    import_module,
    import_own,
    in_folder,
    is_here,
    is_own,
    is_path,
    with_full_path,
)
from t3d.world.arguments import call_with
from t3d.world.factory import CheckedFactory
from t3d.world.guard import EnvFactory, GymEnv
from t3d.world.simulators import DmControl, redirect_warnings

ENVIRONMENTS = (gym.Env, VectorEnv)


def env_factory(env: EnvConfig) -> CheckedFactory:
    """Returns a factory for environments of this id and its arguments; completes the id of a module alone."""
    make, name = _factory(env.id)
    return CheckedFactory(make, env.id, replace(env, id=f"{env.id}:{name}") if name else env)


def factory_for(make_env: EnvFactory, env: EnvConfig) -> EnvFactory:
    """Returns a run's factory for a member or an evaluation that has other arguments, or another environment."""
    if not isinstance(make_env, CheckedFactory) or (env.id, env.args) == (make_env.env.id, make_env.env.args):
        return make_env
    return make_env.with_args(env.args) if env.id == make_env.env.id else env_factory(env)


def with_full_paths(cfg: Config) -> Config:
    """Makes the paths of the user's own files absolute, so that they are found from any folder."""
    networks = {name: with_full_path(value) for name, value in cfg.networks.items()}
    env = replace(cfg.env, id=_with_full_path(cfg.env.id), wrappers=(*map(with_full_path, cfg.env.wrappers),))
    evaluated = replace(cfg.eval, env=_with_full_path(cfg.eval.env))
    cfg = replace(cfg, algo=with_full_path(cfg.algo), env=env, eval=evaluated)
    return merge(cfg, {cfg.section: {**cfg.own, **networks} if cfg.section == "own" else networks})


def _with_full_path(env_id: str) -> str:
    where, name = parse_id(env_id) if env_id else ("", "")
    return ":".join(filter(None, [str(file_of(where)), name])) if is_path(where) else env_id


def own_names(cfg: Config) -> list[str]:
    """Returns the settings that name code of the user's own: of environments, wrappers, the rule and the networks."""
    envs = [env_id for env_id in (cfg.env.id, cfg.eval.env) if env_id and parse_id(env_id)[0] not in ("", "dm")]
    names = (*cfg.env.wrappers, cfg.algo, *cfg.networks.values())
    return [*envs, *filter(is_own, names)]


def _factory(env_id: str) -> tuple[Callable[..., Any], str]:
    """Finds what makes the environments of an id: a Gymnasium id, dm:domain-task, module:id, module:callable or a file.

    Also returns its name, if a module or a file alone was given.
    """
    if not env_id:
        raise UserError("no environment given; name one, e.g. Pendulum-v1 or module:callable for your own")
    where, name = parse_id(env_id)
    if where == "dm":
        return partial(DmControl, name), ""
    if not where and "Bullet" in name and name not in gym.registry:
        import_module("pybullet_envs_gymnasium", env_id)
    module = import_own(where, env_id) if where else None
    if name in gym.registry:
        return partial(_gym_make, name), ""
    if module is not None and not name:
        make, name = _only_one(module, env_id)
        return partial(_call, make, env_id), name
    factory = getattr(module, name, None)
    if not callable(factory):
        raise UserError(f"unknown environment {env_id}{_hint(name, module)}")
    return partial(_call, factory, env_id), ""


def parse_id(env_id: str) -> tuple[str, str]:
    """Splits an id into a module or file and a name in it; a Gymnasium id has only a name.

    Without a name the module must define one environment.
    """
    where, colon, name = env_id.rpartition(":")
    if not colon:
        is_own = name not in gym.registry and (name.endswith(".py") or name.startswith((".", os.sep)) or is_here(name))
        return (name, "") if is_own else ("", name)
    if not (where and name) or (":" in where and not is_path(where)):
        raise UserError(f"{env_id} is not an environment; write module:callable or FILE.py:callable, with both names")
    return where, name


def _only_one(module: ModuleType, env_id: str) -> tuple[EnvFactory, str]:
    make_env: EnvFactory | None = getattr(module, "make_env", None)
    if callable(make_env):
        return make_env, "make_env"
    inside = f"{module.__name__}."  # or in a submodule of this package
    own = {key: value for key, value in vars(module).items() if callable(value)}
    own = {key: value for key, value in own.items() if f"{getattr(value, '__module__', '')}.".startswith(inside)}
    classes = {key: value for key, value in own.items() if isinstance(value, type) and issubclass(value, ENVIRONMENTS)}
    environments = {key: value for key, value in classes.items() if not issubclass(value, gym.Wrapper)}
    if len(environments) == 1:
        return next((value, key) for key, value in environments.items())
    named = ", ".join(f"{env_id}:{key}" for key in environments or own)
    raise UserError(
        f"{env_id} has {len(environments) or 'no'} gymnasium.Env classes and no function make_env; "
        f"write {f'one of {named}' if named else f'{env_id}:NAME, and define NAME there'}"
    )


def _hint(name: str, module: ModuleType | None) -> str:
    if module is not None and hasattr(module, "__path__") and module.__file__ is None:
        return f"; {in_folder(next(iter(module.__path__)))}"
    if module is not None:
        defined = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        return f"; {module.__name__} has no {name}{did_you_mean(name, defined)}"
    task = name.rpartition("-v")[0] or name
    versions = [known for known in gym.registry if known.rpartition("-v")[0] == task]
    if versions:
        return f"; there is {max(versions, key=lambda known: int(known.rpartition('-v')[2]))}"
    if os.path.isdir(name):  # noqa: PTH112 (Path.is_dir may raise)
        return f"; {in_folder(name)}"
    return did_you_mean(name, gym.registry) or "; for an environment of your own write module:callable"


def _gym_make(name: str, args: dict[str, Any], **keywords: Any) -> GymEnv:
    entry = str(gym.registry[name].entry_point)
    try:
        if ".mujoco" in entry:
            importlib.import_module("mujoco")
        redirect_warnings()
        point: Any = gym.registry[name].entry_point
        takes = load_env_creator(point) if isinstance(point, str) else point
        make = partial(gym.make, name, disable_env_checker=True)
        env: gym.Env[Any, Any] = call_with(make, name, args, keywords, takes, inspect.signature(gym.make).parameters)
        return env
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        extra = next((extra for start, extra in EXTRAS.items() if entry.startswith(start)), None)
        remedy = f'install it with: pip install "t3d[{extra}]"' if extra else f"try a newer version{_hint(name, None)}"
        reason = str(error).partition(",")[0]  # what follows is Gymnasium's own advice
        raise UserError(f"{name} cannot be created ({reason}); {remedy}") from None


def _call(make: Callable[..., Any], env_id: str, args: dict[str, Any], **keywords: Any) -> Any:
    """Calls the user's own factory with its arguments, and with those of the keywords that it accepts."""
    try:
        inspect.signature(make)
    except ValueError:  # callables written in C often have no signature
        raise UserError(f"{env_id} is not a function or class that makes environments") from None
    env = call_with(make, env_id, args, keywords)
    redirect_warnings()  # it may have imported MuJoCo itself
    return env
