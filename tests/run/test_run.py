"""Whole runs: counts, determinism, what is written, how they stop, what they refuse."""

from __future__ import annotations

import csv
import json
import math
import re
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import helpers
import t3d
from run_folders import end_of, events_of, folder_of, run, weights
from t3d.algo.learner import Learner
from t3d.config import Config, EnvConfig, TD3Config, load_toml, merge
from t3d.data.memory import Memory
from t3d.errors import Diverged, UserError
from t3d.events import End, Eval, Event, Saved, Start, TraceSummary, Update, from_line, to_line
from t3d.policy.files import read_policy
from t3d.policy.observations import ABSURD
from t3d.run.parts import infinite_losses
from t3d.run.placement import resolve
from t3d.seeds import derive
from t3d.store.checkpoint import newest
from t3d.world.batch import open_batch
from t3d.world.evaluate import finish, play_episodes
from t3d.world.make import env_factory
from worlds import Toy


@pytest.mark.parametrize("num_envs", [1, 3, 7])
@pytest.mark.parametrize("ratio", [1.0, 0.1, 2.0])
def test_updates_do_not_depend_on_the_number_of_environments(tmp_path: Path, num_envs: int, ratio: float) -> None:
    cfg = helpers.small_config(env={"num_envs": num_envs}, updates_per_step=ratio, eval={"episodes": 1})
    end = end_of(run(cfg, tmp_path))
    assert (end.step, end.updates, end.reason) == (300, round(200 * ratio), "finished")


def test_the_first_update_comes_after_the_last_random_step(tmp_path: Path) -> None:
    events = run(helpers.small_config(log={"every_steps": 1}), tmp_path)
    first = next(event for event in events if isinstance(event, Update))
    assert (first.step, first.updates) == (102, 2), "the first update that moves the actor"
    assert events.index(first) > 0 and end_of(events).updates == 200


@pytest.mark.parametrize(
    ("num_envs", "policy_delay", "random_steps"), [(2, 2, 101), (3, 3, 100), (1, 7, 50), (5, 2, 98)]
)
def test_losses_are_reported_however_updates_fall(
    tmp_path: Path, num_envs: int, policy_delay: int, random_steps: int
) -> None:
    changes = {"env": {"num_envs": num_envs}, "random_steps": random_steps, "td3": {"policy_delay": policy_delay}}
    events = run(helpers.small_config(**changes), tmp_path)
    updates = [event for event in events if isinstance(event, Update)]
    assert len(updates) in (4, 5), "one for each 50 steps of learning"
    assert all(event.updates % policy_delay == 0 for event in updates), "each of them moved the actor"
    assert end_of(events).updates == 300 - random_steps


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "HalfCheetah-v5"])
def test_same_seed_same_bits_other_seed_other_bits(tmp_path: Path, env_id: str) -> None:
    """R20, with several members and environments: three runs on each of two environments."""
    cfg = helpers.small_config(seeds=[0, 5], env={"id": env_id, "num_envs": 2}, eval={"max_steps": 100})
    first, again = run(cfg, tmp_path), run(cfg, tmp_path)
    other = run(merge(cfg, {"seeds": [1, 5]}), tmp_path)
    for seed in (0, 5):
        assert np.array_equal(weights(first, seed=seed), weights(again, seed=seed))
    assert not np.array_equal(weights(first, seed=0), weights(other, seed=1))
    assert [told(event) for event in first[1:]] == [told(event) for event in again[1:]]


def told(event: Event) -> dict[str, Any]:
    changing = ("time", "steps_per_second", "seconds", "acting_share", "save_seconds", "new_bytes")
    return {"event": event.event, **{key: value for key, value in vars(event).items() if key not in changing}}


