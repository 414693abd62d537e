"""Sweeps: each member of one run is the single run with its value and seed, and everything else knows them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import helpers
import t3d
from fake_runs import kept
from run_folders import assert_equal, events_of, plotted
from t3d.algo.learner import Learner
from t3d.algo.td3 import Coefficients
from t3d.app.cli import main
from t3d.app.tables import sweep_table
from t3d.config import Config, Member, load_config, merge
from t3d.config.presets import as_config
from t3d.errors import UserError
from t3d.events import End, Eval, Event, Saved, SeedStopped, Start
from t3d.insight.plots import plot_curves
from t3d.store.checkpoint import newest
from t3d.store.reader import open_run
from t3d.store.summary import read_summary

GRIDS = [
    ["td3.gamma=0.9,0.97", "td3.tau=0.005,0.6"],
    ["td3.actor_lr=0.0003,0.01", "td3.critic_lr=0.001,0.02"],
    ["td3.target_noise=0.1,0.7", "td3.target_noise_clip=0.3,0.9"],
    ["td3.weight_decay=0.0,0.1", "td3.max_grad_norm=0.0,0.05"],
    ["td3.pre_activation_penalty=0.0,0.1,0.5,2.0"],
]
TINY: dict[str, Any] = {"total_steps": 160, "threads": 1, "engine": "eager", "checkpoint": {"every_steps": 60}}
TD3 = {"batch_size": 16, "actor_hidden": [16, 16], "critic_hidden": [15]}


def config(tmp_path: Path, name: str, **changes: Any) -> Config:
    run = {"root": str(tmp_path), "name": name}
    return helpers.small_config(**{**TINY, "td3": TD3, "run": run, **changes})


def learned(path: Path, member: int, members: int) -> dict[str, bytes]:
    """Every array of one member's learner and its rows of the replay."""
    checkpoint, _ = newest(path / "checkpoints")
    assert checkpoint is not None and checkpoint.step == 160
    arrays = {name: one for name, one in checkpoint.state()["learner"].items() if isinstance(one, np.ndarray)}
    own = {name: one.reshape(members, -1)[member].tobytes() for name, one in arrays.items() if one.size % members == 0}
    assert {"actor", "critic", "actor_target", "critic_target", "critic_adam_square"} <= own.keys()
    names = dict.fromkeys(segment.member for segment in checkpoint.segments)
    mine = [segment for segment in checkpoint.segments if segment.member == [*names][member]]
    return {**own, "rows": b"".join(checkpoint.read_rows(segment).tobytes() for segment in mine)}


def test_every_coefficient_of_td3_is_in_a_grid_here() -> None:
    swept = [text.partition("=")[0] for grid in GRIDS for text in grid]
    assert sorted(swept) == sorted(f"td3.{name}" for name in Coefficients._fields)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_member_is_the_single_run_with_its_values_and_seed_to_the_last_bit(tmp_path: Path, grid: list[str]) -> None:
    cfg = config(tmp_path, "sweep", sweep=grid, seeds=[4, 7])
    events = list(t3d.train(cfg))
    assert len(cfg.members) == 8 and isinstance(events[-1], End) and events[-1].updates == 60
    everyone = [learned(tmp_path / "sweep", member, 8) for member in range(8)]
    for name in ("actor", "critic_target"):
        assert len({one[name] for one in everyone}) == 8, "no two members learn the same"
    for place in (0, 7):  # of both seeds, and the first and last value of each setting
        member = cfg.members[place]
        alone = config(tmp_path, f"alone-{place}", seeds=[member.seed])
        alone = merge(alone, {"td3": {field.removeprefix("td3."): value for field, value in member.values}})
        list(t3d.train(alone))
        single = learned(tmp_path / f"alone-{place}", 0, 1)
        for name, ours in everyone[place].items():
            assert ours == single[name], (name, member.title)
        policies = [tmp_path / "sweep" / "best" / member.name, tmp_path / f"alone-{place}/best/seed-{member.seed}"]
        best = [load_file(f"{stem}.safetensors")["actor"] for stem in policies]
        assert np.array_equal(best[0], best[1])


