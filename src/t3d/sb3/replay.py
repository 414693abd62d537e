"""Our replay in the shape of Stable-Baselines3's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from t3d.data.memory import Memory
from t3d.errors import UserError
from t3d.sb3.collecting import VecEnvCollector
from t3d.types import GOES_ON, TERMINATED, TRUNCATED, UNKNOWN, Rollout

ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


class ReplayView(NStepReplayBuffer):
    """Reads, samples and adds to our replay. Its arrays are copies (rows, environments, ...) of what is filled."""

    def __init__(self, model: Any, memory: Memory, collector: VecEnvCollector) -> None:
        self.observation_space, self.action_space = model.observation_space, model.action_space
        self.n_envs, self.n_steps, self.gamma = model.n_envs, model.n_steps, model.gamma
        self.buffer_size = memory.replay.capacity // self.n_envs
        self.device, self.handle_timeout_termination, self.optimize_memory_usage = model.device, True, False
        self.memory, self.collector = memory, collector

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return SimpleNamespace(pos=self.pos, full=self.full, **{name: getattr(self, name) for name in ARRAYS})

    @property
    def pos(self) -> int:  # type: ignore[override]
        return self.memory.added[0] // self.n_envs % self.buffer_size

    @property
    def full(self) -> bool:  # type: ignore[override]
        return self.memory.added[0] >= self.buffer_size * self.n_envs

    def contents(self) -> dict[str, NDArray[Any]]:
        """Every row and where it comes from, the oldest first."""
        if self.memory.replay.spec.images:
            raise UserError("a replay with images keeps frames once, so it has no arrays that could be read or saved")
        return self.memory.replay.contents(0, *self.memory.replay.kept(0))

    def __getattr__(self, name: str) -> Any:
        if name not in ARRAYS:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        contents, place = self.contents(), self.pos * self.n_envs if self.full else 0
        rows, origins = (np.roll(contents[part], place, axis=0) for part in ("rows", "origins"))
        return self._columns(rows, origins)[name]

    def _columns(self, rows: NDArray[Any], origins: NDArray[Any]) -> dict[str, NDArray[Any]]:
        spec, ending = self.memory.replay.spec, origins[:, 3]
        rollout = Rollout(0, rows, origins, spec.newest_width, [], [])
        shape = self.observation_space.shape or (spec.observation_size,)  # a Dict's parts side by side
        shape = shape if np.prod(shape) == spec.observation_size else (spec.observation_size,)  # one-hot vectors
        columns = {"observations": rollout.s.reshape(-1, self.n_envs, *shape)}
        columns["next_observations"] = rollout.s2.reshape(-1, self.n_envs, *shape)
        columns["actions"] = rollout.a.reshape(-1, self.n_envs, spec.action_size)
        columns["rewards"] = rollout.r.reshape(-1, self.n_envs)
        columns["dones"] = (ending != GOES_ON).astype(np.float32).reshape(-1, self.n_envs)
        columns["timeouts"] = (ending == TRUNCATED).astype(np.float32).reshape(-1, self.n_envs)
        return columns

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Takes a step of every environment, or rows of the user's own, which have no neighbours and are no steps."""
        if self.collector.is_acting:
            self.collector.add(obs, next_obs, action, np.ravel(reward), np.ravel(done), infos)
            return
        own = VecEnvCollector(self.collector.spec, self.n_envs)
        own.add(obs, next_obs, action, np.ravel(reward), np.ravel(done), infos)
        for rollout in own.take():
            rollout.origins[:, :3] = UNKNOWN
            self._put(rollout)

    def reset(self) -> None:
        """Empties it; steps that were taken stay counted."""
        collected = self.memory.collected(0)
        self.memory.replay.set_added([0])
        self.memory.replay.links.end_episodes()
        self.memory.carried[0] = -collected

    def fill(self, rows: NDArray[Any], origins: NDArray[Any]) -> None:
        """Replaces what it holds."""
        width = self.memory.replay.rows.shape[2]
        is_known = rows.ndim == 2 and rows.shape[1] == width and rows.dtype == np.float32
        if not is_known or origins.shape != (len(rows), 4) or origins.dtype != np.int32:
            raise ValueError(f"it holds rows {rows.shape}, and transitions of this environment have {width} numbers")
        if not np.isfinite(rows).all() or not np.isin(origins[:, 3], (GOES_ON, TERMINATED, TRUNCATED)).all():
            raise ValueError("one of its transitions is not finite, or has no known ending")
        self.reset()
        self._put(Rollout(0, rows, origins, self.memory.replay.columns[0], [], []))
        self.memory.replay.links.end_episodes()

    def _put(self, rollout: Rollout) -> None:
        self.memory.add(rollout)
        self.memory.carried[0] += len(rollout.rows)  # no step of the run

    def sample(self, batch_size: int, env: Any = None) -> ReplayBufferSamples:
        """Draws single transitions, as NumPy's random numbers are; observations of Dict spaces are flat."""
        first, stop = self.memory.replay.kept(0)
        index = torch.from_numpy(np.random.randint(stop - first, size=(1, batch_size)))  # noqa: NPY002 (as theirs)
        s, a, r, terminated, s2 = (part[0].cpu().numpy() for part in self.memory.replay.gather(index.to(self.device)))
        seen: list[Any] = [self._normalize_obs(each, env) for each in (s, s2)]
        r = self._normalize_reward(r, env)
        return ReplayBufferSamples(*map(self.to_torch, (seen[0], a, seen[1], terminated[:, None], r[:, None])))
