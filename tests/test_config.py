"""Configuration: round trips, nearest keys, ranges, sentences."""

from __future__ import annotations

import dataclasses
import inspect
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import config_page
import helpers
import t3d
from rules_in_tests import ALL_RULES
from t3d.algo.engines import ENGINES
from t3d.algo.td3 import coefficients_of
from t3d.app.flags import read_known
from t3d.config import Config, TD3Config, diff, flat, load_toml, merge, plain, to_dict, to_toml
from t3d.config.fields import known_settings, setting, settings_where
from t3d.config.merging import merge_named
from t3d.config.other_names import OTHER_NAMES, WITHOUT_OURS, our_names
from t3d.config.presets import PRESETS, as_config, better_preset, families, preset
from t3d.errors import UserError
from t3d.events import Start

SIMPLE = st.one_of(
    st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=9)
)
ARGUMENTS = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
VALUES = st.fixed_dictionaries(
    {
        "seeds": st.lists(st.integers(0, 2**62 - 1), min_size=1, max_size=5, unique=True),
        "total_steps": st.integers(1, 10**9),
        "random_steps": st.just(0),
        "normalise_observations": st.booleans(),
        "device": st.sampled_from(["auto", "cpu", "cuda"]),
        "env": st.fixed_dictionaries(
            {
                "id": st.text(max_size=20),
                "num_envs": st.integers(1, 100),
                "args": st.dictionaries(st.text(max_size=9), ARGUMENTS, max_size=3),
            }
        ),
        "td3": st.fixed_dictionaries(
            {
                "gamma": st.floats(0, 1),
                "actor_lr": st.floats(0, 1),
                "batch_size": st.integers(1, 1000),
                "critic_hidden": st.lists(st.integers(1, 999), max_size=4),
            }
        ),
        "run": st.fixed_dictionaries({"root": st.text(max_size=20)}),
    }
)


@given(values=VALUES)
def test_a_configuration_survives_toml_and_dicts(values: dict[str, Any]) -> None:
    survives_toml_and_dicts(values)


@pytest.mark.slow
@given(values=VALUES)
def test_a_thousand_configurations_survive_toml_and_dicts(values: dict[str, Any]) -> None:
    survives_toml_and_dicts(values)


def survives_toml_and_dicts(values: dict[str, Any]) -> None:
    cfg = merge(Config(), values)
    assert merge(Config(), tomllib.loads(to_toml(cfg))) == cfg, "complete: it does not matter what it is merged into"
    assert merge(Config(), to_dict(cfg)) == cfg


def test_the_difference_names_what_was_changed() -> None:
    cfg = merge(Config(), {"td3": {"tau": 0.1}, "seeds": [1, 2]})
    assert diff(cfg, Config()) == {"td3.tau": (0.005, 0.1), "seeds": ((0,), (1, 2))}
    calm, windy = (merge(Config(), {"env": {"args": args}}) for args in ({"wind": 0, "goal": [1]}, {"wind": 2}))
    assert diff(windy, calm) == {"env.args.wind": (0, 2), "env.args.goal": ([1], None)}
    assert diff(windy, Config()) == {"env.args.wind": (None, 2)} and plain(None) == "nothing"


def test_arguments_of_an_environment_are_plain_values() -> None:
    given = {"wind": np.float32(0.5), "gains": (1, np.array([2, 3])), "goal": {"x": True}}
    args = merge(Config(), {"env": {"args": given}}).env.args
    assert args == {"wind": 0.5, "gains": [1, [2, 3]], "goal": {"x": True}}
    assert [type(args["wind"]), type(args["gains"][0])] == [float, int]
    toml = '[env]\nid = "a:B"\n[env.args]\nwind = 1.5\n[env.args.goal]\nx = [1, "a", {y = false}]\n'
    assert merge(Config(), tomllib.loads(toml)).env.args == {"wind": 1.5, "goal": {"x": [1, "a", {"y": False}]}}
    whole = merge(Config(), {"env": {"args": {"wind": 1}}}).env.args["wind"]
    assert type(whole) is int, "what the environment gets is not converted"
    for wrong in ({"a": None}, {"a": object()}, {"a": float("nan")}, {1: 2}, {"a": [{"b": b"c"}]}, 3, "wind=1"):
        with pytest.raises(UserError, match=r"env.args=.* is not a table of strings, finite numbers"):
            merge(Config(), {"env": {"args": wrong}})


