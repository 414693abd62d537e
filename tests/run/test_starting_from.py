"""A run may start from what another has learned, or from a policy file: exactly, and as data that it needs once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import helpers
import t3d
from run_folders import assert_equal, end_of, events_of, run
from t3d.algo.engines.verify import FixedBatch
from t3d.algo.learner import Learner
from t3d.app.cli import main
from t3d.config import Config, load_config, merge
from t3d.errors import UserError
from t3d.events import Event, Note, Start, Update
from t3d.policy.files import read_policy
from t3d.store.checkpoint import open_checkpoint
from t3d.store.summary import read_summary

STATISTICS: dict[str, Any] = {"normalise_observations": True, "scale_rewards": True}
NETWORKS = {"actor", "actor_target", "critic", "critic_target"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two seeds in two environments each, and of one without statistics."""
    root = tmp_path_factory.mktemp("runs")
    run(config("old", seeds=[0, 1], env={"num_envs": 2}, **STATISTICS), root)
    run(config("plain", total_steps=200), root)
    return root


def config(name: str, **changes: Any) -> Config:
    return merge(helpers.small_config(checkpoint={"every_steps": 60}, run={"name": name}), changes)


def at(folder: Path, step: int) -> dict[str, Any]:
    """The state in the checkpoint of a step."""
    (path,) = (folder / "checkpoints").glob(f"*-step-{step}")
    return open_checkpoint(path).state()


def rows(folder: Path, step: int, member: str) -> bytes:
    (path,) = (folder / "checkpoints").glob(f"*-step-{step}")
    checkpoint = open_checkpoint(path)
    own = sorted((each for each in checkpoint.segments if each.member == member), key=lambda each: each.first)
    return b"".join(checkpoint.read_rows(segment).tobytes() for segment in own)


def refused(cfg: Config, root: Path) -> str:
    before = sorted(root.iterdir())
    with pytest.raises(UserError) as refusal:
        run(cfg, root)
    assert sorted(root.iterdir()) == before, "nothing is written"
    return str(refusal.value)


@pytest.mark.parametrize(("seeds", "of"), [([1, 0], [1, 0]), ([7, 8, 9], [1, 1, 1])])
def test_a_run_starts_with_all_that_was_learned(runs: Path, tmp_path: Path, seeds: list[int], of: list[int]) -> None:
    choice = {} if len(seeds) == 2 else {"start_seed": "1"}
    start, total = {"start_from": str(runs / "old"), **choice, **STATISTICS}, {"total_steps": 110}
    events = run(config("new", seeds=seeds, td3={"gamma": 0.9, "actor_lr": 1e-2}, **start, **total), tmp_path)
    then, new = at(runs / "old", 300), at(tmp_path / "new", 0)
    learned = {name: each for name, each in then["learner"].items() if name.startswith(("actor", "critic"))}
    assert learned.keys() > NETWORKS and "critic_adam_square" in learned
    for name, array in learned.items():
        expected = array.reshape(2, -1)[of].reshape(-1) if array.ndim else array
        assert new["learner"][name].tobytes() == expected.tobytes(), name
    assert new["learner"]["updates"] == 0 and new["learner"]["critic_adam_steps"] == 200
    for part in ("normaliser", "reward_scaler"):
        for name in ("count", "mean", "m2"):
            assert new["memory"][part][name].tobytes() == then["memory"][part][name][of].tobytes(), (part, name)
    assert new["memory"]["added"] == [0] * len(seeds), "the replay is not asked for"
    assert end_of(events).updates == 10, "100 steps are collected before learning starts"
    first, note = (next(event for event in events if isinstance(event, kind)) for kind in (Start, Note))
    members = [f"seed-{seed}" for seed in of]
    path, name = str(runs / "old"), "000005-step-300"
    assert isinstance(first, Start) and isinstance(note, Note)
    assert first.origin == {"path": path, "checkpoint": name, "step": 300, "members": members, "replay": False}
    assert "had learned at step 300" in note.text and "its environment was another" not in note.text
    assert np.isneginf(new["best"]["returns"]).all(), "best/ starts fresh"