CHOICES: dict[str, dict[str, Any]] = {
    "scaled rewards": {"scale_rewards": True},
    "3-step returns": {"replay": {"n_step": 3}},
    "proportional": {"replay": {"sampling": "proportional"}},
    "lap": {"replay": {"sampling": "lap"}, "td3": {"critic_loss": "huber"}},
    "categorical": {"scale_rewards": True, "td3": {"critic_loss": "categorical", "value_bins": 15}},
    "linear schedule": {"td3": {"lr_schedule": "linear", "lr_updates": 50}},
    "normalised observations": {"normalise_observations": True},
    "random pairs of critics": {"td3": {"critics": 4, "aggregate": "min_of_random_2"}},
}


TOGETHER = [  # those that go together, in one sweep
    ["scaled rewards", "3-step returns", "linear schedule"],
    ["proportional", "normalised observations"],
    ["lap", "random pairs of critics"],
    ["categorical"],
]


@pytest.mark.parametrize(
    "choices", [*TOGETHER, *(pytest.param([choice], marks=pytest.mark.slow) for choice in CHOICES)], ids=", ".join
)
def test_so_it_is_with_every_choice_of_replay_and_critics(tmp_path: Path, choices: list[str]) -> None:
    changes: dict[str, Any] = {"td3": TD3}
    for choice in choices:
        changes = {**changes, **CHOICES[choice], "td3": {**changes["td3"], **CHOICES[choice].get("td3", {})}}
    cfg = config(tmp_path, "sweep", sweep=["td3.gamma=0.9,0.97", "td3.actor_lr=0.0003,0.01"], seeds=[4, 7], **changes)
    list(t3d.train(cfg))
    for place in (1, 6):
        member = cfg.members[place]
        values = {field.removeprefix("td3."): value for field, value in member.values}
        alone = config(tmp_path, f"{place}", **{**changes, "td3": changes["td3"] | values}, seeds=[member.seed])
        list(t3d.train(alone))
        ours, single = learned(tmp_path / "sweep", place, 8), learned(tmp_path / f"{place}", 0, 1)
        assert ours.items() <= single.items(), member.title


BESIDE_UPDATES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "noise": (["noise.exploration_noise=0.05,0.4"], {}),
    "a schedule of noise": (["noise.final_noise=0.05,0.6", "noise.decay_steps=60,140"], {}),
    "steps of returns": (["replay.n_step=1,3,4"], {}),
    "steps of returns, by priority": (["replay.n_step=1,3"], {"replay": {"sampling": "proportional"}}),
    "scaled rewards": (["scale_rewards=0,1", "replay.n_step=1,2"], {}),
    "scaled rewards and coefficients": (["scale_rewards=0,1", "td3.gamma=0.9,0.97"], {"env": {"num_envs": 2}}),
}