def test_every_field_says_what_it_is() -> None:
    source = "".join(Path(inspect.getfile(kind)).read_text(encoding="utf-8") for kind in (Config, TD3Config))
    described = [name for _, name in config_page.field_docstrings(source)]
    known = known_settings(Config)  # what all algorithms have is declared once
    declared = [
        name for name in known if name.replace("td7.", "td3.") == name or name.replace("td7.", "td3.") not in known
    ]
    assert sorted(described) == sorted(name.split(".")[-1] for name in declared)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tdd": {}}, "unknown key tdd, did you mean td7"),
        ({"td3": {"batchsize": 3}}, "unknown key td3.batchsize, did you mean batch_size"),
        ({"td3": {"random_steps": 3}}, "td3.random_steps is called random_steps now"),
        ({"td3": {"updates_per_step": 3}}, "td3.updates_per_step is called updates_per_step now"),
        ({"td3": {"normalise_observations": 3}}, "td3.normalise_observations is called normalise_observations now"),
        ({"td3": {"learning_rate": 1e-3}}, "td3.learning_rate is td3.actor_lr and td3.critic_lr here"),
        ({"buffer_size": 10}, "buffer_size is replay.capacity here"),
        ({"track": True}, "track is sinks=wandb here"),
        ({"verbose": 1}, "unknown key verbose"),
        ({"random_steps": -1}, "random_steps=-1 is out of range"),
        ({"updates_per_step": 1001}, "updates_per_step=1001 is out of range; it must be between 0 and 1,000"),
        ({"td3": 3}, "td3=3 must be a table"),
        ({"td3": {"batch_size": "many"}}, "td3.batch_size='many' is not an integer"),
        ({"engine": 10**5000}, "engine=an integer of 16,610 bits is not one of"),
        ({"td3": {"batch_size": 1.5}}, "not an integer"),
        ({"td3": {"batch_size": True}}, "not an integer"),
        ({"td3": {"batch_size": 0}}, "td3.batch_size=0 is out of range"),
        ({"td3": {"batch_size": -256}}, "out of range"),
        ({"td3": {"gamma": 1.5}}, "td3.gamma=1.5 is out of range; it must be between 0 and 1"),
        ({"td3": {"gamma": float("nan")}}, "out of range"),
        ({"td3": {"tau": -0.1}}, "out of range"),
        ({"td3": {"actor_hidden": [256, 0]}}, "td3.actor_hidden contains 0; each must be between 1 and 65,536"),
        ({"td3": {"critic_hidden": [10**9]}}, "each must be between 1 and 65,536"),
        ({"td3": {"actor_hidden": ["a"]}}, "a list of integers"),
        ({"td3": {"critics": 0}}, "out of range"),
        ({"td3": {"aggregate": "max"}}, "td3.aggregate='max' is not one of min, mean, min_of_random_2, truncated"),
        ({"td3": {"aggregate": "min_of_random_2"}}, "needs at least 3 critics; td3.critics is 2"),
        ({"td3": {"aggregate": "mean", "critics": 1}}, "td3.aggregate=mean needs at least 2 critics; td3.critics is 1"),
        (
            {"td3": {"aggregate": "truncated", "drop_highest": 2}},
            "needs at least 4 critics; td3.critics is 2",
        ),
        ({"td3": {"drop_highest": 2}}, "td3.drop_highest=2 is used only with td3.aggregate=truncated"),
        ({"td3": {"critics": 1, "actor_objective": "mean"}}, "needs at least 2 critics; td3.critics is 1"),
        ({"td3": {"value_bins": 51}}, "td3.value_bins=51 is used only with td3.critic_loss=categorical"),
        ({"td3": {"critic_loss": "categorical", "value_low": 20.0}}, "value_low=20 must be below td3.value_high=10"),
        ({"td3": {"lr_final": 0.5}}, "td3.lr_final=0.5 is used only with td3.lr_schedule=linear or cosine"),
        ({"td3": {"lr_schedule": "cosine"}}, "needs td3.lr_updates, the updates until it ends"),
        ({"td3": {"lr_schedule": "linear", "lr_updates": 9, "lr_final": 1}}, "and td3.lr_final below 1"),
        ({"replay": {"sampling": "lap"}}, "use it with --td3.critic-loss huber"),
        (
            {"replay": {"sampling": "lap"}, "td3": {"critic_loss": "huber"}, "scale_rewards": True},
            "treats errors below 1 alike; use it with --td3.critic-loss huber and without --scale-rewards",
        ),
        ({"replay": {"sampling": "lap", "priority_exponent": 0}}, "use replay.sampling=uniform instead"),
        (
            {"replay": {"sampling": "proportional", "importance_exponent": 1, "importance_updates": 5}},
            "importance_updates is of no use",
        ),
        ({"replay": {"priority_exponent": 0.6}}, "is used only with replay.sampling=proportional or lap"),
        ({"replay": {"importance_updates": 9}}, "is used only with replay.sampling=proportional"),
        (
            {"replay": {"capacity": 100, "sampling": "proportional"}},
            "replay.capacity=100 is smaller than td3.batch_size=256; raise capacity",
        ),
        ({"replay": {"capacity": -1}}, "out of range"),
        ({"env": {"num_envs": -1}}, "out of range"),
        ({"eval": {"episodes": 0}}, "out of range"),
        ({"seeds": []}, "seeds=[] is empty or"),
        ({"seeds": [1, 1]}, "repeats a seed"),
        ({"seeds": [-1]}, "seeds contains -1; each must be between 0 and 4,611,686,018,427,387,903"),
        ({"total_steps": 0}, "out of range"),
        ({"noise": {"final_noise": 0.1}}, "is used only with noise.decay_steps"),
        ({"total_steps": 3000}, "random_steps=25000 leaves no steps of total_steps=3000 for learning"),
        ({"device": "tpu"}, "not one of auto, cpu, cuda"),
        ({"run": {"name": "a/b"}}, "plain folder name"),
    ],
)
def test_a_wrong_setting_is_a_sentence(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        merge(Config(), values)
    assert words in str(caught.value)


class MomentumConfig(TD3Config):
    """TD3's settings, and two more that are declared here and nowhere else."""

    momentum: float = setting(0.9, between=(0, 1), sweep=True, optional=True, fused=(0.9,), extreme=0.1)
    """Momentum of the actor."""
    restarts: int = setting(0, between=(0, 9), used_with=("lr_schedule", "cosine"), resume="changed", learning=False)
    """Restarts of the schedule."""


class WithMomentum(Config):
    """All settings, with those two."""

    td3: MomentumConfig = dataclasses.field(default_factory=MomentumConfig)


def test_a_setting_is_declared_once() -> None:
    cfg = merge(WithMomentum(), {"td3": {"momentum": 0.5}})
    assert merge(WithMomentum(), tomllib.loads(to_toml(cfg))) == cfg and flat(cfg)["td3.momentum"] == 0.5
    wrong: dict[str, tuple[str, Any]] = {
        "td3.momentum=2 is out of range; it must be between 0 and 1": ("momentum", 2),
        "td3.momentum='much' is not a number": ("momentum", "much"),
        "unknown key td3.momentun, did you mean momentum": ("momentun", 0.5),
        "td3.restarts=3 is used only with td3.lr_schedule=cosine": ("restarts", 3),
    }
    for words, (name, value) in wrong.items():
        with pytest.raises(UserError, match=re.escape(words)):
            merge(WithMomentum(), {"td3": {name: value}})
    swept = WithMomentum(sweep=("td3.momentum=0.1,0.2",))
    assert [getattr(swept.settings_of(member), "momentum") for member in swept.members] == [0.1, 0.2]  # noqa: B009
    with pytest.raises(
        UserError, match=r"td3.restarts cannot be swept; these can: td3.gamma, .*, td3.momentum, .* and env.args.NAME;"
    ):
        WithMomentum(sweep=("td3.restarts=0,1",))
    refuses = ENGINES["fused"].refuses
    assert not refuses(ALL_RULES["td3"], WithMomentum().td3, coefficients_of(cfg.td3))
    assert "td3.momentum=0.9 only" in refuses(ALL_RULES["td3"], cfg.td3, coefficients_of(cfg.td3))
    assert "td3.restarts" in settings_where(WithMomentum, lambda about: about.get("resume") == "changed")
    assert read_known(WithMomentum, ["--td3.momentum", "0.3"], "t3d train")[0].td3.momentum == 0.3


STABLE_BASELINES = """learning_rate buffer_size learning_starts batch_size tau gamma train_freq gradient_steps
    action_noise policy_delay target_policy_noise target_noise_clip policy_kwargs net_arch n_envs n_steps
    optimize_memory_usage stats_window_size tensorboard_log verbose seed device total_timesteps eval_freq
    n_eval_episodes"""
CLEAN_RL = """exp_name seed torch_deterministic cuda track wandb_project_name capture_video save_model env_id
    total_timesteps learning_rate num_envs buffer_size gamma tau batch_size policy_noise exploration_noise
    learning_starts policy_frequency noise_clip"""
AUTHORS = """env seed start_timesteps eval_freq max_timesteps expl_noise batch_size discount tau policy_noise noise_clip
    policy_freq save_model load_model"""


@pytest.mark.parametrize("names", [STABLE_BASELINES, CLEAN_RL, AUTHORS], ids=["sb3", "cleanrl", "authors"])
def test_the_names_of_others_are_known(names: str) -> None:
    flags = {*flat(Config()), "quiet"}
    unknown = [name for name in names.split() if name not in flags and not our_names(name, flags)]
    assert {*unknown} == {*WITHOUT_OURS} & {*names.split()}


def test_what_others_call_something_else_leads_to_a_setting_that_takes_it() -> None:
    for name, words in OTHER_NAMES.items():
        for word in words:
            key, _, value = word.partition("=")
            assert key in {*flat(Config()), "quiet"}, name
            if value:
                assert merge_named(Config(), {key: [value] if key == "sinks" else value}), name


def test_python_may_hand_over_lists_ranges_and_numpys_numbers() -> None:
    hidden = np.array([64, 32])
    td3 = TD3Config(actor_hidden=[64, 32], critic_hidden=hidden, gamma=np.float32(0.5), batch_size=np.int64(8))  # type: ignore[arg-type]
    cfg = Config(seeds=range(3), total_steps=np.int32(30_000), tf32=np.bool_(True), td3=td3)  # type: ignore[arg-type]
    assert cfg == merge(Config(), to_dict(cfg)) and cfg.seeds == (0, 1, 2)
    assert (td3.actor_hidden, td3.critic_hidden) == ((64, 32), (64, 32))
    kinds = [type(value) for value in (td3.gamma, td3.batch_size, cfg.total_steps, cfg.tf32, td3.critic_hidden[0])]
    assert kinds == [float, int, int, bool, int]
    assert merge(Config(), {"seeds": np.arange(2)}).seeds == (0, 1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Config(seeds=3), "seeds=3 is not a list of integers"),  # type: ignore[arg-type]
        (lambda: Config(seeds="012"), "seeds='012' is not a list"),  # type: ignore[arg-type]
        (lambda: Config(seeds=[0, None]), "is not a list of integers"),  # type: ignore[arg-type]
        (lambda: Config(total_steps="many"), "total_steps='many' is not an integer"),  # type: ignore[arg-type]
        (lambda: Config(td3={"gamma": 0.5}), "is not a TD3Config"),  # type: ignore[arg-type]
        (lambda: Config(device=["cpu"]), "device=['cpu'] is not one of"),  # type: ignore[arg-type]
        (lambda: TD3Config(gamma=10**400), "is out of range"),
        (lambda: merge(Config(), {3: 4}), "unknown key 3"),  # type: ignore[dict-item]
        (lambda: as_config(3), "3 is not a configuration"),  # type: ignore[arg-type]
        (lambda: as_config({"preset": "fast"}), "unknown preset fast"),
        (lambda: as_config({"preset": ["fast"]}), "unknown preset ['fast']"),
    ],
)
def test_a_mistake_in_python_is_a_sentence_too(make: Callable[[], Config], words: str) -> None:
    with pytest.raises(UserError) as caught:
        make()
    assert words in str(caught.value)


