"""The doctor in a process of its own, for runs with actors: an environment that crashes or hangs does so there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from t3d.actors.shared_memory import Channel, Heartbeat, Shared
from t3d.config import Config
from t3d.types import Part, Spec
from t3d.world.batch import VectorEnvBatch, open_batch
from t3d.world.doctor import examine
from t3d.world.make import env_factory

LONGEST_PHASE = 128  # bytes; chosen
PARENT_WATCHES = 1e6  # seconds for one call: our parent watches, and ends us much earlier


class Checkup(NamedTuple):
    """What is known of an environment before training."""

    warnings: list[str]
    spec: Spec
    vector: bool  # a VectorEnv is stepped as a whole


class Phase(Shared):
    """What the environment is doing just now: whoever watches can say so after a crash."""

    def __init__(self, fd: int | None = None) -> None:
        super().__init__({"text": (np.uint8, (LONGEST_PHASE,))}, fd)

    @property
    def text(self) -> str:
        """The newest."""
        return self.arrays["text"].tobytes().rstrip(b"\0").decode(errors="replace")

    @text.setter
    def text(self, text: str) -> None:
        self.arrays["text"][:] = np.frombuffer(text.encode().ljust(LONGEST_PHASE, b"\0"), np.uint8)


class Doctor:
    """A worker's role: examines the environment, and tells what is found."""

    def __init__(self, cfg: Config, task: dict[str, Any], parent: Channel, heartbeat: Heartbeat) -> None:
        self.cfg, self.parent, self.heartbeat = cfg, parent, heartbeat
        self.phase, self.plays = Phase(task["phase"]), task["plays"]
        self.make_env = env_factory(cfg.env.id)

    def run(self) -> None:
        """Until all is told; a resumed run was examined before, and only wants to know the environment's shapes."""
        warnings = examine(self._make, self.cfg.env.bad_values, PARENT_WATCHES) if self.plays else []
        env_batch = open_batch(self._make, self.cfg.env, "the start")
        vector = isinstance(env_batch, VectorEnvBatch)
        env_batch.close()
        self.parent.send(warnings=warnings, spec=spec_to_json(env_batch.spec), vector=vector)

    def close(self) -> None:
        """Nothing is left open."""

    def _make(self) -> Any:
        self.parent.send(ready=False)  # this may take as long as a start
        self._begin("making the environment")
        env = self.make_env()
        self.parent.send(ready=True)
        return Observed(env, self._begin) if isinstance(env, gym.Env) else env

    def _begin(self, what: str) -> None:
        self.phase.text = what
        self.heartbeat.beat()


class Observed(gym.Wrapper[Any, Any, Any, Any]):
    """Says what it is about to do."""

    def __init__(self, env: gym.Env[Any, Any], begin: Callable[[str], None]) -> None:
        super().__init__(env)
        self._begin, self._episode, self._step = begin, -1, 0

    def reset(self, **keywords: Any) -> Any:
        """As the environment does it."""
        self._episode, self._step = self._episode + 1, 0
        self._begin(f"reset of episode {self._episode}")
        return self.env.reset(**keywords)

    def step(self, action: Any) -> Any:
        """As the environment does it."""
        self._step += 1
        self._begin(f"step {self._step} of episode {self._episode}")
        return self.env.step(action)

    def close(self) -> None:
        """As the environment does it."""
        self._begin("closing the environment")
        self.env.close()


def spec_to_json(spec: Spec) -> dict[str, Any]:
    """A spec in plain values."""
    bounds = {"action_low": spec.action_low.tolist(), "action_high": spec.action_high.tolist()}
    return {**spec._asdict(), **bounds, "observation": [part._asdict() for part in spec.observation]}


def spec_from_json(fields: dict[str, Any]) -> Spec:
    """The inverse."""
    parts = [{**part, "path": tuple(part["path"]), "shape": tuple(part["shape"])} for part in fields["observation"]]
    return Spec(
        observation=tuple(Part(**part) for part in parts),
        action_shape=tuple(fields["action_shape"]),
        action_low=np.array(fields["action_low"], np.float64),
        action_high=np.array(fields["action_high"], np.float64),
        action_dtype=fields["action_dtype"],
    )