def test_a_run_ends_on_the_step_and_evaluates_there(tmp_path: Path) -> None:
    cfg = helpers.small_config(total_steps=310, env={"num_envs": 4}, eval={"every_steps": 100, "episodes": 3})
    events = run(cfg, tmp_path)
    evals = [event for event in events if isinstance(event, Eval)]
    assert [event.step for event in evals] == [0, 100, 200, 300, 310]
    assert all(len(event.returns) == len(event.lengths) == 3 for event in evals)
    for event in evals:
        assert event.mean_return == pytest.approx(np.mean(event.returns))
        assert event.std_return == pytest.approx(np.std(event.returns, ddof=1))
        assert (event.min_return, event.max_return) == (min(event.returns), max(event.returns))
    assert end_of(events).updates == 210


def test_the_best_policy_is_kept_and_plays_as_it_was_evaluated(tmp_path: Path) -> None:
    cfg = helpers.small_config(seeds=[0, 3], eval={"every_steps": 50, "episodes": 2})
    events = run(cfg, tmp_path)
    for seed in cfg.seeds:
        evals = [event for event in events if isinstance(event, Eval) and event.seed == seed]
        best = max(evals, key=lambda event: event.mean_return)
        policy = read_policy(folder_of(events) / "best" / f"seed-{seed}")
        assert (policy.about["step"], policy.about["mean_return"]) == (best.step, best.mean_return)
        env_batch = open_batch(env_factory(EnvConfig("Pendulum-v1")), cfg.env, "test")
        seeds = [derive(cfg.eval.seed, "evaluation", episode) for episode in range(cfg.eval.episodes)]
        played = finish(play_episodes(policy.actor, env_batch, seeds, cfg.eval.max_steps))
        assert [episode.total_reward for episode in played] == best.returns
        assert [episode.length for episode in played] == best.lengths
        assert not any(episode.terminated for episode in played)  # Pendulum only truncates
        assert gym.make("Pendulum-v1").action_space.contains(policy(env_batch.reset(0, 0, 0)))


def test_what_a_run_writes(tmp_path: Path) -> None:
    cfg = helpers.small_config(seeds=[0, 1])
    events = run(cfg, tmp_path)
    folder = folder_of(events)
    assert folder.parent == tmp_path and folder.name.startswith("Pendulum-v1-default-")
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    policies = {
        f"{kind}/seed-{n}.{end}" for kind in ("best", "last") for n in (0, 1) for end in ("safetensors", "json")
    }
    checkpoint = {f"000001-step-300/{name}" for name in ("manifest.json", "state.json", "state.safetensors")}
    checkpoint |= {f"replay/000001-seed-{n}-0-300.safetensors" for n in (0, 1)}
    logs = {"config.toml", "events.jsonl", "metrics.csv", "journal.jsonl", "lock"}
    assert names == logs | policies | {f"checkpoints/{name}" for name in checkpoint}
    lines = (folder / "events.jsonl").read_text().splitlines()
    told = [event for event in events if not isinstance(event, Saved)]
    assert [from_line(line) for line in lines] == [from_line(to_line(event)) for event in told]
    journal = [event.event for event in events_of(folder, "journal.jsonl")]
    assert journal == ["start", "saved", "end"]
    assert all({"event", "step", "member", "seed", "time"} <= set(json.loads(line)) for line in lines)
    again = merge(Config(total_steps=10**6), load_toml(folder / "config.toml"))
    assert again == merge(cfg, {"run": {"root": str(tmp_path)}}), (
        "device, engine and threads as asked for, not as chosen"
    )
    start = next(event for event in events if isinstance(event, Start))
    settled = merge(again, {"engine": "fused", "threads": torch.get_num_threads()})
    assert merge(Config(), {**start.config, "run": {"root": str(tmp_path)}}) == resolve(settled)
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    figures = [event for event in events if event.event in ("episode", "update", "eval")]
    assert [(row["event"], int(row["step"])) for row in rows] == [(event.event, event.step) for event in figures]
    evals = [row for row in rows if row["event"] == "eval"]
    assert float(evals[0]["mean_return"]) == next(event for event in events if isinstance(event, Eval)).mean_return