@pytest.mark.parametrize("case", BESIDE_UPDATES)
def test_so_it_is_with_settings_that_updates_do_not_read(tmp_path: Path, case: str) -> None:
    sweep, changes = BESIDE_UPDATES[case]
    cfg = config(tmp_path, "sweep", sweep=sweep, seeds=[4, 7], **changes)
    list(t3d.train(cfg))
    everyone = [learned(tmp_path / "sweep", member, len(cfg.members)) for member in range(len(cfg.members))]
    assert len({one["actor"] for one in everyone}) == len(cfg.members), "no two members learn the same"
    for place in (0, len(cfg.members) - 1, len(cfg.members) // 2):
        alone = cfg.of(cfg.members[place])
        list(t3d.train(merge(alone, {"run": {"name": f"alone-{place}"}})))
        assert everyone[place].items() <= learned(tmp_path / f"alone-{place}", 0, 1).items(), cfg.members[place].title


def test_with_larger_networks_it_is_the_same_member_of_a_run_with_that_value(tmp_path: Path) -> None:
    """One network alone is multiplied in another order there, so a run of a single seed is not compared."""
    td3 = {"batch_size": 128, "actor_hidden": [64, 64], "critic_hidden": [64, 64]}
    list(t3d.train(config(tmp_path, "sweep", sweep=GRIDS[0], seeds=[4, 7], td3=td3)))
    list(t3d.train(config(tmp_path, "plain", seeds=[4, 7], td3={**td3, "gamma": 0.97, "tau": 0.005})))
    for place in (0, 1):
        assert learned(tmp_path / "sweep", 4 + place, 8) == learned(tmp_path / "plain", place, 2)


def test_members_are_every_combination_and_in_it_every_seed() -> None:
    cfg = Config(seeds=(5, 6), sweep=("td3.gamma=0.98, 0.990", "td3.actor-lr=1e-4,0.001"))
    assert cfg.sweep == ("td3.gamma=0.98,0.99", "td3.actor_lr=0.0001,0.001"), "written as it will be compared"
    assert [member.name for member in cfg.members] == [
        f"gamma-{gamma}-actor_lr-{rate}-seed-{seed}"
        for gamma in ("0.98", "0.99")
        for rate in ("0.0001", "0.001")
        for seed in (5, 6)
    ]
    last = cfg.members[-1]
    assert last == Member(6, (("td3.gamma", 0.99), ("td3.actor_lr", 0.001)))
    assert last.title == "td3.gamma=0.99, td3.actor_lr=0.001, seed 6" and cfg.member_seeds == [5, 6] * 4
    assert cfg.settings_of(last) == merge(cfg, {"td3": {"gamma": 0.99, "actor_lr": 0.001}}).td3
    plain = Config(seeds=(5, 6)).members
    assert [(one.name, one.title) for one in plain] == [("seed-5", "seed 5"), ("seed-6", "seed 6")]


def test_a_sweep_is_given_in_toml_and_in_python(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('sweep = ["td3.gamma=0.98,0.99"]\n')
    from_file = load_config(tmp_path / "mine.toml")
    assert from_file == as_config({"sweep": ["td3.gamma=0.98,0.99"]}) and len(from_file.members) == 2


def test_settings_that_change_together_have_as_many_members_as_values() -> None:
    words = ["td3.actor_lr:td3.critic_lr=1e-4:1e-3,3e-4:3e-4", "td3.tau=0.1,0.2"]
    cfg = merge(Config(), {"seeds": [0, 1], "sweep": words})
    each = [tuple(dict(member.values).values()) for member in cfg.members[::2]]
    assert each == [(1e-4, 1e-3, 0.1), (1e-4, 1e-3, 0.2), (3e-4, 3e-4, 0.1), (3e-4, 3e-4, 0.2)]
    assert [member.seed for member in cfg.members] == [0, 1] * 4
    assert merge(Config(), {"seeds": [0, 1], "sweep": cfg.sweep}).members == cfg.members, "it is written as it is read"


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ("td3.gamma", "sweep='td3.gamma' cannot be read; write FIELD=V1,V2 with numbers, commas and no"),
        ("td3.gamma=0.9,", "cannot be read"),
        ("=1,2", "cannot be read"),
        ("../td3.gamma=0.9,0.8", "cannot be read"),
        ("td3.gamma=0.9", "needs two or more values, each only once; or set td3.gamma itself"),
        ("td3.gamma=0.9,0.90", "each only once"),
        ("td3.gamma=0.9,nan", "cannot be read"),
        ("td3.aggregate=min,mean", "sweep='td3.aggregate=min,mean' cannot be read; write FIELD=V1,V2 with numbers"),
        ("td3.gamma=0.9,1.2", "td3.gamma=1.2 is out of range; it must be between 0 and 1"),
        (["td3.gamma=0.9,1", "td3.gamma=0.8,0.7"], "sweep names td3.gamma twice"),
        ("td3.tau:td3.tau=0.1:0.2,0.3:0.4", "sweep names td3.tau twice"),
        ("td3.tau:td3.gamma=0.1,0.2", "cannot be read; write FIELD=V1,V2 with numbers"),
        ("td3.tau:td3.gamma=0.1:0.9,0.2:1.5", "td3.gamma=1.5 is out of range; it must be between 0 and 1"),
        (
            [
                f"td3.{name}=0,1"
                for name in ("gamma", "tau", "actor_lr", "critic_lr", "target_noise", "weight_decay", "max_grad_norm")
            ],
            "sweeps at most 6",
        ),
        (
            "td3.gamma=" + ",".join(f"{one / 1000}" for one in range(1001)),
            "1,001 members (1,001 combinations of values x 1 seed) are too many",
        ),
        ("td3.gama=0.9,1", "there is no setting td3.gama, did you mean td3.gamma?"),
        ("tau=0.9,1", "there is no setting tau, did you mean td3.tau?"),
        ("seeds=0,1", "seeds cannot be swept; these can: td3.gamma"),
        ("scale_rewards=0,2", "scale_rewards is on or off; sweep it as scale_rewards=0,1"),
        ("noise.decay_steps=100,0.5", "noise.decay_steps=0.5 is not an integer"),
        ("noise.final_noise=0.1,0.2", "noise.final_noise=0.1 is used only with noise.decay_steps"),
        ("replay.n_step=1,101", "replay.n_step=101 is out of range; it must be between 1 and 100"),
        ("random_steps=1000,5000", "env.args.NAME; train a run for each of its values instead, and compare them"),
        ("td3.lr_final=0.1,0.2", "td3.lr_final cannot be swept; these can: td3.gamma, td3.actor_lr, "),
    ],
)
def test_a_sweep_that_makes_no_sense_is_a_sentence(sweep: Any, words: str) -> None:
    with pytest.raises(UserError) as told:
        merge(Config(), {"sweep": sweep if isinstance(sweep, list) else [sweep]})
    assert words in str(told.value)
    with pytest.raises(UserError, match=r"sweep='td3.gamma=0,1' is not a list of strings"):
        merge(Config(), {"sweep": "td3.gamma=0,1"})


