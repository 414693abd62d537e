"""Rows know their neighbours: links against a list of everything that ever happened."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

import helpers
from t3d.data.replay import NONE, NOT_YET, OVERWRITTEN, Links
from t3d.types import GOES_ON, TERMINATED, TRUNCATED, UNKNOWN, Origins

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"))]
NOWHERE = UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN


class World:
    """Environments of several members that play random episodes, some of which are cut short or lost."""

    def __init__(self, rng: np.random.Generator, members: int, envs: int, capacity: int, device: str = "cpu") -> None:
        self.rng, self.capacity, self.device, self.envs = rng, capacity, device, envs
        self.links = Links(members, capacity, device)
        self.history: list[list[tuple[int, int, int, int]]] = [[] for _ in range(members)]
        self.ended: list[set[int]] = [set() for _ in range(members)]  # transitions known to go on to nothing
        self.playing = [[(0, 0)] * envs for _ in range(members)]  # episode and step of each environment
        self.episodes = 0

    def play(self, steps: int) -> None:
        """Adds a block of transitions for each member, in the order that its environments happen to deliver them."""
        blocks = []
        for member, history in enumerate(self.history):
            new = [self._step(member) for _ in range(int(self.rng.integers(0, steps + 1)))]
            history += [one for one in new if one is not None]
            kept = [one for one in new if one is not None]
            blocks.append((member, np.array(kept, np.int32).reshape(-1, 4), len(history)))
        self.links.add(*(block for block in blocks if len(block[1])))

    def _step(self, member: int) -> tuple[int, int, int, int] | None:
        env = int(self.rng.integers(self.envs))
        episode, step = self.playing[member][env]
        chance = self.rng.random()
        if chance < 0.02:  # a bad value, or the actor is lost: what happened is not stored, and the next episode begins
            self.playing[member][env] = episode + int(self.rng.integers(1, 3)), 0
            self.episodes += 1
            return None
        ending = TERMINATED if chance < 0.1 else TRUNCATED if chance < 0.2 else GOES_ON
        self.playing[member][env] = (episode, step + 1) if ending == GOES_ON else (episode + 1, 0)
        self.episodes += ending != GOES_ON
        return env, episode, step, ending

    def resume(self, *, actors: bool) -> None:
        """Puts the origins that are left into new links; with actors, the episodes in progress are abandoned."""
        old, self.links = self.links, Links(len(self.history), self.capacity, self.device)
        for member, history in enumerate(self.history):
            first, stop = max(0, len(history) - self.capacity), len(history)
            rows = np.arange(first, stop) % self.capacity
            self.links.origins[member, rows] = old.origins[member, rows]
            self.links.rebuild(member, first, stop)
            if actors:
                self.ended[member] |= set(range(stop))
                self.playing[member] = [(episode + 1, 0) for episode, _ in self.playing[member]]
        if actors:
            self.links.end_episodes()

    def wrong(self) -> list[Any]:
        """Rows whose links are not what history says."""
        found = list[Any]()
        nexts, previous = self.links.next.cpu().numpy(), self.links.previous.cpu().numpy()
        for member, history in enumerate(self.history):
            at = {one[:3]: number for number, one in enumerate(history)}
            newest = {one[0]: number for number, one in enumerate(history)}
            for number in range(max(0, len(history) - self.capacity), len(history)):
                expected = self._expected(member, number, at, newest)
                row = number % self.capacity
                if (nexts[member, row], previous[member, row]) != expected:
                    found.append((member, number, history[number], expected, nexts[member, row], previous[member, row]))
                if tuple(self.links.origins[member, row]) != history[number]:
                    found.append((member, number, "origin"))
        return found

    def _expected(self, member: int, number: int, at: dict[Any, int], newest: dict[int, int]) -> tuple[int, int]:
        env, episode, step, ending = self.history[member][number]
        oldest = max(0, len(self.history[member]) - self.capacity)
        later, earlier = at.get((env, episode, step + 1)), at.get((env, episode, step - 1))
        if later is not None:
            following = later % self.capacity
        elif ending != GOES_ON or newest[env] > number or number in self.ended[member]:
            following = NONE
        else:
            following = NOT_YET
        if step == 0:
            return following, NONE
        assert earlier is not None
        return following, earlier % self.capacity if earlier >= oldest else OVERWRITTEN


@pytest.mark.parametrize("device", DEVICES)
@given(
    seed=some.integers(0, 2**32),
    members=some.integers(1, 3),
    envs=some.integers(1, 5),
    capacity=some.sampled_from([1, 2, 3, 7, 50, 200]),
    actors=some.booleans(),
    what=some.lists(some.sampled_from(["play", "play", "play", "one", "resume"]), max_size=30),
)
def test_neighbours_are_those_of_history(
    device: str, seed: int, members: int, envs: int, capacity: int, actors: bool, what: list[str]
) -> None:
    world = World(np.random.default_rng(seed), members, envs, capacity, device)
    for one in what:
        if one == "resume":
            world.resume(actors=actors)  # a run has actors from the start, or never
        else:
            world.play(1 if one == "one" else 40)
        assert world.wrong() == []


@pytest.mark.slow
def test_a_hundred_thousand_episodes() -> None:
    played, checked, rng = 0, 0, np.random.default_rng(0)
    while played < 100_000:
        world = World(rng, int(rng.integers(1, 4)), int(rng.integers(1, 7)), int(rng.integers(10, 2000)))
        actors = bool(rng.random() < 0.5)
        for _ in range(int(rng.integers(1, 12))):
            world.play(3000)
            if rng.random() < 0.3:
                world.resume(actors=actors)
            assert world.wrong() == []
            checked += sum(min(len(history), world.capacity) for history in world.history)
        played += world.episodes
    assert checked > 300_000


def test_a_row_says_what_it_knows() -> None:
    links = Links(1, 4, "cpu")
    origins = [(0, 0, 0, GOES_ON), (1, 5, 0, GOES_ON), (0, 0, 1, TERMINATED)]
    links.add((0, np.array(origins, np.int32), 3))
    assert links.next[0, :3].tolist() == [2, NOT_YET, NONE] and links.previous[0, :3].tolist() == [NONE, NONE, 0]
    links.add((0, np.array([(1, 6, 0, GOES_ON)], np.int32), 4))
    assert links.next[0].tolist() == [2, NONE, NONE, NOT_YET], "environment 1 has begun another episode: 5 was cut"
    links.add((0, np.array([(0, 1, 0, GOES_ON)], np.int32), 5))
    assert links.previous[0].tolist() == [NONE, NONE, OVERWRITTEN, NONE], "the ring has lost the first transition"
    links.end_episodes()
    assert NOT_YET not in links.next[0].tolist()


def test_rows_of_which_nothing_is_known_have_no_neighbours() -> None:
    links = Links(1, 8, "cpu")
    rows: Origins = np.array([NOWHERE, (0, 0, 0, GOES_ON), NOWHERE, NOWHERE, (0, 0, 1, GOES_ON)], np.int32)
    links.add((0, rows, 5))
    assert links.next[0, :5].tolist() == [NONE, 4, NONE, NONE, NOT_YET]
    assert links.previous[0, :5].tolist() == [NONE, NONE, NONE, NONE, 1]


def test_a_rollout_says_where_its_rows_come_from(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """CountingEnv's observations are (environment, episode, step after): origins must say the same."""
    from t3d.data.memory import Memory  # noqa: PLC0415
    from t3d.run.live import train  # noqa: PLC0415

    memories = helpers.caught(monkeypatch, Memory)
    helpers.CountingEnv.made = 0
    cfg = helpers.small_config(device="cpu", env={"id": "", "num_envs": 3}, run={"root": str(tmp_path)})
    list(train(cfg, make_env=helpers.CountingEnv))
    replay = memories[-1].replay
    rows, origins = replay.contents(0, 0, 300)["rows"], replay.origins(0, 0, 300)
    s2, terminated = rows[:, -3:], rows[:, -4]
    assert np.array_equal(origins[:, 2] + 1, s2[:, 2]), "the step"
    assert len({(int(env), int(number)) for env, number in zip(origins[:, 0], s2[:, 0], strict=True)}) == 3
    over = s2[:, 2] == 3 + s2[:, 1] % 5
    expected = np.where(over, np.where(s2[:, 1] % 2 == 0, TERMINATED, TRUNCATED), GOES_ON)
    assert np.array_equal(origins[:, 3], expected) and np.array_equal(origins[:, 3] == TERMINATED, terminated == 1)
    follow = replay.links.next[0, :300].long()
    has_next = follow >= 0
    assert has_next.sum() > 150
    assert np.array_equal(rows[has_next.numpy()][:, -3:], rows[follow[has_next].numpy()][:, :3]), "s2 is the next s"
    assert (~has_next.numpy() == (over | (np.arange(300) >= 297))).all()
