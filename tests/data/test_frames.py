"""Frames stored once equal a naive replay that stores every stack, whatever is played, cut, overwritten or resumed."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from numpy.typing import NDArray

import helpers
from image_rollouts import Player, image_spec
from t3d.config import Config, TD3Config, merge
from t3d.data.frames import FrameReplay
from t3d.data.memory import Memory, bytes_needed
from t3d.data.samplers import UniformSampler, n_step_batch
from t3d.errors import FramesNotWritten, UserError
from t3d.policy.spec import Spec
from t3d.random_streams import Counted
from t3d.run.placement import replay_device
from t3d.run.saver import Saver

GAMMA = 0.5  # sums of a few whole rewards are exact
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"))]


def wrong(replay: FrameReplay, players: list[Player], n: int) -> list[str]:
    """What differs from the naive replays, in the batch of all transitions that are kept."""
    found = []
    device = replay.rows.device
    for member, player in enumerate(players):
        history, (first, stop) = player.history(), replay.kept(member)
        assert stop == len(history.origins) and int(replay.size[member]) == stop - first
        numbers = np.arange(first, stop)
        index = torch.zeros(len(players), len(numbers), dtype=torch.int64, device=device)
        index[member] = torch.from_numpy(numbers % replay.capacity)
        gamma = torch.full(index.shape, GAMMA, device=device)
        batch = n_step_batch(replay, index, gamma, torch.ones_like(gamma), n)
        last, r, discount = numbers, history.r[numbers], np.full(len(numbers), GAMMA, np.float32)
        for _ in range(n - 1):
            following = history.following[last]
            goes_on = following >= 0
            r = r + np.where(goes_on, discount * history.r[following], 0).astype(np.float32)
            last, discount = np.where(goes_on, following, last), np.where(goes_on, discount * GAMMA, discount)
        expected: dict[str, NDArray[Any]] = {
            "s": history.s[numbers],
            "a": history.a[numbers],
            "r": r,
            "s2": history.s2[last],
            "terminated": history.terminated[last],
            "discount": discount,
        }
        for name, value in expected.items():
            ours = getattr(batch, name)[member].cpu().numpy()
            if not np.array_equal(ours, value) or ours.dtype != value.dtype:
                found.append(f"member {member}: {name} of {np.unique(np.nonzero(ours != value)[0])} from {first}")
    return found


def resumed(replay: FrameReplay, spec: Spec, capacity: int, envs: int, folder: Path | None = None) -> FrameReplay:
    """Another replay with the same contents, which come in segments that overlap what is kept."""
    new = FrameReplay(spec, capacity, len(replay.added), replay.rows.device, envs, folder)
    new.restore(replay.state(), replay.added)
    new.set_added(replay.added)
    for member in range(len(replay.added)):
        first, stop = replay.kept(member)
        for start in reversed(range(first, stop, 37)):
            contents = replay.contents(member, start, min(stop, start + 37))
            new.put(member, start, contents, gone=max(0, new.kept(member)[0] - start))
        new.rebuild(member, *new.kept(member))
    return new


@pytest.mark.parametrize("device", DEVICES)
@given(
    seed=some.integers(0, 2**32),
    layout=some.sampled_from(
        [
            (0, 1, (1, 2, 2)),
            (3, 1, (1, 2, 2)),
            (2, 2, (3, 2, 2)),
            (1, 1, (1, 3, 3)),
            (0, 2, (1, 2, 2)),
            (4, 1, (2, 2, 2)),
        ]
    ),
    stack=some.integers(1, 4),
    n=some.integers(1, 5),
    members=some.integers(1, 2),
    envs=some.integers(1, 5),
    capacity=some.sampled_from([1, 2, 7, 50, 300]),
    longest=some.sampled_from([1, 3, 12, 80]),
    what=some.lists(some.sampled_from(["block", "block", "one", "runs", "resume", "abandon"]), min_size=1, max_size=25),
)
def test_lean_is_naive(
    device: str,
    seed: int,
    layout: Any,
    stack: int,
    n: int,
    members: int,
    envs: int,
    capacity: int,
    longest: int,
    what: Any,
) -> None:
    rng = np.random.default_rng(seed)
    vector, images, shape = layout
    spec = image_spec(vector, images, stack, shape)
    players = [Player(rng, spec, member, envs, (1, longest)) for member in range(members)]
    replay = FrameReplay(spec, capacity, members, device, envs)
    for one in ["block", *what]:
        if one == "resume":
            replay = resumed(replay, spec, capacity, envs)
        elif one == "abandon":
            for player in players:
                player.abandon()
        else:
            most = 1 if one == "one" else 120
            runs = 9 if one == "runs" else 1
            replay.add(*(player.play(int(rng.integers(1, most, endpoint=True)), runs) for player in players))
        assert wrong(replay, players, n) == []
        for member in range(members):
            first, stop = replay.kept(member)
            assert 1 <= stop - first <= capacity and stop - first >= min(stop, capacity // 3)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_episodes() -> None:
    played, checked, wraps, rng = 0, 0, 0, np.random.default_rng(18)
    while played < 100_000:
        spec = image_spec(int(rng.integers(3)), int(rng.integers(1, 3)), int(rng.integers(1, 5)), (1, 2, 2))
        envs, capacity, longest = int(rng.integers(1, 7)), int(rng.integers(100, 4000)), int(rng.integers(1, 81))
        player = Player(rng, spec, 0, envs, (1, longest), cut=float(rng.choice([0, 0.05, 0.5])))
        replay = FrameReplay(spec, capacity, 1, "cpu", envs)
        for _ in range(int(rng.integers(1, 12))):
            for _ in range(int(rng.integers(1, 40))):
                replay.add(player.play(int(rng.integers(1, 200)), int(rng.integers(1, 9))))
            if rng.random() < 0.3:
                replay = resumed(replay, spec, capacity, envs)
            assert wrong(replay, [player], int(rng.integers(1, 6))) == []
            checked += int(replay.size[0])
        played, wraps = played + player.episodes, wraps + replay.added[0] // capacity
    assert checked > 300_000 and wraps > 100


@pytest.mark.parametrize("stack", [1, 3, 4])
@pytest.mark.parametrize("envs", [1, 16])
def test_a_transition_takes_at_most_1_05_frames(stack: int, envs: int) -> None:
    """With episodes of 50 steps, environments in turn: everything that rows have room for is kept."""
    spec, capacity = image_spec(0, 1, stack), 20_000
    replay, player = (
        FrameReplay(spec, capacity, 1, "cpu", envs),
        Player(np.random.default_rng(0), spec, 0, envs, (50, 50), 0),
    )
    blocks = 0
    while replay.added[0] < 3 * capacity:
        replay.add(player.play(777, 1))
        blocks += 1
    assert replay.kept(0) == (replay.added[0] - capacity, replay.added[0])
    assert replay.ring.words.nbytes / spec.frame_size / capacity <= 1.05
    assert replay.written[0] / replay.added[0] < 1.021, "one frame a step, and one for the start of an episode"


def test_short_episodes_leave_early_and_are_not_drawn() -> None:
    spec = image_spec(1, 1, 2)
    player = Player(np.random.default_rng(0), spec, 0, 2, (1, 1), 0)
    cfg = merge(
        Config(),
        {
            "replay": {"capacity": 300},
            "td3": {"batch_size": 256, "critic_loss": "huber"},
            "env": {"num_envs": 2},
        },
    )
    for sampling in ("uniform", "proportional", "lap"):
        memory = Memory(spec, merge(cfg, {"replay": {"sampling": sampling}}), "cpu")
        for _ in range(30):
            memory.add(player.play(int(player.rng.integers(1, 25))))
            first, stop = memory.replay.kept(0)
            drawn = np.concatenate([memory.sample().index[0].numpy() for _ in range(5)])
            memory.feedback(memory.sample().index, torch.rand(1, 2, 256))
            assert set(drawn.tolist()) <= set((np.arange(first, stop) % 300).tolist())
        assert stop - first < 200 and stop > 300, "two frames a transition"
        assert len(set(drawn.tolist())) > 0.9 * (stop - first)
        player.origins = player.origins[:0]


@given(
    seed=some.integers(0, 2**32),
    stack=some.integers(1, 8),
    envs=some.integers(1, 5),
    capacity=some.sampled_from([1, 7, 50, 300, 2000]),
    steps=some.integers(1, 400),
    lengths=some.sampled_from([(1, 1), (1, 2), (1, 30), (50, 50)]),
    runs=some.sampled_from([1, 40]),
)
def test_what_is_kept_does_not_depend_on_how_long_a_run_will_be(
    seed: int, stack: int, envs: int, capacity: int, steps: int, lengths: tuple[int, int], runs: int
) -> None:
    spec, rng = image_spec(0, 1, stack), np.random.default_rng(seed)
    short, long = (FrameReplay(spec, capacity, 1, "cpu", envs, None, most) for most in (steps, None))
    player = Player(rng, spec, 0, envs, lengths)
    while short.added[0] < steps:
        block = player.play(min(int(rng.integers(1, 90)), steps - short.added[0]), runs)
        short.add(block)
        long.add(block)
        first, stop = short.kept(0)
        assert (first, stop) == long.kept(0) and short.state()["written"] == long.state()["written"]
        ours, theirs = (one.gather(torch.arange(first, stop).unsqueeze(0) % one.capacity) for one in (short, long))
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    assert short.ring.capacity <= long.ring.capacity
    assert short.ring.words.nbytes <= (stack + 1) * 2 * steps * spec.frame_size


def test_all_that_is_kept_is_drawn_equally_often() -> None:
    spec = image_spec(0, 1, 2)
    player = Player(np.random.default_rng(0), spec, 0, 1, (1, 1), 0)
    replay = FrameReplay(spec, 100, 1)
    replay.add(player.play(333))
    first, stop = replay.kept(0)
    sampler = UniformSampler(replay, TD3Config(batch_size=500), [7])
    counts = np.zeros(100)
    for _ in range(200):
        np.add.at(counts, sampler.sample().index[0].numpy(), 1)
    expected = 100_000 / (stop - first)
    drawn = counts[np.arange(first, stop) % 100]
    assert drawn.sum() == 100_000 and ((drawn - expected) ** 2 / expected).sum() < 2 * (stop - first)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_an_environment_that_was_silent_while_the_ring_went_round_goes_on_with_its_stack(is_resumed: bool) -> None:
    spec = image_spec(0, 1, 3)
    rng = np.random.default_rng(0)
    slow, fast = (Player(rng, spec, 0, 1, (10, 10), 0) for _ in range(2))
    replay = FrameReplay(spec, 50, 1, "cpu", 2)
    block = slow.play(4)
    replay.add(block)
    block.rows[:] = 0  # whoever made it may use the memory again
    for _ in range(5):
        block = fast.play(40)
        replay.add(block._replace(origins=block.origins + np.array([1, 0, 0, 0], np.int32)))
    replay = resumed(replay, spec, 50, 2) if is_resumed else replay
    replay.add(slow.play(3))
    index = torch.arange(204, 207).unsqueeze(0) % 50
    s, *_, s2 = replay.gather(index)
    assert np.array_equal(s[0], slow.history().s[4:]) and np.array_equal(s2[0], slow.history().s2[4:])


def test_a_transition_whose_predecessor_is_missing_begins_a_stack() -> None:
    spec = image_spec(0, 1, 3)
    player = Player(np.random.default_rng(0), spec, 0, 1, (10, 10), 0)
    block, replay = player.play(6), FrameReplay(spec, 50, 1)
    there = [0, 1, 3, 4]
    replay.add(block._replace(rows=block.rows[there], origins=block.origins[there]))
    s, *_, s2 = (states[0].numpy() for states in replay.gather(torch.arange(4).unsqueeze(0)))
    history, frame = player.history(), block.s
    assert np.array_equal(s[:2], history.s[:2]) and np.array_equal(s2[:2], history.s2[:2])
    assert np.array_equal(s[2], np.concatenate([frame[3]] * 3))
    assert np.array_equal(s2[3], np.concatenate([frame[3], frame[4], block.s2[4]]))


@pytest.mark.parametrize("capacity", [40, 300, 700])
def test_contents_put_back_are_the_same_also_in_a_replay_of_another_capacity(capacity: int) -> None:
    spec, rng = image_spec(2, 1, 3), np.random.default_rng(1)
    players = [Player(rng, spec, member, 3, (1, 12)) for member in range(2)]
    replay = FrameReplay(spec, 300, 2, "cpu", 3)
    for _ in range(12):
        replay.add(*(player.play(70) for player in players))
    new = resumed(replay, spec, capacity, 3)
    assert wrong(new, players, 3) == []
    if capacity == 300:
        assert [new.kept(member) for member in range(2)] == [replay.kept(member) for member in range(2)]
        for _ in range(12):
            blocks = [player.play(70) for player in players]
            replay.add(*blocks)
            new.add(*blocks)
        assert np.array_equal(replay.numbers, new.numbers) and replay.oldest_complete_row == new.oldest_complete_row
        assert torch.equal(replay.ring.words, new.ring.words)
    assert wrong(new, players, 3) == []


@pytest.mark.parametrize(
    "numbers",
    [[[0, 1, 9]], [[-1, 0, 1]], [[1, 0, 2]], [[0, 0, 1]]],
    ids=["not written", "negative", "order", "too few"],
)
def test_numbers_of_frames_that_cannot_be_are_refused(numbers: list[list[int]]) -> None:
    replay = FrameReplay(image_spec(0, 1, 2), 10, 1)
    nothing = replay.state()["seen"]
    replay.restore({"written": [5], "first": [0], "seen": nothing}, [1])
    with pytest.raises(ValueError, match="numbers of frames"):
        contents = replay.contents(0, 0, 1)
        replay.put(0, 0, {**contents, "numbers": np.array(numbers), "frames": np.zeros((3, 4), np.uint8)})
    with pytest.raises(ValueError, match="begin after"):
        replay.restore({"written": [5], "first": [1], "seen": nothing}, [1])


def test_a_file_is_memory(tmp_path: Path) -> None:
    spec, rng = image_spec(3, 2, 3), np.random.default_rng(2)
    player = Player(rng, spec, 0, 2, (1, 30))
    replays = [FrameReplay(spec, 200, 1, "cpu", 2, folder) for folder in (None, tmp_path / "not there yet")]
    for _ in range(40):
        block = player.play(int(rng.integers(1, 60)))
        for replay in replays:
            replay.add(block)
    replays.append(resumed(replays[1], spec, 200, 2, tmp_path))
    for replay in replays:
        assert wrong(replay, [player], 2) == []
    assert list(tmp_path.iterdir()) == [], "the file has no name, so that nothing is left of it whatever happens"


def test_a_full_disk_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = image_spec(0, 1, 3)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Mock(free=10**6))
    words = (
        r"images of the replay need .* GiB and the disk of .* GiB free; replay.capacity=(\d+) would fit there, or use"
    )
    with pytest.raises(UserError, match=words) as refused:
        FrameReplay(spec, 10**6, 2, "cpu", 3, tmp_path)
    fits = int(str(refused.value).partition("replay.capacity=")[2].split()[0])
    ring = FrameReplay(spec, fits, 2, "cpu", 3, tmp_path).ring
    assert 0.89 * 10**6 < ring.words.nbytes <= 0.9 * 10**6
    with pytest.raises(UserError, match=r"GiB free; use another run.root"):
        FrameReplay(image_spec(0, 1, 3, (1, 10**3, 10**3)), 10**5, 1, folder=tmp_path)
    replay = FrameReplay(spec, 10, 1, folder=tmp_path)

    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(FramesNotWritten, match="could not be written to disk: No space left on device; make room"):
        replay.add(Player(np.random.default_rng(0), spec, 0, 1, (5, 5)).play(3))


def test_transitions_that_a_full_disk_has_lost_are_not_saved_as_if_they_were_there() -> None:
    saver = Saver(Mock(), Mock(), None, Mock())
    for error, consistent in ((UserError("between two steps"), True), (FramesNotWritten("lost"), False)):
        with pytest.raises(UserError), saver:
            raise error
        assert saver._consistent is consistent


def test_memory_is_counted_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = image_spec(2, 2, 3, (3, 32, 32))
    cfg = helpers.small_config(total_steps=5000, seeds=[0, 1], env={"num_envs": 4}, replay={"capacity": 1000})
    replay = Memory(spec, cfg, "cpu").replay
    assert isinstance(replay, FrameReplay)
    links = replay.links
    host = links.origins.nbytes + links.next.nbytes + links.previous.nbytes + replay.numbers.nbytes
    assert bytes_needed(spec, cfg) == replay.rows.nbytes + host + replay.ring.words.nbytes
    on_disk = merge(cfg, {"replay": {"frames_on_disk": True}})
    assert bytes_needed(spec, on_disk) == replay.rows.nbytes + host
    monkeypatch.setattr("t3d.run.placement._free_bytes", lambda device: 2**28)  # of which updates need a part
    asked = merge(cfg, {"device": "cpu", "total_steps": 10**6, "replay": {"capacity": 10**6}})
    with pytest.raises(UserError, match=r"replay.capacity=\d+ would fit, --replay.frames-on-disk") as refused:
        replay_device(asked, spec)
    fits = int(str(refused.value).partition("replay.capacity=")[2].split()[0])
    assert 0.8 * 2**28 < bytes_needed(spec, merge(asked, {"replay": {"capacity": fits}})) < 2**28
    assert replay_device(on_disk, spec) == "cpu"


def test_images_are_not_normalised_and_rewards_can_be_scaled() -> None:
    spec = image_spec(3, 1, 2)
    cfg = helpers.small_config(normalise_observations=True)
    with pytest.raises(UserError, match="normalise_observations=true is for vectors"):
        Memory(spec, cfg, "cpu")
    with pytest.raises(UserError, match="the observations hold no images"):
        Memory(helpers.make_spec(), helpers.small_config(replay={"frames_on_disk": True}), "cpu")
    memory = Memory(spec, merge(cfg, {"normalise_observations": False, "scale_rewards": True}), "cpu")
    player = Player(np.random.default_rng(0), spec, 0, 1, (5, 50))
    memory.add(player.play(100))
    batch, history = memory.sample(), player.history()
    assert memory.reward_scaler is not None
    scaled = history.r[batch.index[0].numpy()] / memory.reward_scaler.scale[0]
    np.testing.assert_allclose(batch.r[0].numpy(), scaled, rtol=1e-5)
    assert batch.s.dtype == torch.uint8 and batch.s.shape == (1, 16, spec.observation_width)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("sampling", ["uniform", "lap"])
def test_recorded_sampling_follows_what_is_added(sampling: str) -> None:
    spec, rng = image_spec(3, 1, 3, (3, 32, 32)), np.random.default_rng(3)
    cfg = helpers.small_config(
        total_steps=2_000,
        env={"num_envs": 2},
        td3={"batch_size": 64, "critic_loss": "huber"},
        replay={"sampling": sampling, "n_step": 3, "capacity": 500},
    )
    player, memory = Player(rng, spec, 0, 2, (1, 4)), Memory(spec, cfg, "cuda")
    assert memory.capture_safe
    memory.add(player.play(50))
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        for _ in range(3):
            memory.sample()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch = memory.sample()
    for _ in range(40):
        memory.add(player.play(int(rng.integers(1, 60))))
        graph.replay()
        torch.cuda.synchronize()
        first, stop = memory.replay.kept(0)
        index = batch.index[0].cpu().numpy()
        numbers = first + (index - first) % 500
        assert (numbers < stop).all()
        assert np.array_equal(batch.s[0].cpu().numpy(), player.history().s[numbers])
    assert stop - first < 500 < stop


SAMPLED: list[dict[str, Any]] = [{}, {"replay": {"n_step": 3}}, {"replay": {"sampling": "proportional"}}]


@pytest.mark.parametrize(
    ("changes", "vector"),
    [
        pytest.param(changes, vector, marks=() if row == vector else pytest.mark.slow)
        for row, changes in enumerate(SAMPLED)
        for vector in range(3)
    ],
    ids=str,
)
def test_what_is_compiled_for_a_gpu_can_be_traced_whole(
    changes: dict[str, Any], vector: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as a machine without one can tell; it gives the batch that is not compiled."""
    monkeypatch.setattr("t3d.data.samplers.open_streams", Counted)
    spec = image_spec(vector, 1, 3, (3, 32, 32))
    memory = Memory(spec, helpers.small_config(**changes), "cpu")
    assert isinstance(memory.replay, FrameReplay)
    memory.replay.ring.in_place = False  # as on a GPU
    memory.add(Player(np.random.default_rng(0), spec, 0, 1, (5, 50)).play(200))
    state = memory.state()
    plain = [part.clone() for part in memory.sample()]
    memory.restore(state)
    compiled = torch.compile(memory.sample, fullgraph=True, dynamic=False, backend="aot_eager")()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(compiled, plain, strict=True))
    torch.compiler.reset()