@pytest.mark.parametrize("field", ["td3.batch_size", "noise.per_env", "random_steps", "td3.value_low"])
def test_what_cannot_be_swept_is_refused_by_name_and_what_can_is_listed(field: str) -> None:
    noise = [f"noise.{name}" for name in ("exploration_noise", "final_noise", "decay_steps")]
    can = [*(f"td3.{name}" for name in Coefficients._fields), "scale_rewards", "replay.n_step", *noise]
    with pytest.raises(UserError) as told:
        Config(sweep=(f"{field}=1,2",))
    before, _, listed = str(told.value).partition(" cannot be swept; these can: ")
    listed, _, instead = listed.partition(" and env.args.NAME; ")
    assert before == field and sorted(listed.split(", ")) == sorted(can)
    assert instead == "train a run for each of its values instead, and compare them with t3d compare"


@pytest.mark.parametrize(
    ("sweep", "td3", "words"),
    [
        (
            ["td3.target_noise_clip=0.1,0.2"],
            {"target_noise": 0},
            "td3.target_noise_clip changes nothing where td3.target_",
        ),
        (
            ["td3.target_noise=0.1,0.2"],
            {"target_noise_clip": 0},
            "td3.target_noise changes nothing where td3.target_noise_",
        ),
        (["td3.target_noise=0,0.2", "td3.target_noise_clip=0.1,0.2"], {}, "so members would be the same"),
        (["td3.target_noise=0,0.2"], {}, ""),
    ],
)
def test_members_that_would_be_the_same_are_refused(sweep: list[str], td3: dict[str, Any], words: str) -> None:
    if not words:
        assert len(merge(Config(), {"sweep": sweep, "td3": td3}).members) == 2
        return
    with pytest.raises(UserError, match=words):
        merge(Config(), {"sweep": sweep, "td3": td3})


OWN = """
from typing import NamedTuple
from t3d.algo.rules import TD3
from t3d.algo.td3 import coefficients_of, td3_update

class Numbers(NamedTuple):
    gamma: float
    tau: float

def update(agent, batch, draws, cfg, numbers, phase):
    return td3_update(agent, batch, draws, cfg, coefficients_of(cfg)._replace(tau=numbers.tau), phase)

def careless(agent, batch, draws, cfg, numbers, phase):
    mean = numbers.tau if isinstance(numbers.tau, float) else numbers.tau.mean()
    return td3_update(agent, batch, draws, cfg, coefficients_of(cfg)._replace(tau=float(mean)), phase)

OWN = TD3._replace(update=update, coefficients=lambda cfg: Numbers(cfg.gamma, cfg.tau))
CARELESS = OWN._replace(update=careless)
"""