def test_the_steps_event_shows_the_fifteen_steps(tmp_path: Path) -> None:
    events = run(helpers.small_config(), tmp_path)
    steps = [event for event in events if isinstance(event, TraceSummary)][-1]
    assert set(steps.values) == {
        "pi2",
        "eps",
        "a2",
        "q2",
        "v2",
        "y",
        "q",
        "td",
        "loss",
        "weight",
        "pi",
        "q_pi",
        "actor_loss",
    }
    assert steps.values["q"]["shape"] == [2, 16] and steps.values["a2"]["shape"] == [16, 1]
    assert all(math.isfinite(value["mean"]) for value in steps.values.values())


def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    cfg = helpers.small_config(total_steps=20, random_steps=10, eval={"episodes": 1})
    folders = {folder_of(run(cfg, tmp_path)) for _ in range(3)}
    assert len(folders) == 3
    named = merge(cfg, {"run": {"name": "mine"}})
    assert folder_of(run(named, tmp_path)) == tmp_path / "mine"
    with pytest.raises(UserError, match="already exists"):
        run(named, tmp_path)


def test_a_stop_that_comes_after_the_last_step_is_too_late(tmp_path: Path) -> None:
    stop, events = threading.Event(), []
    for event in t3d.train(helpers.small_config(run={"root": str(tmp_path)}), stop=stop):
        events.append(event)
        if event.step == 300 and isinstance(event, Eval):
            stop.set()
    assert end_of(events).reason == "finished"


def test_environments_are_closed_whatever_happens(tmp_path: Path) -> None:
    open_now: list[Toy] = []

    class Counted(Toy):
        def __init__(self) -> None:
            super().__init__()
            open_now.append(self)

        def close(self) -> None:
            open_now.remove(self)

    cfg = helpers.small_config(run={"root": str(tmp_path), "name": "twice"}, env={"num_envs": 3}, seeds=[0, 1])
    made = 0
    for _ in t3d.train(cfg, make_env=Counted):
        made = max(made, len(open_now))
    assert made == 2 * 3 + 2 and not open_now, "three for each seed to act in and one to evaluate in"
    with pytest.raises(UserError, match="already exists"):
        list(t3d.train(cfg, make_env=Counted))
    assert not open_now


def test_an_environment_that_never_ends_is_cut_in_evaluation(tmp_path: Path) -> None:
    class Endless(Toy):
        def step(self, action: Any) -> Any:
            return self.observation, 1.0, False, False, {}

    cfg = helpers.small_config(eval={"max_steps": 70})
    evals = [event for event in run(cfg, tmp_path, make_env=Endless) if isinstance(event, Eval)]
    assert [event.step for event in evals] == [0, 150, 300] and {*evals[0].lengths} == {70}


def test_the_largest_accepted_value_leaves_every_weight_movable(tmp_path: Path) -> None:
    learner = Learner(helpers.make_spec(), TD3Config(batch_size=8, actor_hidden=(16,), critic_hidden=(16,)), (0,))
    batches = list(helpers.random_batches(helpers.make_spec(), learner.cfg, 1, 4, torch.float32))
    batch, draws = batches[0]
    batch.s[0, 0], batch.s2[0, 0], batch.r[0, 0] = ABSURD, ABSURD, ABSURD
    learner.update(batch, draws)
    learner.update(batch, draws)
    for moments in (learner.agent.actor_adam, learner.agent.critic_adam):
        assert torch.isfinite(moments.square).all() and torch.isfinite(moments.mean).all()


def test_stop_ends_a_run_cleanly_and_keeps_what_was_learned(tmp_path: Path) -> None:
    stop, events = threading.Event(), []
    cfg = merge(helpers.small_config(total_steps=100_000), {"run": {"root": str(tmp_path)}})
    for event in t3d.train(cfg, stop=stop):
        events.append(event)
        if isinstance(event, Update) and event.step >= 200:
            stop.set()
    end = end_of(events)
    assert (end.reason, end.step, end.updates) == ("stopped", 200, 100)
    assert np.isfinite(weights(events)).all()