def test_the_policy_acts_from_the_first_step(runs: Path, tmp_path: Path) -> None:
    quiet: dict[str, Any] = {"noise": {"exploration_noise": 0}, "total_steps": 110}
    run(config("new", start_from=str(runs / "plain"), **quiet), tmp_path)
    stored = np.frombuffer(rows(tmp_path / "new", 110, "seed-0"), np.float32).reshape(110, -1)[:100]
    policy = read_policy(runs / "plain" / "last" / "seed-0")
    assert np.allclose(stored[:, 3], policy.actor(stored[:, :3])[:, 0], atol=1e-6)


def test_the_replay_comes_along_and_learning_starts_at_once(runs: Path, tmp_path: Path) -> None:
    checkpoint = next((runs / "old" / "checkpoints").glob("*-step-300"))
    cfg = config("new", seeds=[0, 1], start_from=str(checkpoint), start_replay=True, total_steps=90, **STATISTICS)
    events = run(cfg, tmp_path)
    assert end_of(events).updates == 90
    old, state = (rows(runs / "old", 300, "seed-1"), at(tmp_path / "new", 90))
    assert rows(tmp_path / "new", 0, "seed-1") == old and len(old) == 300 * 9 * 4
    assert rows(tmp_path / "new", 90, "seed-1")[: len(old)] == old
    assert state["memory"]["added"] == [390, 390] and state["memory"]["carried"] == [300, 300]
    assert state["memory"]["normaliser"]["count"].tolist() == [[390.0], [390.0]], "what came along counts once"
    capacity = {"capacity": 200}
    run(merge(cfg, {"replay": capacity, "run": {"name": "less"}}), tmp_path)
    assert rows(tmp_path / "less", 0, "seed-1") == old[-200 * 9 * 4 :], "the newest, where there is less room"


