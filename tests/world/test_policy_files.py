"""Policy files: damage, swapped files and hostile contents are refused by name; a kill leaves a policy that loads."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import faults
import t3d
from faults import rewrite_policy
from helpers import make_spec, mlp
from t3d.config import Config, Member
from t3d.errors import UserError
from t3d.files import unsealed
from t3d.policy.acting import PolicySnapshot, Scaling
from t3d.policy.files import save_policy
from t3d.store.reader import Run

SPEC = make_spec(3, 1)
NETWORK = mlp(3, 4, 1)
FIXTURE = Path(__file__).parents[1] / "fixtures" / "checkpoint-format-1" / "best" / "seed-3"
OBSERVATION = [0.5, -0.25, 1.0]


def write(stem: Path, seed: int = 0, step: int = 100, kind: str = "best") -> Path:
    """A policy whose numbers depend on its seed and step."""
    rng = np.random.default_rng([seed, step])
    flat = rng.normal(size=(1, NETWORK.size)).astype(np.float32)
    scaling = Scaling(np.zeros((1, 3), np.float32), np.ones((1, 3), np.float32))
    about = {"env": "Pendulum-v1", "kind": kind, "seed": seed, "step": step, "mean_return": -1.5}
    save_policy(stem, PolicySnapshot(7, NETWORK, flat, scaling), 0, SPEC, about)
    return stem


@pytest.fixture
def stem(tmp_path: Path) -> Path:
    return write(tmp_path / "best" / "seed-0")


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def survivors(file: Path, bits: Iterator[int] | range | list[int]) -> list[int]:
    """The bits whose flipping load_policy does not refuse in a sentence that names the policy."""
    content, accepted = file.read_bytes(), []
    for bit in bits:
        file.write_bytes(flipped(content, bit))
        try:
            t3d.load_policy(file)
        except UserError as error:
            assert str(file.with_suffix("")) in str(error)
        else:
            accepted.append(bit)
    file.write_bytes(content)
    t3d.load_policy(file)
    return accepted


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_every_flipped_bit_of_the_json_is_refused(stem: Path, every: int) -> None:
    file = stem.with_suffix(".json")
    assert survivors(file, range(0, 8 * file.stat().st_size, every)) == []


def test_flipped_bits_of_the_numbers_are_refused(stem: Path) -> None:
    file = stem.with_suffix(".safetensors")
    assert survivors(file, random.Random(23).sample(range(8 * file.stat().st_size), 500)) == []


def test_flipped_bits_of_the_numbers_are_refused_without_the_json(stem: Path) -> None:
    stem.with_suffix(".json").unlink()
    file = stem.with_suffix(".safetensors")
    assert survivors(file, random.Random(24).sample(range(8 * file.stat().st_size), 500)) == []


def test_a_policy_is_one_file_and_the_json_is_its_copy(stem: Path) -> None:
    names = [stem, stem.with_suffix(".json"), stem.with_suffix(".safetensors")]
    actions = [t3d.load_policy(name)(OBSERVATION) for name in names]
    stem.with_suffix(".json").unlink()
    assert {float(action[0]) for action in [*actions, t3d.load_policy(stem)(OBSERVATION)]} == {float(actions[0][0])}
    stem.with_suffix(".safetensors").unlink()
    with pytest.raises(UserError, match=r"no policy at .*seed-0: .*seed-0\.safetensors is missing"):
        t3d.load_policy(stem)


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_files_of_two_policies_do_not_make_one(stem: Path, suffix: str) -> None:
    other = write(stem.with_name("seed-1"), seed=1)
    shutil.copy(other.with_suffix(suffix), stem.with_suffix(suffix))
    with pytest.raises(UserError, match=r"seed-0\.json"):
        t3d.load_policy(stem)


@pytest.mark.parametrize("taken", ["best/seed-1", "last/seed-0"])
def test_a_whole_policy_of_another_seed_or_kind_is_refused_by_its_run(stem: Path, taken: str) -> None:
    run = Run(stem.parents[1], Config(), {})
    assert run.policy(Member(0)).about["seed"] == 0
    write(stem, seed=int(taken[-1]), kind=taken[:4])
    with pytest.raises(UserError, match=f"seed-0 holds the {taken[:4]} policy of seed {taken[-1]}"):
        run.policy(Member(0))


def test_a_kill_at_any_moment_of_writing_leaves_a_policy_that_loads(
    stem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = 0
    for moment in range(10):
        write(stem, step=100)
        with monkeypatch.context() as patched, pytest.raises(Killed):
            kill_at(patched, moment)
            write(stem, step=200)
            raise Killed
        policy = t3d.load_policy(stem)
        assert policy.about["step"] in (100, 200)
        moments += policy.about["step"] == 100
    assert 0 < moments < 10, "some were killed before the new policy was in its place, some after"


class Killed(BaseException):
    """What a process that is killed does not see."""


def kill_at(patched: pytest.MonkeyPatch, moment: int) -> None:
    """Ends the writing before the file operation of this number."""
    left = [moment]

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **keywords: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return operation(*arguments, **keywords)

        return run

    for name in ("unlink", "replace"):
        patched.setattr(Path, name, counted(getattr(Path, name)))
    patched.setattr("t3d.files.write_new", counted(t3d.files.write_new))


def test_a_policy_of_an_early_format_is_refused_in_a_sentence(stem: Path) -> None:
    with pytest.raises(UserError, match=r"seed-3\.safetensors does not describe .*; if an early version wrote it"):
        t3d.load_policy(FIXTURE)
    for other in (2, 4):
        rewrite_policy(write(stem), {"format": other})
        with pytest.raises(UserError, match=f"seed-0 has policy format {other}, and this T3D reads 3; use the version"):
            t3d.load_policy(stem)


def test_a_new_policy_cannot_pass_for_one_without_a_hash(stem: Path) -> None:
    tensors = safetensors.numpy.load(stem.with_suffix(".safetensors").read_bytes())
    stem.with_suffix(".safetensors").write_bytes(safetensors.numpy.save(tensors))
    with pytest.raises(UserError, match="seed-0"):
        t3d.load_policy(stem)


HUGE = 2**40


def network(**changes: Any) -> dict[str, Any]:
    return {"network": {**NETWORK.to_dict(), **changes}}


LIES: dict[str, dict[str, Any]] = {
    "no step": {"step": None},
    "step in words": {"step": "soon"},
    "a negative step": {"step": -1},
    "an endless step": {"step": 10**400},
    "no seed": {"seed": None},
    "a void of 2 GiB as action": {"action_dtype": "V2147483647"},
    "text as action": {"action_dtype": "U500000000"},
    "objects as action": {"action_dtype": "object"},
    "several fields as action": {"action_dtype": "f4,f4"},
    "no type of action": {"action_dtype": None},
    "dates as action": {"action_dtype": "datetime64[s]"},
    "other sizes": network(sizes=[3, 1]),
    "huge sizes": network(sizes=[HUGE, HUGE, 1]),
    "a size of 0": network(sizes=[3, 0, 1]),
    "sizes that are no numbers": network(sizes=[3, 4.0, True]),
    "no sizes": network(sizes=[]),
    "another kind of network": network(name="residual"),
    "a network of sizes that its kind does not have": network(name="residual", sizes=[3, 1]),
    "code as network": network(name="os:system"),
    "a file as network": network(name="/tmp/evil.py:network"),
    "a network that is no text": network(name=["mlp"]),
    "an unknown activation": network(activation="cosh"),
    "no network": {"network": None},
    "a huge observation": {
        "observation": [{"path": [], "shape": [HUGE], "start": 0, "stop": HUGE, "first_choice": None}]
    },
    "many choices": {"observation": [{"path": [], "shape": [], "start": 0, "stop": HUGE, "first_choice": 0}]},
    **{
        f"choices {first} of {counts}": {
            "observation": [{"path": [], "shape": [2], "start": 0, "stop": 3, "first_choice": first, "counts": counts}]
        }
        for first, counts in [
            ([0, 0], [1, 3]),
            ([0], [3]),
            ([0], [1, 2]),
            (0, [1, 2]),
            ([0, 0], [3, 0]),
            ([0, 0.5], [1, 2]),
        ]
    },
    "a gap in the observation": {
        "observation": [{"path": [], "shape": [2], "start": 1, "stop": 3, "first_choice": None}]
    },
    "no observation": {"observation": []},
    "a huge action": {"action_shape": [HUGE]},
    "more bounds than actions": {"action_low": [-1.0] * 9, "action_high": [1.0] * 9},
    "bounds that are no numbers": {"action_low": ["-inf"]},
    "bounds the wrong way round": {"action_low": [1.0], "action_high": [-1.0]},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_policy_with_right_hashes_that_lies_is_refused_in_a_sentence(stem: Path, lie: str) -> None:
    rewrite_policy(stem, LIES[lie])
    with pytest.raises(UserError, match="seed-0"):
        t3d.load_policy(stem)


@pytest.mark.parametrize(
    "tensors",
    [
        {"actor": np.full(NETWORK.size, np.nan, np.float32)},
        {"actor": np.zeros(NETWORK.size, np.float64)},
        {"actor": np.zeros(NETWORK.size + 1, np.float32)},
        {"actor": np.zeros((NETWORK.size, 1), np.float32)},
        {"mean": np.zeros(1, np.float32)},
        {"std": np.zeros(3, np.float32)},
        {"std": np.full(3, np.inf, np.float32)},
    ],
)
def test_numbers_that_no_run_writes_are_refused(stem: Path, tensors: dict[str, Any]) -> None:
    rewrite_policy(stem, {}, tensors)
    with pytest.raises(UserError, match="seed-0"):
        t3d.load_policy(stem)


ROW = np.ones(NETWORK.size, np.float32)


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({"secret": ROW}, "its tensors are 'actor', 'mean', 'secret', 'std'; a policy has 'actor', and"),
        ({"flat": ROW}, "its tensors are 'actor', 'flat', 'mean', 'std'"),
        ({"actor": None, "flat": ROW}, "its tensors are 'flat', 'mean', 'std'"),
        ({"actor": None}, "its tensors are 'mean', 'std'"),
        ({"mean": None}, "its tensors are 'actor', 'std'"),
        ({"std": None}, "its tensors are 'actor', 'mean'"),
        ({"actor": ROW[1:]}, f"'actor' does not hold {NETWORK.size} finite float32 values"),
        ({"std": np.full(3, np.nan, np.float32)}, "'std' does not hold 3 finite float32 values"),
    ],
)
def test_tensors_that_a_policy_does_not_have_are_refused_by_name(
    stem: Path, tensors: dict[str, Any], sentence: str
) -> None:
    rewrite_policy(stem, {}, tensors)
    with pytest.raises(UserError, match=sentence):
        t3d.load_policy(stem)


def test_any_wrong_value_under_a_right_hash_is_met_with_a_sentence_or_works(stem: Path) -> None:
    fields = unsealed("policy", stem.with_suffix(".json").read_bytes(), indent=2)
    shutil.copytree(stem.parent, stem.parent.with_name("sound"))
    for place in faults.places(fields):
        for value in ("x", [], {}, None, 10**30, -(10**30), -1, 0.5, True, ["x"], {"x": 1}):
            changed = json.loads(json.dumps(fields))
            faults.put_at(changed, place, value)
            shutil.copytree(stem.parent.with_name("sound"), stem.parent, dirs_exist_ok=True)
            rewrite_policy(stem, changed)
            try:
                action = t3d.load_policy(stem)(OBSERVATION)
            except UserError:
                continue
            assert action.shape in ((1,), ()) and np.isfinite(action).all(), (place, value)