def test_a_rule_of_ones_own_has_its_own_coefficients_and_is_tried_with_them(tmp_path: Path) -> None:
    (tmp_path / "swept_rules.py").write_text(OWN)
    rule = f"{tmp_path}/swept_rules.py"
    with pytest.raises(
        UserError, match=r"^td3.actor_lr cannot be swept; these can: td3.gamma, td3.tau and env.args.NAME; train a run"
    ):
        list(t3d.train(config(tmp_path, "a", algo=f"{rule}:OWN", sweep=["td3.actor_lr=0,1"])))
    with pytest.raises(UserError, match=r"CARELESS cannot be used: with numbers that differ .* is not what a member"):
        list(t3d.train(config(tmp_path, "a", algo=f"{rule}:CARELESS", sweep=["td3.tau=0.1,0.9"])))
    assert not (tmp_path / "a").exists()
    events = list(t3d.train(config(tmp_path, "a", algo=f"{rule}:OWN", sweep=["td3.tau=0.1,0.9"])))
    assert isinstance(events[-1], End) and events[-1].reason == "finished"


def sweeping(tmp_path: Path, name: str, **changes: Any) -> Config:
    return config(tmp_path, name, sweep=["td3.gamma=0.9,0.97"], seeds=[4, 7], **changes)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sweeps")
    list(t3d.train(sweeping(root, "straight")))
    return root / "straight"


def test_a_resumed_sweep_equals_a_straight_one(straight: Path, tmp_path: Path) -> None:
    for event in t3d.train(sweeping(tmp_path, "resumed")):
        if isinstance(event, Saved) and event.step == 120:
            break
    list(t3d.resume(tmp_path / "resumed", cfg=sweeping(tmp_path, "resumed")))
    assert_equal(straight, tmp_path / "resumed")


def test_another_sweep_is_not_resumed(tmp_path: Path) -> None:
    for event in t3d.train(sweeping(tmp_path, "a")):
        if isinstance(event, Saved):
            break
    other = merge(sweeping(tmp_path, "a"), {"sweep": ["td3.gamma=0.9,0.98"]})
    with pytest.raises(
        UserError, match=r"started with sweep=td3.gamma=0.9,0.97, and this command says td3.gamma=0.9,0.98;"
    ):
        list(t3d.resume(tmp_path / "a", cfg=other))
    settings = tmp_path / "a" / "config.toml"
    settings.write_text(settings.read_text().replace("td3.gamma=0.9,0.97", "td3.gamma=0.9,0.98"))
    with pytest.raises(UserError, match="a run resumes as it was started"):
        list(t3d.resume(tmp_path / "a"))


def test_events_and_files_tell_members_apart(straight: Path) -> None:
    start, *events = events_of(straight)
    names = ["gamma-0.9-seed-4", "gamma-0.9-seed-7", "gamma-0.97-seed-4", "gamma-0.97-seed-7"]
    assert isinstance(start, Start) and start.members == names
    evals = [event for event in events if isinstance(event, Eval)]
    assert {(one.member, one.seed) for one in evals} == {(0, 4), (1, 7), (2, 4), (3, 7)}
    run = open_run(straight)
    assert run.evals == {
        member: [kept(one) for one in evals if one.member == place] for place, member in enumerate(run.cfg.members)
    }
    for kind in ("best", "last"):
        assert sorted(file.stem for file in (straight / kind).glob("*.safetensors")) == sorted(names)
    assert t3d.load_policy(straight / "best" / "gamma-0.97-seed-4").about["values"] == {"td3.gamma": 0.97}


def test_a_member_is_named_where_a_seed_is_not_enough(straight: Path) -> None:
    run = open_run(straight)
    assert run.member("gamma-0.97-seed-4") == Member(4, (("td3.gamma", 0.97),))
    with pytest.raises(UserError) as told:
        run.member(4)
    assert str(told.value) == "several members have seed 4: gamma-0.9-seed-4, gamma-0.97-seed-4; choose one by name"
    with pytest.raises(
        UserError, match=r"has no member 5; its members: gamma-0.9-seed-4, .* and 1 more \(t3d runs show"
    ):
        run.member("5")