def test_a_mapping_or_an_environments_id_is_a_configuration() -> None:
    quick = as_config({"preset": "quick", "env": {"id": "Pendulum-v1"}, "seeds": range(2)})
    assert quick == merge(preset("quick"), {"env": {"id": "Pendulum-v1"}, "seeds": [0, 1]})
    assert as_config({"total_steps": 50_000}) == merge(Config(), {"total_steps": 50_000})
    assert as_config("Pendulum-v1") == merge(Config(), {"env": {"id": "Pendulum-v1"}})
    assert as_config(quick) is quick


def test_train_takes_a_mapping_and_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for taken in (to_dict(helpers.small_config()), "Pendulum-v1"):
        start = next(t3d.train(taken))
        assert isinstance(start, Start) and start.config["env"]["id"] == "Pendulum-v1"


def test_configurations_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().total_steps = 3  # type: ignore[misc]


def test_a_file_that_is_not_toml(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        load_toml(tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_text("td3 = = 3")
    with pytest.raises(UserError, match="not valid TOML"):
        load_toml(tmp_path / "bad.toml")


def test_whole_numbers_are_swept_only_by_rules_that_read_them() -> None:
    cfg = merge(Config(), {"algo": "own.py:RULE", "seeds": [0, 1], "sweep": ["td3.critics=1,2"]})
    assert [cfg.settings_of(member).critics for member in cfg.members] == [1, 1, 2, 2]
    with pytest.raises(UserError, match="critics cannot be swept"):
        merge(cfg, {"algo": "td3"})
    with pytest.raises(UserError, match=r"td3.critics=1.5 is not an integer"):
        halves = merge(cfg, {"sweep": ["td3.critics=1.5,2"]})
        halves.settings_of(halves.members[0])


@pytest.mark.parametrize(
    ("env", "other", "advice"),
    [
        ({"id": "Walker2d-v5"}, {}, "plus suits Walker2d better: --preset plus (4.2 times"),
        ({"id": "Ant-v4"}, {"preset": "paper"}, "plus suits Ant better: --preset plus"),
        ({"id": "dm:cartpole-swingup"}, {"preset": "quick"}, "dm suits dm:cartpole-swingup better: --preset dm"),
        ({"id": "Walker2d-v5"}, {"preset": "plus"}, ""),
        ({"id": "HalfCheetah-v5"}, {}, ""),
        ({"id": "walkers:Walker2d"}, {}, ""),
        ({"id": "Pendulum-v1", "pixels": 84}, {"preset": "pixels"}, ""),
        ({"id": "Walker2d-v5"}, {"algo": "mine:RULE"}, ""),
        ({"id": ""}, {}, ""),
    ],
)
def test_a_preset_that_is_known_to_suit_an_environment_better_is_named(
    env: dict[str, Any], other: dict[str, Any], advice: str
) -> None:
    text = better_preset(merge(Config(), {"env": env, **other}))
    assert text.startswith(advice) and bool(text) == bool(advice)


def test_what_presets_suit_is_measured() -> None:
    lab = "".join(
        (Path(__file__).parents[1] / "docs" / "lab" / f"{name}.md").read_text(encoding="utf-8")
        for name in ("ablations", "results")
    )
    for ids, name, because in families():
        assert name in PRESETS and all(family.removeprefix("dm:") in lab for family in ids)
        assert all(number in lab for number in re.findall(r"[\d,.]+\d", because)), because
