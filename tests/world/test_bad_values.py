"""R8: whatever an environment returns, nothing that is not a sane number reaches the replay or a parameter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import helpers
import t3d
from t3d.algo.learner import Learner
from t3d.config import Config, EnvConfig, merge
from t3d.events import BadValueFound, End, EpisodeEnd, Eval, Event, Note, from_line
from t3d.policy.observations import FIXED_TO
from t3d.run.pace import Steady
from t3d.store.checkpoint import newest
from t3d.types import EpisodeResult
from t3d.world.episode import MOST_FRUITLESS
from t3d.world.guard import MOST_RESETS, BadValue, Environment
from worlds import BAD, Toy, one_bad


class GoesBad(Toy):
    """Sound, but for every tenth step after the 180th (the doctor takes some of them, then learning begins)."""

    taken = 0
    fault: Callable[[Toy], None]

    def step(self, action: Any) -> Any:
        GoesBad.taken += 1
        self.observation, self.reward = np.full(3, GoesBad.taken % 7, np.float32), 0.5
        if GoesBad.taken >= 180 and GoesBad.taken % 10 == 0:
            GoesBad.fault(self)
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated or GoesBad.taken % 25 == 0, info


def config(tmp_path: Path, handling: str) -> Config:
    changes = {"env": {"id": "", "bad_values": handling}, "eval": {"episodes": 1, "every_steps": 1000, "max_steps": 5}}
    return merge(helpers.small_config(log={"every_steps": 1}, run={"root": str(tmp_path), "name": "bad"}), changes)


def stored(folder: Path) -> np.ndarray[Any, Any]:
    """Every row in the replay of a run's newest checkpoint."""
    checkpoint, _ = newest(folder / "checkpoints")
    assert checkpoint is not None
    return np.concatenate([checkpoint.read_rows(segment) for segment in checkpoint.segments])


HANDLINGS = ["raise", "skip", "clip"]
CASES = [  # for quick tests one way to handle each
    pytest.param(name, handling, marks=() if row % len(HANDLINGS) == column else pytest.mark.slow)
    for row, name in enumerate(BAD)
    for column, handling in enumerate(HANDLINGS)
]


