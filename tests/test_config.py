"""Configuration: round trips, nearest keys, ranges, sentences."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t3d.config import Config, diff, flat, load_toml, merge, to_dict, to_toml
from t3d.errors import UserError

VALUES = st.fixed_dictionaries(
    {
        "seeds": st.lists(st.integers(0, 2**62 - 1), min_size=1, max_size=5, unique=True),
        "total_steps": st.integers(1, 10**9),
        "device": st.sampled_from(["auto", "cpu", "cuda"]),
        "env": st.fixed_dictionaries({"id": st.text(max_size=20), "num_envs": st.integers(1, 100)}),
        "td3": st.fixed_dictionaries(
            {
                "gamma": st.floats(0, 1),
                "random_steps": st.just(0),
                "actor_lr": st.floats(0, 1),
                "batch_size": st.integers(1, 1000),
                "critic_hidden": st.lists(st.integers(1, 999), max_size=4),
                "normalise_observations": st.booleans(),
            }
        ),
        "run": st.fixed_dictionaries({"root": st.text(max_size=20)}),
    }
)


@settings(max_examples=1000, deadline=None)
@given(values=VALUES)
def test_a_configuration_survives_toml_and_dicts(values: dict[str, Any]) -> None:
    cfg = merge(Config(), values)
    assert merge(Config(), tomllib.loads(to_toml(cfg))) == cfg, "complete: it does not matter what it is merged into"
    assert merge(Config(), to_dict(cfg)) == cfg


def test_the_difference_names_what_was_changed() -> None:
    cfg = merge(Config(), {"td3": {"tau": 0.1}, "seeds": [1, 2]})
    assert diff(cfg, Config()) == {"td3.tau": (0.005, 0.1), "seeds": ((0,), (1, 2))}


def test_every_field_says_what_it_is() -> None:
    source = Path(merge.__code__.co_filename).read_text(encoding="utf-8")
    declared = re.findall(r"^    (\w+): [^\n]+ = [^\n]+\n(    \"\"\")?", source, re.MULTILINE)
    described = [name for name, quotes in declared if quotes]
    assert sorted(described) == sorted(key.split(".")[-1] for key in flat(Config()))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tdd": {}}, "unknown key tdd, did you mean td3"),
        ({"td3": {"batchsize": 3}}, "unknown key td3.batchsize, did you mean batch_size"),
        ({"td3": 3}, "td3=3 must be a table"),
        ({"td3": {"batch_size": "many"}}, "td3.batch_size='many' is not a whole number"),
        ({"td3": {"batch_size": 1.5}}, "not a whole number"),
        ({"td3": {"batch_size": True}}, "not a whole number"),
        ({"td3": {"batch_size": 0}}, "td3.batch_size=0 is out of range"),
        ({"td3": {"batch_size": -256}}, "out of range"),
        ({"td3": {"gamma": 1.5}}, "td3.gamma=1.5 is out of range; it goes from 0 to 1"),
        ({"td3": {"gamma": float("nan")}}, "out of range"),
        ({"td3": {"tau": -0.1}}, "out of range"),
        ({"td3": {"actor_hidden": [256, 0]}}, "layer sizes go from 1"),
        ({"td3": {"critic_hidden": [10**9]}}, "layer sizes go from 1 to 65536"),
        ({"td3": {"actor_hidden": ["a"]}}, "a list of whole numbers"),
        ({"td3": {"critics": 0}}, "out of range"),
        ({"td3": {"aggregate": "mean"}}, "td3.aggregate='mean' is not one of min"),
        ({"replay": {"capacity": 100}}, "replay.capacity=100 is smaller than td3.batch_size=256; raise capacity"),
        ({"replay": {"capacity": -1}}, "out of range"),
        ({"env": {"num_envs": 0}}, "out of range"),
        ({"eval": {"episodes": 0}}, "out of range"),
        ({"seeds": []}, "seeds is empty"),
        ({"seeds": [1, 1]}, "repeats a seed"),
        ({"seeds": [-1]}, "negative"),
        ({"total_steps": 0}, "out of range"),
        ({"noise": {"final_noise": 0.1}}, "needs noise.decay_steps"),
        ({"total_steps": 3000}, "td3.random_steps=25000 leaves nothing of total_steps=3000 to learn"),
        ({"device": "tpu"}, "not one of auto, cpu, cuda"),
        ({"run": {"name": "a/b"}}, "plain folder name"),
    ],
)
def test_a_wrong_setting_is_a_sentence(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        merge(Config(), values)
    assert words in str(caught.value)


def test_configurations_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().total_steps = 3  # type: ignore[misc]


def test_a_file_that_is_not_toml(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        load_toml(tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_text("td3 = = 3")
    with pytest.raises(UserError, match="not valid TOML"):
        load_toml(tmp_path / "bad.toml")
