"""Policies with images in files: they act as they did, keep their frames, need no torch, and refuse damage."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_policy_files import survivors

import faults
import t3d
from faults import rewrite_policy
from image_batches import image_spec
from t3d.config import TD3Config
from t3d.config.networks import actor_architecture
from t3d.errors import UserError
from t3d.files import unsealed
from t3d.policy.acting import MemberPolicy, PolicySnapshot
from t3d.policy.files import save_policy

SPEC = image_spec((3, 9, 11), (1, 8, 8), vector=2, stack=3)
CFG = TD3Config(actor_hidden=(4,), encoder_channels=2, encoder_strides=(2, 1), encoder_features=3)
NETWORK = actor_architecture(SPEC, CFG)
HUGE = 2**40


def snapshot() -> PolicySnapshot:
    flat = np.random.default_rng(0).normal(size=(1, NETWORK.size)).astype(np.float32)
    return PolicySnapshot(7, NETWORK, flat)


@pytest.fixture
def stem(tmp_path: Path) -> Path:
    about = {"env": "Camera-v0", "kind": "best", "seed": 0, "step": 100, "mean_return": -1.5}
    save_policy(tmp_path / "best" / "seed-0", snapshot(), 0, SPEC, about)
    return tmp_path / "best" / "seed-0"


def observation(rng: np.random.Generator) -> dict[str, Any]:
    """As the environment returns it: channels last."""
    cameras = {
        f"camera {number}": rng.integers(0, 256, (height, width, channels), dtype=np.uint8)
        for number, (channels, height, width) in enumerate(image.shape for image in SPEC.images)
    }
    return {**cameras, "vector": rng.normal(size=2).astype(np.float32)}


def flat_by_hand(history: list[dict[str, Any]]) -> Any:
    """The newest vector and the three newest frames; the first frame stands for those before it."""
    newest = [history[max(0, len(history) - age)] for age in (3, 2, 1)]
    frames = [one[name].transpose(2, 0, 1).tobytes() for one in newest for name in ("camera 0", "camera 1")]
    return np.frombuffer(b"".join([history[-1]["vector"].tobytes(), *frames]), np.uint8)


def test_a_loaded_policy_stacks_the_frames_of_each_episode(stem: Path) -> None:
    policy, actor, rng = t3d.load_policy(stem), MemberPolicy(snapshot(), 0), np.random.default_rng(1)
    actions = []
    for length in (5, 1, 4):
        policy.reset()
        history: list[dict[str, Any]] = []
        for _ in range(length):
            history.append(observation(rng))
            actions.append(policy(history[-1]))
            np.testing.assert_array_equal(actions[-1], actor(flat_by_hand(history)[None])[0])
    assert len(np.unique(actions)) == 2 * len(actions)


def test_the_first_observation_needs_no_reset(stem: Path) -> None:
    seen = observation(np.random.default_rng(1))
    policy = t3d.load_policy(stem)
    fresh = policy(seen)
    policy(observation(np.random.default_rng(2)))
    assert not np.array_equal(policy(seen), fresh), "older frames count"
    policy.reset()
    np.testing.assert_array_equal(policy(seen), fresh)


def test_what_is_no_image_is_told_the_shape_that_is(stem: Path) -> None:
    seen = {**observation(np.random.default_rng(0)), "camera 0": np.zeros(3, np.float32)}
    with pytest.raises(UserError, match=r"observation\['camera 0'\] has shape \(3,\) instead of \(9, 11, 3\)"):
        t3d.load_policy(stem)(seen)


def test_loading_and_acting_need_no_torch(stem: Path) -> None:
    code = (
        "import sys, numpy as np\n"
        "from t3d.policy.files import read_policy\n"
        f"policy = read_policy({str(stem)!r})\n"
        "seen = {'camera 0': np.zeros((9, 11, 3), np.uint8), 'camera 1': np.zeros((8, 8, 1), np.uint8)}\n"
        "assert np.isfinite(policy({**seen, 'vector': np.zeros(2)})).all()\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_flipped_bits_are_refused(stem: Path, suffix: str) -> None:
    file = stem.with_suffix(suffix)
    assert survivors(file, random.Random(23).sample(range(8 * file.stat().st_size), 300)) == []


def encoder(**changes: Any) -> dict[str, Any]:
    fields = NETWORK.to_dict()
    return {"network": {**fields, "encoder": {**fields["encoder"], **changes}}}


def image(**changes: Any) -> dict[str, Any]:
    first, *others = (one._asdict() for one in SPEC.images)
    return {"images": [{**first, **changes}, *others]}


LIES: dict[str, dict[str, Any]] = {
    "no encoder": {"network": {name: value for name, value in NETWORK.to_dict().items() if name != "encoder"}},
    "an encoder of nothing": encoder(images=[]),
    "no convolutions": encoder(strides=[]),
    "a stride of 0": encoder(strides=[2, 0]),
    "strides that leave nothing": encoder(strides=[2, 2, 2, 2]),
    "other strides": encoder(strides=[1, 1]),
    "no channels": encoder(channels=0),
    "huge channels": encoder(channels=HUGE),
    "other features": encoder(features=4),
    "features in words": encoder(features="many"),
    "another stack": encoder(stack=2),
    "other images": encoder(images=[[3, 11, 9], [1, 8, 8]]),
    "an encoder that is no table": {"network": {**NETWORK.to_dict(), "encoder": 3}},
    "no images": {"images": []},
    "a stack of none": {"stack": 0},
    "a huge stack": {"stack": HUGE},
    "an image of another shape": image(shape=[3, 11, 9]),
    "a flat image": image(shape=[297]),
    "a huge image": image(shape=[3, HUGE, HUGE], stop=3 * HUGE * HUGE),
    "a gap between images": image(start=1, stop=298),
    "channels in words": image(channels_last="yes"),
    "a place that is no name": image(path=[[1]]),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_policy_with_right_hashes_that_lies_is_refused_in_a_sentence(stem: Path, lie: str) -> None:
    rewrite_policy(stem, LIES[lie])
    with pytest.raises(UserError, match="seed-0"):
        t3d.load_policy(stem)


def test_a_policy_that_scales_the_vector_beside_images_is_refused(stem: Path) -> None:
    """No run writes one: normalise_observations is refused with images."""
    rewrite_policy(stem, {}, {"mean": np.zeros(2, np.float32), "std": np.ones(2, np.float32)})
    with pytest.raises(UserError, match="scales observations that hold images"):
        t3d.load_policy(stem)


def test_huge_images_that_agree_are_refused_before_memory_is_taken(stem: Path) -> None:
    """Convolutions with long strides can make little of very much."""
    side, strides = 2**20, [4] * 9
    lie = encoder(images=[[1, side, side]], stack=1, strides=strides)
    about = [{**SPEC.images[0]._asdict(), "shape": [1, side, side], "stop": side * side}]
    rewrite_policy(stem, {**lie, "images": about, "stack": 1})
    with pytest.raises(UserError, match="larger than any that T3D takes"):
        t3d.load_policy(stem)


def test_any_wrong_value_under_a_right_hash_is_met_with_a_sentence_or_works(stem: Path) -> None:
    fields = unsealed("policy", stem.with_suffix(".json").read_bytes(), indent=2)
    shutil.copytree(stem.parent, stem.parent.with_name("sound"))
    seen = observation(np.random.default_rng(0))
    places = [place for place in faults.places(fields) if place[0] in ("network", "images", "stack")]
    assert len(places) > 20
    value: Any
    for place in places:
        for value in ("x", [], None, 10**30, -1, 0.5, True, {"x": 1}):
            changed = json.loads(json.dumps(fields))
            faults.put_at(changed, place, value)
            shutil.copytree(stem.parent.with_name("sound"), stem.parent, dirs_exist_ok=True)
            rewrite_policy(stem, changed)
            try:
                action = t3d.load_policy(stem)(seen)
            except UserError:
                continue
            assert action.shape == (2,) and np.isfinite(action).all(), (place, value)