STARTS: dict[str, dict[str, Any]] = {
    "with the replay, several environments and 3-step returns": {
        "start_from": "old",
        "start_replay": True,
        "start_actor_after": 7,
        "replay": {"n_step": 3, "sampling": "proportional"},
        "seeds": [0, 1],
        **STATISTICS,
    },
    "from a policy file": {"start_from": "plain/best/seed-0", "start_actor_after": 45},
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_resume_is_exact_and_needs_nothing_but_the_run(runs: Path, tmp_path: Path, start: dict[str, Any]) -> None:
    others = tmp_path / "others"
    shutil.copytree(runs, others)
    cfg = config("new", **{**start, "start_from": str(others / start["start_from"]), "total_steps": 200})
    run(cfg, tmp_path / "straight")
    stop, steps = threading.Event(), 120
    for event in t3d.train(merge(cfg, {"run": {"root": str(tmp_path / "resumed")}}), stop=stop):
        if event.step >= steps:
            stop.set()
    shutil.rmtree(others)
    list(t3d.resume(tmp_path / "resumed" / "new"))
    assert_equal(tmp_path / "straight" / "new", tmp_path / "resumed" / "new")
    killed = tmp_path / "killed" / "new"
    shutil.copytree(tmp_path / "resumed" / "new", killed)
    for path in (killed / "checkpoints").glob("*-step-*"):
        if not path.name.endswith("-step-0"):
            shutil.rmtree(path)
    assert read_summary(killed).origin.startswith("step ")


def test_an_actor_from_a_file_rests_until_its_critics_have_learned(runs: Path, tmp_path: Path) -> None:
    file = runs / "plain" / "best" / "seed-0.safetensors"
    cfg = config("new", seeds=[3, 4], start_from=str(file), start_actor_after=60, total_steps=200)
    events = run(merge(cfg, {"checkpoint": {"every_steps": 20}}), tmp_path)
    actor = read_policy(file).snapshot.flat
    resting, learning = at(tmp_path / "new", 160)["learner"], at(tmp_path / "new", 200)["learner"]
    fresh = Learner(helpers.make_spec(3, 1), cfg.td3, [3, 4])
    assert resting["updates"] == 60 and resting["actor_adam_steps"] == 0 and resting["critic_adam_steps"] == 60
    for name in ("actor", "actor_target"):
        assert resting[name].tobytes() == np.repeat(actor, 2, 0).tobytes(), name
        assert (learning[name] != actor).any(axis=1).all(), name
    for name, before in (("critic", fresh.agent.critic.flat), ("critic_target", fresh.agent.critic_target.flat)):
        assert (resting[name] != before.numpy()).any(), f"the {name} learns"
    losses = [(event.updates, event.actor_loss) for event in events if isinstance(event, Update)]
    assert any(np.isnan(loss) for updates, loss in losses if updates <= 60), "reported while it rests, too"
    assert losses[-1][0] > 60 and np.isfinite(losses[-1][1])


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_engines_agree_while_the_actor_rests(delay: int) -> None:
    spec, cfg = helpers.make_spec(), helpers.small_config(td3={"policy_delay": delay}).td3
    batch, _ = next(helpers.random_batches(spec, cfg, 2, 1, torch.float32))
    agents = {}
    for engine in ("eager", "fused"):
        learner = Learner(spec, cfg, [0, 1], engine=engine, source=FixedBatch(batch), rests=7)
        actor, target = learner.agent.actor.flat.clone(), learner.agent.critic_target.flat.clone()
        learner.run(3)
        learner.run(4)
        assert torch.equal(learner.agent.actor.flat, actor) and torch.equal(learner.agent.actor_target.flat, actor)
        assert not torch.equal(learner.agent.critic_target.flat, target), "targets follow the critics"
        learner.run(6)
        assert not torch.equal(learner.agent.actor.flat, actor)
        agents[engine] = learner.agent
    for name in NETWORKS:
        eager, fused = (getattr(agents[engine], name).flat for engine in ("eager", "fused"))
        assert torch.allclose(eager, fused, atol=2e-5), name


def test_a_policy_file_brings_its_scaling(runs: Path, tmp_path: Path) -> None:
    stem = runs / "old" / "last" / "seed-1"
    run(config("new", start_from=str(stem), total_steps=110, **STATISTICS), tmp_path)
    scaling = read_policy(stem).snapshot.scaling
    first = at(tmp_path / "new", 0)["memory"]["normaliser"]
    assert scaling is not None and first["mean"].astype(np.float32).tobytes() == scaling.mean.tobytes()
    std = np.sqrt(first["m2"] / first["count"] + 1e-8)
    assert np.allclose(std, scaling.std, rtol=1e-6) and first["count"].tolist() == [[300.0]]


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no run": ({"start_from": "odl"}, "there is no run named odl in"),
    "other networks": ({"td3": {"actor_hidden": [16, 8]}}, "td3.actor_hidden=16 16, and this run 16 8; they must be"),
    "other critics": ({"td3": {"critics": 3}}, "td3.critics=2, and this run 3; they must be the same"),
    "other outputs": ({"td3": {"critic_loss": "categorical"}}, "does not fit this run (ValueError: critic is float32 "),
    "another rule": ({"algo": "FILE"}, "algo=td3, and this run "),
    "another scale": ({"normalise_observations": True}, "normalise_observations=False, and this run True"),
    "other spaces": ({"env": {"id": "MountainCarContinuous-v0"}}, "does not fit"),
    "other seeds": (
        {"start_from": "old", "seeds": [5, 0], **STATISTICS},
        "has the seeds seed-0, seed-1, and this run ",
    ),
    "no such seed": (
        {"start_seed": "5"},
        "start_seed=5 is not one of them; choose one for all, e.g. --start-seed seed-0",
    ),
    "a replay of nothing": ({"start_seed": "0", "start_from": ""}, "start_seed=0 is used only with start_from"),
    "a policy has no replay": (
        {"start_from": "ROOT/plain/best/seed-0", "start_replay": True},
        "is one policy, and start_repl",
    ),
    "another policy": (
        {"start_from": "ROOT/plain/best/seed-0", "td3": {"actor_activation": "elu"}},
        "td3.actor_activation=relu",
    ),
    "no checkpoint": ({"start_from": "policies"}, "has no checkpoint to start from; a policy of it will do: "),
    "schedules": (
        {"td3": {"lr_schedule": "linear", "lr_updates": 90}},
        "td3.lr_updates=90 counts all updates, and 100 ",
    ),
}


