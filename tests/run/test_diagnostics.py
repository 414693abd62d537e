"""Diagnostics: they change nothing, find a critic that is wrong on purpose, and resume to the last bit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from test_resume import broken_off

import helpers
import image_worlds
import t3d
from run_folders import events_of, everything
from t3d.algo.networks import Critic, layers_of
from t3d.config import Config, merge
from t3d.data.memory import Memory
from t3d.events import Diagnosed, Update
from t3d.measure import MOST_OWN
from t3d.run.build import Training, assemble
from t3d.run.parts import Counters
from t3d.run.placement import resolve
from t3d.run.surroundings import Surroundings
from t3d.types import Requests
from worlds import Sound

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
IMAGES: dict[str, Any] = {
    "env": {"id": "image_worlds:WithVector", "frame_stack": 2},
    "td3": {"batch_size": 8, "actor_hidden": [8], "critic_hidden": [8], "encoder_channels": 4, "encoder_features": 6},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "fused": {"engine": "fused", "seeds": [0, 1]},
    "eager": {"engine": "eager"},
    "priorities, three steps": {"replay": {"sampling": "proportional", "n_step": 3, "capacity": 150}},
    "scaled, normalised, three environments": {
        **{"scale_rewards": True, "normalise_observations": True, "env": {"num_envs": 3}},
    },
    "categorical critics, two of three at random": {
        "td3": {"critic_loss": "categorical", "critics": 3, "aggregate": "min_of_random_2"}
    },
    "a rule of one's own": {"algo": "ddpg:DDPG"},
    "a sweep": {"sweep": ["td3.gamma=0.5,0.9"], "seeds": [0, 1]},
    "images": IMAGES,
    "an actor process that takes turns": {"actors": "local:1", "max_ahead": 1},
}
ON_GPUS: dict[str, dict[str, Any]] = {
    "capture, two seeds": {"engine": "capture", "seeds": [0, 1]},
    "capture, priorities, three steps, scaled": {
        "replay": {"sampling": "proportional", "n_step": 3},
        "scale_rewards": True,
    },
    "capture, replay in host memory": {"engine": "capture"},
    "images": IMAGES,
}


def diagnosed(events: Any) -> list[Diagnosed]:
    return [event for event in events if isinstance(event, Diagnosed)]


def left_by(folder: Path) -> dict[str, Any]:
    """Everything that a run has come to, without its diagnostics and what says whether it has some."""
    left = everything(folder)
    left["events"] = [event for event in left["events"] if event["event"] not in ("diagnostics", "alarm")]
    del left["events"][0]["config"], left["plain"]["config"], left["plain"]["progress"]["diagnosis_due"]
    return left


def assert_same_bits(tmp_path: Path, **changes: Any) -> None:
    for every in (0, 20):
        cfg = merge(helpers.small_config(total_steps=230, threads=1), changes)
        run = {"root": str(tmp_path), "name": str(every)}
        events = list(t3d.train(merge(cfg, {"log": {"every_steps": 10, "diagnose_every_steps": every}, "run": run})))
        assert len(diagnosed(events)) == (0 if every == 0 else len(cfg.members) * 7), "at steps 102, 120, ... 220"
    with_none, with_some = left_by(tmp_path / "0"), left_by(tmp_path / "20")
    if cfg.async_actors:  # some events are about time, and evaluations come when they are ready
        del with_none["events"], with_some["events"], with_none["metrics"], with_some["metrics"]
    assert with_none.keys() == with_some.keys() and len(with_none) > 15
    for name, value in with_none.items():
        same = np.array_equal(value, with_some[name]) if isinstance(value, np.ndarray) else value == with_some[name]
        assert same, name


@pytest.mark.parametrize(
    "settings", [pytest.param(name, marks=pytest.mark.slow if "actor" in name else ()) for name in SETTINGS]
)
def test_a_run_is_the_same_with_and_without_diagnostics(tmp_path: Path, settings: str) -> None:
    assert_same_bits(tmp_path, device="cpu", **SETTINGS[settings])


@ON_GPU
@pytest.mark.parametrize("settings", ON_GPUS)
def test_a_run_on_a_gpu_is_the_same_with_and_without_diagnostics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    if "host" in settings:
        monkeypatch.setattr("t3d.run.placement.replay_device", lambda *_: "cpu")
    assert_same_bits(tmp_path, device="cuda", **ON_GPUS[settings])


class Ones(Sound):
    """Rewards of 1; episodes of 20 steps, of which the even ones terminate and the odd ones are truncated."""

    length, episode = 20, -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode += 1
        return super().reset(seed=seed)

    def reward(self) -> float:
        return 1.0

    def over(self) -> tuple[bool, bool]:
        over = self.t == self.length
        return over and self.episode % 2 == 0, over and self.episode % 2 == 1


class OnesSeen(image_worlds.WithVector):
    """The same with images."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.episode = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.episode += 1
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, _, over, about = super().step(action)
        return observation, 1.0, over and self.episode % 2 == 0, over and self.episode % 2 == 1, about


