"""Episodes of an evaluation: what each has come to, whatever ended it, and that whoever plays them may stop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from t3d.config import EnvConfig
from t3d.policy.spec import Floats
from t3d.types import EpisodeResult
from t3d.world.evaluate import Stopped, finish, open_for_evaluation, play_episodes
from t3d.world.guard import Environment
from worlds import Toy


class Ending(Toy):
    """Its seed says after how many steps it terminates; the second step of each episode has a bad reward."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.left = seed or 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, *_ = super().step(action)
        self.left -= 1
        return observation, np.nan if self.t == 2 else reward, self.left == 0, False, {"goal": self.left == 0}


def still(observations: NDArray[Any]) -> Floats:
    return np.zeros((len(observations), 1), np.float32)


def test_an_episode_is_a_value_that_says_how_it_went() -> None:
    env_batch = open_for_evaluation(Ending, EnvConfig(bad_values="clip"), "a test", seed=1)
    played = finish(play_episodes(still, env_batch, [1, 3, 9], max_steps=4, first_episode=5))
    assert played == [
        EpisodeResult(0, 5, 1.0, 1, terminated=True, bad_values=0),
        EpisodeResult(0, 6, 2.0, 3, terminated=True, bad_values=1),
        EpisodeResult(0, 7, 3.0, 4, terminated=False, bad_values=1),
    ]


def test_whoever_plays_may_stop_before_any_step_and_play_again() -> None:
    env_batch = open_for_evaluation(Ending, EnvConfig(bad_values="clip"), "a test", seed=1)
    left = iter(range(3))

    def interrupt() -> None:
        if next(left, None) is None:
            raise Stopped

    with pytest.raises(Stopped):
        finish(play_episodes(still, env_batch, [9], 100), 1, interrupt)
    (again,) = finish(play_episodes(still, env_batch, [3], 100))
    assert (again.length, again.bad_values) == (3, 1), "nothing of the interrupted episode counts"


def test_every_episode_of_a_vector_environment_has_its_own_bad_values() -> None:
    def pair() -> Any:
        return SyncVectorEnv([Ending, Ending], autoreset_mode=AutoresetMode.DISABLED)

    cfg = EnvConfig(bad_values="clip", num_envs=2)
    for lengths in [(2, 4), (4, 2), (1, 4), (4, 1)]:
        env_batch = open_for_evaluation(pair, cfg, "a test", seed=1)
        played = finish(play_episodes(still, env_batch, lengths, max_steps=9))
        assert [(episode.length, episode.bad_values) for episode in played] == [(n, int(n > 1)) for n in lengths]


def test_a_request_after_the_last_step_does_not_drop_an_evaluation() -> None:
    env_batch = open_for_evaluation(Ending, EnvConfig(bad_values="clip"), "a test", seed=1)
    asked: list[None] = []
    played = finish(play_episodes(still, env_batch, [2, 3], 100), 2, lambda: asked.append(None))
    assert len(played) == 2 and len(asked) == 6, "before each of five steps, and between the episodes"


def test_what_an_environment_says_of_a_step_is_at_hand() -> None:
    env = Environment(Ending(), "a test")
    env.reset(1, 0)
    assert env.step(np.zeros(1, np.float32)).info == {"goal": True}
