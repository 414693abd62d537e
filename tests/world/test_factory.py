"""One environment object cannot be shared: what makes environments makes a new one with every call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import helpers
import t3d
from t3d.actors.supervisor import for_workers
from t3d.config import EnvConfig
from t3d.errors import UserError
from t3d.world.factory import checked_factory
from t3d.world.make import env_factory


class Equal(gym.Wrapper[Any, Any, Any, Any]):
    """An environment with an equality of its own, which must not be asked."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Device:
    """Some hardware."""


class Bolted:
    """Cannot be referenced weakly."""

    __slots__ = ()


class OnDevice(helpers.CountingEnv):
    """An adapter that takes what it drives for its innermost environment."""

    def __init__(self, device: Any) -> None:
        super().__init__()
        self.device = device

    @property
    def unwrapped(self) -> Any:
        return self.device


def vector_of(*envs: Callable[[], Any]) -> Any:
    return gym.vector.SyncVectorEnv(list(envs), autoreset_mode=gym.vector.AutoresetMode.DISABLED)


def pendulum() -> Any:
    return gym.make("Pendulum-v1")


def shared_pendulum() -> Callable[[], Any]:
    env = pendulum()
    return lambda: env


def shared_inside() -> Callable[[], Any]:
    env = helpers.CountingEnv()
    return lambda: gym.wrappers.TimeLimit(env, 100)


def shared_vector() -> Callable[[], Any]:
    env = vector_of(pendulum, pendulum)
    return lambda: env


def vector_of_one_object() -> Callable[[], Any]:
    env = pendulum()
    return lambda: vector_of(lambda: env, lambda: env)


SHARED = [shared_pendulum, shared_inside, shared_vector, vector_of_one_object]


@pytest.mark.parametrize("factory", SHARED)
def test_a_shared_object_is_refused_before_the_run_begins(factory: Any, tmp_path: Path) -> None:
    cfg = helpers.small_config(run={"root": str(tmp_path)}, env={"num_envs": 2 if "vector" in factory.__name__ else 1})
    with pytest.raises(
        UserError, match=r"object twice.*make a new one with every call: make_env=lambda: \w+"
    ) as caught:
        list(t3d.train(cfg, make_env=factory()))
    assert "make_env returned the same" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [pendulum, lambda: vector_of(pendulum)])
def test_an_object_is_no_factory(make: Any, tmp_path: Path) -> None:
    for resumes in (False, True):
        cfg = helpers.small_config(run={"root": str(tmp_path)})
        with pytest.raises(
            UserError, match=r"make_env is a .* object.*pass a function that makes them: make_env=lambda: "
        ):
            list(t3d.resume(tmp_path, cfg=cfg, make_env=make()) if resumes else t3d.train(cfg, make_env=make()))


def test_what_cannot_be_called_is_no_factory_either() -> None:
    wrong: Any = "Pendulum-v1"
    with pytest.raises(UserError, match="make_env='Pendulum-v1' cannot be called"):
        list(t3d.train(helpers.small_config(), make_env=wrong))


def test_a_class_is_a_factory(tmp_path: Path) -> None:
    events = list(t3d.train(helpers.small_config(run={"root": str(tmp_path)}), make_env=helpers.CountingEnv))
    assert events[-1].event == "end"


def test_a_module_whose_function_returns_one_object_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("one_object")
    module.env = pendulum()
    module.make_env = lambda: module.env
    monkeypatch.setitem(sys.modules, "one_object", module)
    make = env_factory(EnvConfig("one_object:make_env"))
    make()
    with pytest.raises(UserError, match="one_object:make_env returned the same Pendulum-v1 object twice"):
        make()


def test_environments_that_are_gone_are_not_held_against_new_ones() -> None:
    """A new object may have the id() of one that is gone."""
    make, ids = env_factory(EnvConfig("helpers:CountingEnv")), set()
    for _ in range(50):
        env = make()
        ids.add(id(env))
        env.close()
        del env
    assert len(ids) < 50, "an id was used again"


def test_environments_are_told_apart_by_identity() -> None:
    make = checked_factory(lambda: Equal(pendulum()))
    assert make() is not make()
    assert np.isfinite(make().reset(seed=0)[0]).all()


def test_what_cannot_be_referenced_weakly_is_told_apart_too() -> None:
    make, device = checked_factory(lambda: OnDevice(Bolted())), Device()
    assert make() is not make()
    shares = checked_factory(lambda: OnDevice(device))
    shares()
    with pytest.raises(UserError, match="the same Device object twice"):
        shares()


def test_actor_processes_are_told_what_the_user_passed() -> None:
    """And not what checks it, which they could not import; they check for themselves."""
    cfg = helpers.small_config(env={"id": ""})
    assert for_workers(cfg, checked_factory(helpers.CountingEnv)).env.id == "helpers:CountingEnv"
    with pytest.raises(UserError, match="actor processes cannot import make_env="):
        for_workers(cfg, checked_factory(shared_inside()))
