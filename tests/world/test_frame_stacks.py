"""Stacks of frames: each observation holds the newest ones of its own episode."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from image_worlds import SIDE, STILL, Dot
from t3d.config import EnvConfig
from t3d.errors import UserError
from t3d.policy.observations import flatten, stacked
from t3d.policy.spec import Spec
from t3d.world.batch import open_batch
from t3d.world.guard import Environment
from worlds import Sound

Box = gym.spaces.Box


class Numbered(gym.Env[Any, Any]):
    """Its k-th image since it was made is filled with the bytes of k, and the vector is k."""

    def __init__(self, lengths: list[int], with_vector: bool = False) -> None:
        image = Box(0, 255, (32, 32), np.uint8)
        vector = Box(0, 1e6, (1,), np.float32)
        self.with_vector = with_vector
        self.observation_space = gym.spaces.Dict(image=image, vector=vector) if with_vector else image
        self.action_space = Box(-1, 1, (1,), np.float32)
        self.lengths, self.shown, self.left = lengths, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.left = self.lengths.pop(0)
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self.observe(), 1.0, False, self.left == 0, {}

    def observe(self) -> Any:
        self.shown += 1
        image = np.full(512, self.shown, np.uint16).view(np.uint8).reshape(32, 32)
        return {"image": image, "vector": np.array([self.shown], np.float32)} if self.with_vector else image


def numbers(observation: NDArray[np.uint8], spec: Spec) -> list[int]:
    """Which images an observation holds, oldest first."""
    frames = observation[4 * spec.observation_size :].reshape(spec.stack, -1).view(np.uint16)
    return [int(frame[0]) for frame in frames if (frame == frame[0]).all()]


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    stack=st.integers(1, 4),
    repeat=st.integers(1, 3),
    with_vector=st.booleans(),
)
def test_stacks_equal_a_list_of_frames(lengths: list[int], stack: int, repeat: int, with_vector: bool) -> None:
    world = Numbered([*lengths], with_vector)
    env = Environment(world, "numbered", EnvConfig(frame_stack=stack, action_repeat=repeat))
    for episode, length in enumerate(lengths):
        observation = env.reset(0, episode)
        seen, before = [world.shown], None
        for step in range(-(-length // repeat) + 1):
            wanted = ([seen[0]] * stack + seen)[-stack:]
            assert numbers(observation, env.guard.spec) == wanted
            if with_vector:
                assert observation[:4].view(np.float32)[0] == seen[-1]
            image = np.ascontiguousarray(observation[-1024:]).reshape(32, 32)
            vector = np.array([seen[-1]], np.float32)
            flat = flatten({"image": image, "vector": vector} if with_vector else image, env.guard.spec)
            before = stacked(flat, before if step else None, env.guard.spec)
            assert np.array_equal(before, observation)
            if world.left == 0:
                break
            observation = env.step(STILL).observation
            seen.append(world.shown)
        assert world.left == 0


def test_the_environments_of_a_vector_have_stacks_of_their_own() -> None:
    def make() -> Any:
        return SyncVectorEnv(
            [lambda: Numbered([9, 9, 9]), lambda: Numbered([9, 9, 9])], autoreset_mode=AutoresetMode.DISABLED
        )

    batch = open_batch(make, EnvConfig(num_envs=2, frame_stack=3), "vector")
    assert [numbers(batch.reset(position, 0, 0), batch.spec) for position in (0, 1)] == [[1, 1, 1], [2, 2, 2]]
    batch.step(np.zeros((2, 1), np.float32))  # the first reset was one of both
    assert numbers(batch.reset(1, 0, 1), batch.spec) == [4, 4, 4]
    first, second = batch.step(np.zeros((2, 1), np.float32))
    assert numbers(first.observation, batch.spec) == [1, 2, 3]
    assert numbers(second.observation, batch.spec) == [4, 4, 5]


def test_an_image_whose_buffer_is_reused_is_copied() -> None:
    dot, buffer = Dot(), np.zeros((SIDE, SIDE, 3), np.uint8)
    dot.observe = lambda: buffer  # type: ignore[method-assign]
    env = Environment(dot, "dot", EnvConfig(frame_stack=2))
    first = env.reset(0, 0)
    buffer[:] = 7
    second = env.step(STILL).observation.reshape(2, -1)
    assert (first == 0).all() and (second[0] == 0).all() and (second[1] == 7).all()


def test_frames_can_only_be_stacked_where_there_are_images() -> None:
    with pytest.raises(
        UserError, match=r"env.frame_stack=3 stacks images, and Sound observes none; .* --env.pixels 84"
    ):
        Environment(Sound(), "sound", EnvConfig(frame_stack=3))