@pytest.mark.parametrize(("name", "handling"), CASES)
def test_a_bad_value_never_reaches_a_parameter(
    tmp_path: Path, name: str, handling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learners = helpers.caught(monkeypatch, Learner)
    GoesBad.taken, GoesBad.fault = 0, staticmethod(BAD[name])
    events: list[Event] = []
    field = name.split(maxsplit=1)[0]
    if handling == "raise":
        with pytest.raises(BadValue, match=rf"environment 0 of seed 0, episode \d+, step \d+: {field}"):
            events.extend(t3d.train(config(tmp_path, handling), make_env=GoesBad))
        written = [from_line(line) for line in (tmp_path / "bad" / "events.jsonl").read_text().splitlines()]
        end, met = written[-1], [event for event in written if isinstance(event, BadValueFound)]
        assert isinstance(end, End) and end.reason == "failed" and end.updates > 0 and field in end.text
        assert len(met) == 1
    else:
        events.extend(t3d.train(config(tmp_path, handling), make_env=GoesBad))
        end, met = events[-1], [event for event in events if isinstance(event, BadValueFound)]
        assert isinstance(end, End) and (end.reason, end.step, end.updates) == ("finished", 300, 200)
        assert [event.count for event in met] == [*range(1, 11), *([] if met[-1].count == 10 else [100])][: len(met)]
        assert len(met) == 10, "the first ten are told one by one"
        rows = stored(tmp_path / "bad")
        assert len(rows) == 300 and np.isfinite(rows).all() and np.abs(rows).max() <= FIXED_TO
    assert learners[0].updates > 0 and helpers.all_finite(learners[0])
    first = met[0]
    assert (first.env, first.member, first.seed, first.handling) == (0, 0, 0, handling)
    assert first.field.startswith(field) and first.episode >= 0 and first.episode_step > 0 and field in first.text


class Aliases(Toy):
    """Returns the same arrays every time and spoils them when it is called again."""

    def __init__(self) -> None:
        super().__init__()
        self.observation, self.reward = np.zeros(3, np.float32), np.zeros(())

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        self.observation[:] = 0
        return self.observation, {}

    def step(self, action: Any) -> Any:
        self.observation[:], self.reward[...] = np.nan, np.nan
        self.t += 1
        self.observation[:], self.reward[...] = self.t, -self.t
        return self.observation, self.reward, False, self.t == 5, {}


@pytest.mark.parametrize("handling", HANDLINGS)
def test_aliased_observations_and_rewards_do_not_change_what_is_stored(tmp_path: Path, handling: str) -> None:
    end = list(t3d.train(config(tmp_path, handling), make_env=Aliases))[-1]
    assert isinstance(end, End) and end.updates == 200
    rows = stored(tmp_path / "bad")
    t = np.arange(300) % 5
    assert np.array_equal(rows[:, 0], t) and np.array_equal(rows[:, -1], t + 1) and np.array_equal(rows[:, 4], -t - 1)


def test_skip_ends_the_episode_as_truncated_and_keeps_what_was_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    GoesBad.taken, GoesBad.fault = 0, staticmethod(BAD["reward NaN"])
    heard: list[EpisodeResult] = []
    monkeypatch.setattr(Steady, "hear", lambda _, member, episode: heard.append(episode))
    events = list(t3d.train(config(tmp_path, "skip"), make_env=GoesBad))
    cut = {event.episode: event.episode_step for event in events if isinstance(event, BadValueFound)}
    ended = {event.episode: event for event in events if isinstance(event, EpisodeEnd)}
    assert len(cut) == 10
    for episode, step in cut.items():
        assert ended[episode].length == step - 1 and not ended[episode].terminated
    assert {*cut} <= {episode.episode for episode in heard if episode.bad_values} < {*ended}


def test_clip_cuts_infinities_and_holds_the_last_sound_value_for_the_rest() -> None:
    toy = Toy()
    env = Environment(toy, "toy", EnvConfig(bad_values="clip"))
    env.reset(0, 0)
    toy.observation, toy.reward = np.array([1.0, 2.0, 3.0]), 1.0
    env.step(np.zeros(1, np.float32))
    for bad, expected in {np.nan: 2.0, np.inf: FIXED_TO, -1e30: -FIXED_TO}.items():
        toy.observation, toy.reward = np.array([5.0, bad, 7.0]), bad
        result = env.step(np.zeros(1, np.float32))
        assert result.observation.tolist() == [5.0, expected, 7.0] and result.valid
        assert result.reward == (0.0 if np.isnan(bad) else expected)
        toy.observation = np.array([1.0, 2.0, 3.0])
        env.step(np.zeros(1, np.float32))
    toy.observation, toy.reward = None, None
    result = env.step(np.zeros(1, np.float32))
    assert result.observation.tolist() == [1.0, 2.0, 3.0] and result.reward == 0.0


def test_a_bad_first_observation_is_skipped_by_resetting_again() -> None:
    toy, answers = Toy(), [one_bad(np.nan), one_bad(np.inf), one_bad(0.5)]
    toy.reset = lambda **_: (answers.pop(0), {})  # type: ignore[method-assign]
    env = Environment(toy, "toy", EnvConfig(bad_values="skip"))
    assert env.reset(0, 0)[1] == 0.5
    assert [fault.episode_step for fault in env.guard.take_faults()] == [0, 0]


def test_an_environment_without_a_sound_reset_or_step_ends_the_run(tmp_path: Path) -> None:
    toy, resets = Toy(), [0]

    def never(**_: Any) -> Any:
        resets[0] += 1
        return one_bad(np.nan), {}

    toy.reset = never  # type: ignore[method-assign]
    with pytest.raises(BadValue, match="nan"):
        Environment(toy, "toy", EnvConfig(bad_values="skip")).reset(0, 0)
    assert resets[0] == MOST_RESETS

    class AlwaysBad(Toy):
        def step(self, action: Any) -> Any:
            self.observation = one_bad(np.nan)
            return super().step(action)

    with pytest.raises(BadValue, match=f"{MOST_FRUITLESS} episodes in a row"):
        list(t3d.train(config(tmp_path, "skip"), make_env=AlwaysBad))


def test_members_that_lose_different_steps_all_reach_the_end(tmp_path: Path) -> None:
    GoesBad.taken, GoesBad.fault = 0, staticmethod(BAD["observation Inf"])
    cfg = merge(config(tmp_path, "skip"), {"seeds": [0, 1], "env": {"num_envs": 3}})
    end = list(t3d.train(cfg, make_env=GoesBad))[-1]
    assert isinstance(end, End) and (end.reason, end.step, end.updates) == ("finished", 300, 200)
    assert len(stored(tmp_path / "bad")) == 600


def test_a_vector_environment_is_judged_lane_by_lane(tmp_path: Path) -> None:
    def make() -> Any:
        return SyncVectorEnv([GoesBad] * 3, autoreset_mode=AutoresetMode.DISABLED)

    GoesBad.taken, GoesBad.fault = 0, staticmethod(BAD["observation NaN"])
    cfg = merge(config(tmp_path, "skip"), {"env": {"num_envs": 3}})
    events = list(t3d.train(cfg, make_env=make))
    met = [event for event in events if isinstance(event, BadValueFound)]
    assert met and all(event.env in (0, 1, 2) for event in met)
    rows = stored(tmp_path / "bad")
    assert len(rows) == 300 and np.isfinite(rows).all()


def test_evaluations_count_bad_values_and_the_doctor_notes_them(tmp_path: Path) -> None:
    class Sick(GoesBad):
        def step(self, action: Any) -> Any:
            GoesBad.taken += 200
            return super().step(action)

    GoesBad.taken, GoesBad.fault = 9, staticmethod(BAD["reward NaN"])
    cfg = merge(config(tmp_path, "clip"), {"eval": {"episodes": 5}})
    events = list(t3d.train(cfg, make_env=Sick))
    assert any(isinstance(event, Note) and "returned a bad value" in event.text for event in events)
    assert any(isinstance(event, Eval) and event.bad_values > 0 for event in events)