def test_leaving_the_loop_ends_a_run_cleanly_too(tmp_path: Path) -> None:
    cfg = merge(helpers.small_config(total_steps=100_000), {"run": {"root": str(tmp_path), "name": "left"}})
    for event in t3d.train(cfg):
        if isinstance(event, Update):
            break
    del event
    lines = (tmp_path / "left" / "events.jsonl").read_text().splitlines()
    end = from_line(lines[-1])
    assert isinstance(end, End) and end.reason == "stopped"
    assert (tmp_path / "left" / "last" / "seed-0.safetensors").exists()


def test_a_users_own_factory(tmp_path: Path) -> None:
    cfg = helpers.small_config(env={"id": ""}, eval={"episodes": 1})
    end = end_of(run(cfg, tmp_path, make_env=lambda: Toy(low=[-3, 0], high=[1, 10], action_shape=(2,))))
    assert end.updates == 200


def test_a_full_disk_at_the_end_does_not_hide_what_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("t3d.store.folder.save_policy", full)
    cfg = helpers.small_config(total_steps=120, eval={"every_steps": 1000, "episodes": 1}, run={"root": str(tmp_path)})
    events = []
    for event in t3d.train(cfg):
        events.append(event)
        if isinstance(event, Update):
            break
    end = from_line((folder_of(events) / "events.jsonl").read_text().splitlines()[-1])
    assert isinstance(end, End) and "No space left" in end.text


def test_a_loss_that_is_not_finite_is_named() -> None:
    learner = Learner(helpers.make_spec(), TD3Config(batch_size=4), (7,))
    batch, draws = next(helpers.random_batches(helpers.make_spec(), learner.cfg, 1, 1, torch.float32))
    learner.update(batch, draws)
    steps = learner.update(batch._replace(r=batch.r * math.inf), draws)
    (why,) = infinite_losses(steps, Config(seeds=(7,)), [0]).values()
    assert re.fullmatch(r"the critic loss of seed 7 is (inf|nan)", why)
    assert infinite_losses(steps, Config(seeds=(7,)), []) == {}, "of the living only"


def test_divergence_is_named_stops_the_run_and_spares_the_last_sound_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Memory.sample

    def infinite_after_the_second_evaluation(memory: Memory) -> Any:
        batch = right(memory)
        return batch._replace(r=batch.r * math.inf) if memory.added[0] > 220 else batch

    monkeypatch.setattr(Memory, "sample", infinite_after_the_second_evaluation)
    cfg = helpers.small_config(eval={"every_steps": 200, "episodes": 1}, run={"name": "diverges"})
    with pytest.raises(Diverged, match="the action for environment 0 of seed 0"):
        run(cfg, tmp_path)
    policy = t3d.load_policy(tmp_path / "diverges" / "last" / "seed-0")
    assert policy.about["step"] == 200 and np.isfinite(policy([0, 0, 0])).all()


def test_networks_that_are_not_finite_are_never_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where acting does not notice yet, and no report is due."""
    update = Learner.run

    def spoiled(self: Learner, *arguments: Any) -> Any:
        trace = update(self, *arguments)
        if self.updates == 50:
            self.agent.critic_target.flat[0, 0] = math.nan
        return trace

    helpers.replace_updates(monkeypatch, spoiled)
    cfg = helpers.small_config(checkpoint={"every_steps": 1}, log={"every_steps": 10_000}, run={"name": "spoiled"})
    with pytest.raises(Diverged, match="the critic target of seed 0 is not finite at step 150"):
        run(cfg, tmp_path)
    checkpoint, _ = newest(tmp_path / "spoiled" / "checkpoints")
    assert checkpoint is not None and checkpoint.step == 149
    assert np.isfinite(checkpoint.state()["learner"]["critic_target"]).all()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_pendulum_is_learned_by_five_of_five_seeds(tmp_path: Path) -> None:
    cfg = merge(t3d.preset("quick"), {"env": {"id": "Pendulum-v1"}, "seeds": [0, 1, 2, 3, 4]})
    events = run(cfg, tmp_path)
    assert end_of(events).updates == 9_000
    for seed in cfg.seeds:
        returns = [event.mean_return for event in events if isinstance(event, Eval) and event.seed == seed]
        assert max(returns) >= -200, f"seed {seed}: {returns}"