def test_a_policy_of_another_value_is_refused(straight: Path, tmp_path: Path) -> None:
    run = open_run(straight)._replace(path=tmp_path)
    (tmp_path / "best").mkdir()
    for ending in ("json", "safetensors"):
        content = (straight / "best" / f"gamma-0.9-seed-4.{ending}").read_bytes()
        (tmp_path / "best" / f"gamma-0.97-seed-4.{ending}").write_bytes(content)
    with pytest.raises(UserError, match=r"gamma-0.97-seed-4 holds the best policy of seed 4 with .*0.9}; files"):
        run.policy(Member(4, (("td3.gamma", 0.97),)))


def test_a_list_refuses_nonsense(straight: Path, tmp_path: Path) -> None:
    lines = (straight / "events.jsonl").read_text().splitlines(keepends=True)
    for wrong in (["td3.gamma=0.9"], ["x/../y=1,2"], [None], 3, ["td3.gamma=" + ",".join(map(str, range(1001)))]):
        start = json.loads(lines[0])
        start["config"]["sweep"] = wrong
        (tmp_path / "events.jsonl").write_text(json.dumps(start) + "\n" + "".join(lines[1:]))
        with pytest.raises(UserError, match="cannot be read as a run"):
            read_summary(tmp_path)


def test_a_value_that_diverges_stops_and_everything_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    update = Learner.run

    def spoiled(self: Learner, *arguments: Any) -> Any:
        if self.updates == 20 and self.members == 4:
            self.agent.actor.flat[2, 0] = math.nan
        return update(self, *arguments)

    helpers.replace_updates(monkeypatch, spoiled)
    drawn = plotted(monkeypatch)
    events = list(t3d.train(sweeping(tmp_path, "a")))
    stopped, end = next(event for event in events if isinstance(event, SeedStopped)), events[-1]
    assert (stopped.member, stopped.seed) == (2, 4) and "of td3.gamma=0.97, seed 4 is" in stopped.text
    assert isinstance(end, End) and (end.reason, end.diverged) == ("finished", ["gamma-0.97-seed-4"])
    list(t3d.resume(tmp_path / "a", total_steps=200))
    run, entry = open_run(tmp_path / "a"), read_summary(tmp_path / "a")
    assert [*run.stopped] == [*entry.diverged] == [run.cfg.members[2]]
    assert {event.member for event in after(run.path, 160)} == {0, 1, 3}
    plot_curves([run], tmp_path / "curve.png")
    labels = [label for label, _ in drawn if label]
    assert labels == ["gamma=0.9 (2 seeds)", "gamma=0.97 (1 of 2 seeds)", "gamma=0.97: seed 4 diverged"]
    assert list(sweep_table(run.cfg.members, run.evals, run.stopped).columns[-1].cells)[1] == "1 diverged"
    assert main(["runs", "--root", str(tmp_path)]) == main(["runs", "show", str(run.path)]) == 0
    said = capsys.readouterr().out
    assert "4 = 2 values x 2 seeds; 1 diverged" in said and "gamma-0.97-seed-4 (diverged)" in said


def after(path: Path, step: int) -> list[Event]:
    return [event for event in events_of(path) if isinstance(event, Eval) and event.step > step]


def test_actor_processes_act_for_every_member(tmp_path: Path) -> None:
    cfg = sweeping(tmp_path, "a", actors="local:2", total_steps=200)
    events = list(t3d.train(cfg))
    evals = [event for event in events if isinstance(event, Eval) and event.step == 200]
    assert isinstance(events[-1], End) and events[-1].reason == "finished"
    assert [(one.member, one.seed) for one in evals] == [(0, 4), (1, 7), (2, 4), (3, 7)]
    events = list(t3d.resume(tmp_path / "a", total_steps=240))
    assert isinstance(events[-1], End) and events[-1].step == 240
    assert len(open_run(tmp_path / "a").evals) == 4
