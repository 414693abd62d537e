"""Transitions with images, made by hand: every byte follows from where it was seen, and so does every stack."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.policy.spec import Image, Part, Spec
from t3d.types import GOES_ON, TERMINATED, TRUNCATED, Origins, Rollout

Bytes = NDArray[np.uint8]
EPISODES_OF_AN_ENVIRONMENT = 10_000_000  # more than any environment plays


def image_spec(vector: int = 0, images: int = 1, stack: int = 3, shape: tuple[int, int, int] = (1, 2, 2)) -> Spec:
    """Observations of a vector and some images of the same shape, which may be far smaller than real ones."""
    size = int(np.prod(shape))
    cameras = tuple(Image((f"camera-{one}",), shape, one * size, (one + 1) * size) for one in range(images))
    parts = (Part(("vector",), (vector,), 0, vector),) if vector else ()
    return Spec(parts, (2,), -np.ones(2), np.ones(2), images=cameras, stack=stack)


class History(NamedTuple):
    """Everything that was ever added for one member, each transition with its whole stacks."""

    origins: Origins  # (N, 4)
    s: Bytes  # (N, observation_width)
    a: NDArray[np.float32]
    r: NDArray[np.float32]
    terminated: NDArray[np.float32]
    s2: Bytes
    following: NDArray[np.int64]  # the transition after it in its episode, as far as it has arrived; -1: there is none


class Player:
    """Environments of one member; their episodes have random lengths, and a part of them is cut short."""

    def __init__(
        self, rng: np.random.Generator, spec: Spec, member: int, envs: int, lengths: tuple[int, int], cut: float = 0.1
    ) -> None:
        self.rng, self.spec, self.member, self.lengths, self.cut = rng, spec, member, lengths, cut
        self.streams: list[Origins] = [np.empty((0, 4), np.int32)] * envs  # what each environment delivers next
        self.begun = [0] * envs  # episodes
        self.origins: Origins = np.empty((0, 4), np.int32)  # of everything delivered

    def play(self, steps: int, runs: int = 1) -> Rollout:
        """Delivers a block, in which each environment delivers some steps in a row."""
        envs = np.repeat(self.rng.integers(len(self.streams), size=-(-steps // runs)), runs)[:steps]
        origins = np.empty((steps, 4), np.int32)
        for env in np.unique(envs).tolist():
            mine = envs == env
            origins[mine] = self._take(env, int(mine.sum()))
        self.origins = np.concatenate([self.origins, origins])
        s, s2 = (self.seen(origins, later, newest_only=True) for later in (0, 1))
        floats = np.ascontiguousarray(np.column_stack(self.numbers(origins)), np.float32)
        rows = np.concatenate([s, floats.view(np.uint8), s2], axis=1)
        return Rollout(self.member, rows, origins, s.shape[1], [], [])

    def abandon(self) -> None:
        """Begins other episodes everywhere, as actors do when a run is resumed."""
        self.streams = [np.empty((0, 4), np.int32)] * len(self.streams)

    @property
    def episodes(self) -> int:
        return sum(self.begun)

    def history(self) -> History:
        """A naive replay, which stores every stack."""
        origins = self.origins
        s, s2 = (self.seen(origins, later) for later in (0, 1))
        numbers = self.numbers(origins)
        at = {key: place for place, key in enumerate(map(tuple, origins[:, :3].tolist()))}
        nexts = [at.get((env, episode, step + 1), -1) for env, episode, step, _ in origins.tolist()]
        return History(origins, s, numbers[0], numbers[1], numbers[2], s2, np.array(nexts, np.int64))

    def numbers(self, origins: Origins) -> tuple[Any, Any, Any]:
        """Actions, rewards and whether the episode was terminated."""
        mixed = _bytes_of(self.member, origins, 0, 12, salt=3).astype(np.float32)
        return mixed[:, :2] / 255, mixed[:, 2] - 100, (origins[:, 3] == TERMINATED).astype(np.float32)

    def seen(self, origins: Origins, later: int, newest_only: bool = False) -> Bytes:
        """The observation at a transition's start, or one step later: the vector's bytes, then the stack."""
        stack = 1 if newest_only else self.spec.stack
        vector = _bytes_of(self.member, origins, later, self.spec.observation_size, salt=1).astype(np.float32) / 7
        frames = [
            _bytes_of(self.member, origins, np.maximum(later - back, -origins[:, 2]), self.spec.frame_size, salt=2)
            for back in range(stack - 1, -1, -1)
        ]
        return np.concatenate([np.ascontiguousarray(vector).view(np.uint8), *frames], axis=1)

    def _take(self, env: int, steps: int) -> Origins:
        while len(self.streams[env]) < steps:
            count = int(self.rng.integers(*self.lengths, endpoint=True))
            ending = GOES_ON if self.rng.random() < self.cut else int(self.rng.choice([TERMINATED, TRUNCATED]))
            episode = np.full((count, 4), GOES_ON, np.int32)
            episode[:, 0], episode[:, 1], episode[:, 2], episode[-1, 3] = env, self.begun[env], range(count), ending
            self.begun[env] += 1
            self.streams[env] = np.concatenate([self.streams[env], episode])
        taken, self.streams[env] = np.split(self.streams[env], [steps])
        return taken


def _bytes_of(member: int, origins: Origins, later: Any, count: int, salt: int) -> Bytes:
    """Bytes (N, count) that look random and differ from step to step, episode to episode and place to place."""
    env, episode, step = (origins[:, column].astype(np.uint64) for column in range(3))
    place = env * np.uint64(EPISODES_OF_AN_ENVIRONMENT) + episode
    time = (step.astype(np.int64) + later).astype(np.uint64)
    mixed = (place * np.uint64(1000) + time) * np.uint64(8) + np.uint64(2 * member + 16 * salt)
    mixed = (mixed[:, None] * np.uint64(1000) + np.arange(count, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    found: Bytes = (mixed >> np.uint64(56)).astype(np.uint8)
    return found