@contextmanager
def collected(cfg: Config, make_env: Callable[[], gym.Env[Any, Any]], steps: int) -> Iterator[tuple[Training, Any]]:
    """A training that has taken so many steps and made two updates, and the trace of the second."""
    with ExitStack() as opened:
        requests, surroundings = Requests(threading.Event(), threading.Event()), Surroundings()
        opened.enter_context(closing(surroundings))
        training = assemble(resolve(merge(cfg, {"device": "cpu"})), requests, make_env, opened, surroundings)
        training.publisher.publish()
        parts = training.parts
        while parts.counters.step < steps:
            parts.take(parts.collector.poll())
        yield training, parts.learner.run(2)


def make_constant(critic: Critic, value: float) -> None:
    """Has critics predict the same everywhere; categorical ones the middle of their support."""
    critic.flat.zero_()
    if critic.architecture.sizes[-1] == 1:
        critic.architecture.parameters(critic.flat)[-1].fill_(value)


def returns_of_ones(steps: int, gamma: float, scale: float, after: float) -> list[tuple[float, float]]:
    """The returns of the transitions in finished episodes of Ones that are compared, and the critics' own share."""
    found = []
    for episode in reversed(range(steps // Ones.length)):  # the newest first
        for left in range(1, Ones.length + 1):
            known = (1 - gamma**left) / (1 - gamma) / scale
            if episode % 2 == 0:
                found.append((known, 0.0))
            elif gamma**left <= MOST_OWN:
                found.append((known + gamma**left * after, gamma**left))
    return found


WRONG: dict[str, dict[str, Any]] = {
    "fused": {"engine": "fused", "seeds": [0, 1]},
    "three steps, priorities": {"replay": {"n_step": 3, "sampling": "proportional"}},
    "scaled rewards": {"scale_rewards": True},
    "normalised observations": {"normalise_observations": True},
    "a categorical critic": {"td3": {"critic_loss": "categorical", "value_low": -20, "value_high": 34}},
    "a rule of one's own": {"algo": "ddpg:DDPG"},
    "a sweep": {"sweep": ["td3.gamma=0.6,0.85"]},
    "images": {**IMAGES, "td3": {**IMAGES["td3"], "batch_size": 120}},
    "one critic": {"td3": {"critics": 1}},
}


@pytest.mark.parametrize("settings", WRONG)
def test_the_bias_of_a_critic_that_is_wrong_on_purpose_is_found(tmp_path: Path, settings: str) -> None:
    """Critics that predict 7 for everything, where rewards are 1: a closed form."""
    base = merge(helpers.small_config(td3={"gamma": 0.85}, run={"root": str(tmp_path)}), WRONG[settings])
    cfg, steps = merge(base, {"env": {"id": "", "name": "ones"}}), 190
    with collected(cfg, OnesSeen if "images" in settings else Ones, steps) as (training, trace):
        parts, agent = training.parts, training.parts.learner.agent
        for critic in (agent.critic, agent.critic_target):
            make_constant(critic, 7.0)
        events = diagnosed(training.reporter.diagnostics.diagnose(trace))
        assert [event.member for event in events] == [*range(len(cfg.members))]
        scaler = parts.memory.reward_scaler
    for event, member in zip(events, cfg.members, strict=True):
        scale = 1.0 if scaler is None else float(scaler.scale[0, 0])
        assert scaler is None or abs(scale - 1) > 0.5, "scaling can be seen"
        expected = returns_of_ones(steps, cfg.settings_of(member).gamma, scale, after=7.0)
        expected = expected[: cfg.td3.batch_size] if "images" in settings else expected
        assert event.q_rows == len(expected) > 100
        assert event.q_predicted == pytest.approx(7, rel=1e-5)
        returned, own = np.mean(expected, axis=0)
        assert event.q_return == pytest.approx(returned, rel=1e-5)
        assert event.q_bias == pytest.approx((7 - returned) / (1 - own), rel=1e-4)
        assert event.disagreement == pytest.approx(float(trace.q[event.member].std(dim=0, correction=0).mean()))


class Endless(Ones):
    """A time limit of 100 steps ends every episode, so that every value is 1 / (1 - gamma)."""

    def over(self) -> tuple[bool, bool]:
        return False, self.t == 100


@pytest.mark.parametrize("added", [-4.0, 0.0, 3.0])
def test_a_constant_bias_is_found_exactly_although_only_time_limits_end_episodes(tmp_path: Path, added: float) -> None:
    cfg = helpers.small_config(env={"id": "", "name": "ones"}, td3={"gamma": 0.99}, run={"root": str(tmp_path)})
    with collected(cfg, Endless, 250) as (training, trace):
        for critic in (training.parts.learner.agent.critic, training.parts.learner.agent.critic_target):
            make_constant(critic, 100 + added)
        (event,) = diagnosed(training.reporter.diagnostics.diagnose(trace))
    assert event.q_rows == 2 * (100 - 68), "0.99 ** 69 is the first below a half"
    assert event.q_bias == pytest.approx(added, abs=1e-3)


def test_what_is_added_to_a_critic_is_found_as_bias(tmp_path: Path) -> None:
    cfg = helpers.small_config(env={"id": "", "name": "ones"}, td3={"gamma": 0.85}, run={"root": str(tmp_path)})
    with collected(cfg, Ones, 190) as (training, _):
        learner, diagnostics = training.parts.learner, training.reporter.diagnostics
        trace = learner.run(600)
        (before,) = diagnosed(diagnostics.diagnose(trace))
        for critic in (learner.agent.critic, learner.agent.critic_target):
            critic.architecture.parameters(critic.flat)[-1].add_(3.0)
        (after,) = diagnosed(diagnostics.diagnose(trace))
    assert before.q_bias is not None and after.q_bias is not None
    assert after.q_bias - before.q_bias == pytest.approx(3.0, rel=1e-4)


SLOPES = torch.tensor([[0.5, -2.0, 30.0], [-1.5, 1.0, 20.0]])  # of two critics: observation and action
LEVELS = torch.tensor([4.0, 6.0])


def make_linear(critic: Critic) -> None:
    """Has each critic predict its own linear function: hidden units are inputs plus 100, which ReLU passes."""
    critic.flat.zero_()
    layers = layers_of(critic.architecture, critic.flat)
    for weight, bias in layers[:-1]:
        weight[:, :3, :3], bias[:, :, :3] = torch.eye(3), 100.0
    layers[-1][0][:, :3, 0] = SLOPES
    layers[-1][1][:, 0, 0] = LEVELS - 200 * SLOPES.sum(dim=1)  # 100 from each of two layers


def test_the_bias_of_different_linear_critics_is_that_by_hand(tmp_path: Path) -> None:
    """With normalised observations, and an actor whose action is 0 wherever a time limit has ended an episode."""
    cfg = helpers.small_config(td3={"gamma": 0.85}, run={"root": str(tmp_path)}, normalise_observations=True)
    with collected(merge(cfg, {"env": {"id": "", "name": "ones"}}), Ones, 190) as (training, trace):
        agent, memory = training.parts.learner.agent, training.parts.memory
        for critic in (agent.critic, agent.critic_target):
            make_linear(critic)
        agent.actor_target.flat.zero_()
        (event,) = diagnosed(training.reporter.diagnostics.diagnose(trace))
    rows, s = torch.from_numpy(memory.replay.contents(0, 0, 180)["rows"]), slice(0, 2)
    mean, std = rows.new_tensor(rows_seen(memory)[0]), rows.new_tensor(rows_seen(memory)[1])
    found = []
    for number, row in enumerate(rows):
        left = Ones.length - number % Ones.length
        last, is_truncated = rows[number + left - 1], (number // Ones.length) % 2 == 1
        own = 0.85**left if is_truncated else 0.0
        if own > MOST_OWN:
            continue
        q = SLOPES @ torch.cat([(row[s] - mean) / std, row[2:3]]) + LEVELS
        after = (SLOPES @ torch.cat([(last[-2:] - mean) / std, torch.zeros(1)]) + LEVELS).min()
        found.append((float(q.mean()), (1 - 0.85**left) / 0.15 + own * float(after), own))
    predicted, returned, own = np.mean(found, axis=0)
    assert event.q_rows == len(found) and 0 < own < 0.5
    assert event.q_predicted == pytest.approx(predicted, rel=1e-3)
    assert event.q_return == pytest.approx(returned, rel=1e-3)
    assert event.q_bias == pytest.approx((predicted - returned) / (1 - own), rel=1e-2)


def rows_seen(memory: Memory) -> tuple[Any, Any]:
    """Mean and deviation of all observations stored, computed at once."""
    seen = memory.replay.contents(0, 0, memory.added[0])["rows"][:, :2].astype(np.float64)
    return seen.mean(axis=0), seen.std(axis=0)


def test_the_share_of_acting_is_that_of_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = helpers.small_config(env={"id": "", "name": "ones"}, run={"root": str(tmp_path)})
    now = [1000.0]
    with collected(cfg, Ones, 190) as (training, trace):
        monkeypatch.setattr("t3d.run.diagnostics.time.monotonic", lambda: now[0])
        diagnostics = training.reporter.diagnostics
        diagnostics.diagnose(trace)  # forgets what was before

        shares = []
        for acting, other in ((3.0, 1.0), (1.0, 4.0)):
            diagnostics.acted_seconds += acting
            now[0] += acting + other
            shares += [event.acting_share for event in diagnosed(diagnostics.diagnose(trace))]
    assert shares == pytest.approx([0.75, 0.2])


def test_figures_are_those_of_the_newest_update(tmp_path: Path) -> None:
    cfg = helpers.small_config(env={"id": "", "name": "ones"}, run={"root": str(tmp_path)}, seeds=[0, 1])
    with collected(cfg, Ones, 190) as (training, trace):
        learner, memory = training.parts.learner, training.parts.memory
        before = learner.agent.critic_adam.mean.clone()
        batch, draws = learner.engine.inputs
        training.parts.stop(0, "for this test")
        (event,) = diagnosed(training.reporter.diagnostics.diagnose(trace))
        assert torch.equal(learner.agent.critic_adam.mean, before), "only a copy was updated"
        assert event.saturated == float((trace.pi[1].abs() > 0.99).float().mean())
        assert event.td_quantiles[2] == pytest.approx(float(np.median(trace.td[1])))
        learner.update(batch, draws)  # the first phase, whose critics learn as in the last
        g = (learner.agent.critic_adam.mean - 0.9 * before).view(2, -1)[1] / 0.1
    assert event.member == 1 and event.updates == 2
    assert event.gradient_norms["critic"] == pytest.approx(float(g.norm()), rel=1e-3)
    assert event.weight_norms.keys() == event.gradient_norms.keys() == event.dead_units.keys() == {"actor", "critic"}
    assert event.reward_range == [1, 1] and sum(event.reward_counts) == sum(event.action_counts) == 16
    numbers = batch.index[1].numpy()  # rows of a ring that is not full yet
    assert event.sampled_age == pytest.approx(np.quantile(memory.added[1] - 1 - numbers, [0.05, 0.5, 0.95]))
    assert 0 <= event.acting_share <= 1 and event.seconds > 0


@pytest.mark.parametrize(
    "settings", [{"seeds": [0, 1]}, pytest.param(IMAGES, marks=pytest.mark.slow)], ids=["vectors", "images"]
)
def test_a_resumed_run_diagnoses_what_a_straight_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """It was killed with diagnostics due, which wait for the next report."""
    log = {"every_steps": 50, "diagnose_every_steps": 35}
    changes = {"log": log, "checkpoint": {"every_steps": 142}, "total_steps": 260, "td3": {"gamma": 0.9}}
    base = merge(helpers.small_config(threads=1, **settings), changes)
    made: dict[str, Any] = {"make_env": OnesSeen if "env" in settings else Ones}
    straight, broken = (merge(base, {"run": {"root": str(tmp_path), "name": name}}) for name in ("straight", "broken"))
    list(t3d.train(straight, **made))
    killed = broken_off(monkeypatch, broken, 147, kill=True, **made)
    list(t3d.resume(killed, **made))
    one, other = ([asdict(event) for event in diagnosed(events_of(path))] for path in (tmp_path / "straight", killed))
    for event in [*one, *other]:
        for clock in ("time", "seconds", "acting_share"):
            del event[clock]
    assert one == other and {event["step"] for event in one} == {102, 150, 200, 250}
    assert all(event["q_rows"] > 0 for event in one)


def test_diagnostics_can_be_switched_on_in_a_run_that_is_resumed(tmp_path: Path) -> None:
    stop, run = threading.Event(), tmp_path / "run"
    log = {"every_steps": 10, "diagnose_every_steps": 0}
    for event in t3d.train(helpers.small_config(log=log, run={"root": str(tmp_path), "name": "run"}), stop=stop):
        if event.step > 150:
            stop.set()
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("diagnose_every_steps = 0", "diagnose_every_steps = 50"))
    assert {event.step for event in diagnosed(t3d.resume(run))} == {200, 250, 300}


def test_diagnostics_come_with_the_first_report_after_they_are_due(tmp_path: Path) -> None:
    cfg = helpers.small_config(log={"every_steps": 30, "diagnose_every_steps": 70}, run={"root": str(tmp_path)})
    events = list(t3d.train(cfg))
    reports = [event.step for event in events if isinstance(event, Update)]
    assert [event.step for event in diagnosed(events)] == [102, 150, 210, 300] and {150, 210, 300} <= {*reports}


def test_progress_from_before_there_were_diagnostics_is_read() -> None:
    counters = Counters(diagnosis_due=True)
    state = counters.state()
    assert state.pop("diagnosis_due") is True
    counters.restore(state)
    assert counters.diagnosis_due is False


def test_an_update_that_stops_a_member_is_reported_at_its_own_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at that of the members that live on, which may be further."""
    monkeypatch.setattr("t3d.run.parts.infinite_losses", lambda *_: {0: "a loss is not finite"})
    with collected(helpers.small_config(seeds=[0, 1]), Ones, 120) as (training, trace):
        parts = training.parts
        before, parts.steps[1] = parts.counters.step, parts.steps[1] + 7
        events = training.reporter.learned(trace)
    assert parts.counters.step == before + 7 and list(parts.stopped) == [0]
    updates = [event for event in events if isinstance(event, Update)]
    assert [(event.member, event.step) for event in updates] == [(1, before)]
