"""Replays of images in checkpoints: each frame once, complete after any number of savings, and nothing forged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from image_rollouts import Player, image_spec
from t3d.data.frames import FrameReplay
from t3d.files import CORRUPT_ERRORS, Refused
from t3d.store import checkpoint as checkpoints
from t3d.store import contents
from t3d.store.checkpoint import Checkpoint
from t3d.store.contents import write_file
from t3d.types import UNKNOWN

pytestmark = pytest.mark.usefixtures("shared_segments")

SPEC, CAPACITY, ENVS = image_spec(2, 1, 3), 240, 2


def saved(root: Path, longest: int = 30, savings: int = 9) -> tuple[Checkpoint, FrameReplay, Player]:
    """A replay that has gone round, saved again and again."""
    player = Player(np.random.default_rng(0), SPEC, 0, ENVS, (1, longest))
    replay, before = FrameReplay(SPEC, CAPACITY, 1, "cpu", ENVS), None
    for number in range(1, savings + 1):
        replay.add(player.play(70, 3))
        state = {"members": ["seed-0"], "added": list(replay.added), "frames": replay.state()}
        before, _ = checkpoints.save(root, number, state, replay, before)
    assert before is not None
    return before, replay, player


def filled(checkpoint: Checkpoint, capacity: int = CAPACITY) -> FrameReplay:
    replay, state = FrameReplay(SPEC, capacity, 1, "cpu", ENVS), checkpoint.state()
    replay.restore(state["frames"], state["added"])
    replay.set_added(state["added"])
    checkpoint.fill(replay, 0, "seed-0")
    return replay


def states(replay: FrameReplay) -> tuple[Any, Any]:
    index = torch.arange(*replay.kept(0)).unsqueeze(0) % replay.capacity
    s, *_, s2 = replay.gather(index)
    return s[0].numpy().copy(), s2[0].numpy().copy()


@pytest.mark.parametrize("longest", [1, 4, 30])
@pytest.mark.parametrize("capacity", [CAPACITY, 1000, 60])
def test_a_replay_comes_back_and_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, longest: int, capacity: int
) -> None:
    checkpoint, replay, player = saved(tmp_path, longest)
    new = filled(checkpoint, capacity)
    for _ in range(8):
        first, stop = new.kept(0)
        history = player.history()
        for ours, naive in zip(states(new), (history.s, history.s2), strict=True):
            assert np.array_equal(ours, naive[first:stop])
        block = player.play(70, 3)
        replay.add(block)
        new.add(block)
    if capacity == CAPACITY:
        assert replay.kept(0) == new.kept(0) and np.array_equal(replay.numbers, new.numbers)
        assert torch.equal(replay.links.next, new.links.next) and torch.equal(replay._oldest, new._oldest)


def test_segments_are_shared_and_hold_each_frame_once_but_for_their_first_stacks(tmp_path: Path) -> None:
    checkpoint, _, _ = saved(tmp_path)
    loaded = [safetensors.numpy.load(checkpoint._read(one.file)) for one in checkpoint.segments]
    assert len({one.file.name.partition("-")[0] for one in checkpoint.segments}) > 2, "of several checkpoints"
    there = np.concatenate([np.unique(one["numbers"]) for one in loaded])
    repeated = len(there) - len(np.unique(there))
    assert [len(one["frames"]) for one in loaded] == [len(np.unique(one["numbers"])) for one in loaded]
    assert repeated <= (len(loaded) - 1) * ENVS * SPEC.stack


def test_the_space_it_needs_is_what_it_takes(tmp_path: Path) -> None:
    player, replay = (
        Player(np.random.default_rng(0), SPEC, 0, ENVS, (1, 9)),
        FrameReplay(SPEC, CAPACITY, 1, "cpu", ENVS),
    )
    replay.add(player.play(211))
    written: list[Path] = []
    made = list(contents.write_segments(tmp_path, 1, ["seed-0"], replay, [], written))
    arrays = [array for path in written for array in safetensors.numpy.load_file(path).values()]
    assert contents.new_bytes(["seed-0"], replay, []) == sum(array.nbytes for array in arrays)
    assert contents.new_bytes(["seed-0"], replay, made) == 0


def test_large_frames_make_shorter_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = FrameReplay(SPEC, CAPACITY, 1)
    assert contents.rows_of(replay) == contents.SEGMENT_ROWS
    monkeypatch.setattr(contents, "SEGMENT_FRAME_BYTES", 10 * SPEC.frame_size)
    assert contents.rows_of(replay) == 10


FORGED: dict[str, Any] = {
    "no frames": {"frames": None},
    "no numbers": {"numbers": None},
    "one frame too few": {"frames": lambda found: found["frames"][1:]},
    "smaller frames": {"frames": lambda found: found["frames"][:, 1:]},
    "one axis": {"frames": lambda found: found["frames"][0]},
    "no axes": {"frames": lambda found: np.zeros((), np.uint8)},
    "other frames": {"frames": lambda found: found["frames"].astype(np.float32)},
    "negative numbers": {"numbers": lambda found: found["numbers"] - 10**6},
    "huge numbers": {"numbers": lambda found: found["numbers"] + 2**61},
    "disorder": {"numbers": lambda found: found["numbers"][:, ::-1].copy()},
    "narrow numbers": {"numbers": lambda found: found["numbers"][:, 1:].copy()},
    "short numbers": {"numbers": lambda found: found["numbers"].astype(np.int32)},
    "no numbers at all": {"numbers": lambda found: found["numbers"][:0], "frames": lambda found: found["frames"][:0]},
}


@pytest.mark.parametrize("how", FORGED)
@pytest.mark.parametrize("which", [0, -1])
def test_forged_segments_with_the_right_hashes_are_refused(tmp_path: Path, how: str, which: int) -> None:
    checkpoint, _, _ = saved(tmp_path)
    one = checkpoint.segments[which]
    found = safetensors.numpy.load(checkpoint._read(one.file))
    for name, change in FORGED[how].items():
        found = {key: value for key, value in found.items() if key != name} | (
            {} if change is None else {name: np.ascontiguousarray(change(found))}
        )
    file = write_file(tmp_path / "replay" / "forged.safetensors", safetensors.numpy.save(found), [])
    others = list(checkpoint.segments)
    others[which] = one._replace(file=file)
    with pytest.raises(CORRUPT_ERRORS):
        filled(checkpoint._replace(segments=tuple(others)))


@pytest.mark.parametrize("damaged", [(0,), (2,), (-1,), (0, 1, 3)])
def test_where_a_segment_is_damaged_another_ones_transitions_are_whole(
    tmp_path: Path, damaged: tuple[int, ...]
) -> None:
    checkpoint, _, player = saved(tmp_path)
    lost = frozenset(checkpoint.segments[which].file.name for which in damaged)
    replay = filled(checkpoint._replace(damaged=lost))
    for _ in range(9):
        seen = {one.tobytes() for one in player.history().s}
        first, stop = replay.kept(0)
        assert stop > first
        assert {one.tobytes() for one in states(replay)[0]} <= seen, "never frames of other transitions among them"
        player.abandon()
        replay.add(player.play(50))
    assert stop - first > 0.8 * CAPACITY and (replay.origins(0, first, stop)[:, 0] != UNKNOWN).all()
    with pytest.raises(Refused, match="no intact segment"):
        filled(checkpoint._replace(damaged=frozenset(one.file.name for one in checkpoint.segments)))