@pytest.mark.parametrize(("changes", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_what_does_not_fit_is_a_sentence(runs: Path, changes: dict[str, Any], sentence: str) -> None:
    if not (runs / "policies").exists():
        (runs / "policies").mkdir()
        shutil.copy(runs / "plain" / "events.jsonl", runs / "policies")
    rule = f"{Path(__file__).parents[1] / 'rules_in_tests.py'}:TRACKING"
    known = {"start_from": "plain", **changes}
    changes = {key: rule if value == "FILE" else value for key, value in known.items()}
    changes["start_from"] = changes["start_from"].replace("ROOT", str(runs))
    try:
        text = refused(config("new", **changes), runs)
    except UserError as error:  # already by the settings
        text = str(error)
    assert sentence in text and "\n" not in text


def test_a_damaged_file_is_refused(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "plain", tmp_path / "plain")
    for path in (tmp_path / "plain" / "checkpoints").glob("*-step-*/state.safetensors"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    text = refused(config("new", start_from="plain"), tmp_path)
    assert "has no checkpoint to start from (checkpoint 0000" in text and "SHA-256" in text
    file = tmp_path / "plain" / "best" / "seed-0.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert "is not a policy that T3D wrote" in refused(config("new", start_from=str(file)), tmp_path)


def test_nothing_that_the_other_run_names_is_imported(tmp_path: Path) -> None:
    world, marker = tmp_path / "theirs.py", tmp_path / "imported"
    world.write_text(
        f"import pathlib; pathlib.Path({str(marker)!r}).touch()\n"
        "from gymnasium.envs.classic_control import PendulumEnv\nfrom gymnasium.wrappers import TimeLimit\n"
        "def make_env(): return TimeLimit(PendulumEnv(), 200)\n"
    )
    words = f"{world} --total-steps 60 --random-steps 30 --td3.batch-size 16 --no-video --run.name theirs --threads 1"
    words += " --td3.actor-hidden 16 16 --td3.critic-hidden 16 16 --eval.episodes 1 --eval.max-steps 9"
    subprocess.run(
        [sys.executable, "-m", "t3d", "train", *words.split()], cwd=tmp_path, check=True, capture_output=True
    )
    assert marker.exists()
    marker.unlink()
    for start in ("runs/theirs", "runs/theirs/best/seed-0"):
        run(config("", start_from=str(tmp_path / start), total_steps=110), tmp_path / "mine")
    assert not marker.exists()


def test_another_environment_is_told_and_the_origin_is_shown(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = config("new", start_from=str(runs / "plain"), env={"args": {"g": 12.0}}, total_steps=110)
    events: list[Event] = run(cfg, tmp_path)
    text = next(event.text for event in events if isinstance(event, Note))
    assert "its environment was another: argument g nothing -> 12.0; observations of a seeded episode differ" in text
    assert any(isinstance(event, Start) and event.origin for event in events_of(tmp_path / "new", "journal.jsonl"))
    shown = "step 200 of plain (seed-0)"
    main(["runs", "--root", str(tmp_path)])
    main(["runs", "show", str(tmp_path / "new")])
    main(["report", str(tmp_path / "new"), "--out", str(tmp_path / "report.html")])
    assert capsys.readouterr().out.count(f"started from {shown}") == 1
    assert f"started from {shown}" in (tmp_path / "report.html").read_text()
    main(["runs", "--root", str(tmp_path), "--json"])
    (fields,) = json.loads(capsys.readouterr().out)
    assert fields["origin"] == shown


def test_the_command_line_starts_and_repeats(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs.parent)
    words = f"train Pendulum-v1 --start-from {runs.name}/plain --start-seed 0 --total-steps 110 --random-steps 100"
    words += (
        " --td3.actor-hidden 16 16 --td3.critic-hidden 16 16 --td3.batch-size 16 --eval.episodes 1 --no-video --quiet"
    )
    words += f" --eval.max-steps 9 --run.root {tmp_path} --run.name new --resume-or-start"
    assert main(words.split()) == 0
    assert load_config(tmp_path / "new" / "config.toml").start_from == str(runs / "plain")
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 0, "it is over, and what it started from is not looked for"
