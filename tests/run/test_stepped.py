"""A run that its caller advances: what it learns, where it stands still, and what is left of it."""

from __future__ import annotations

from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import helpers
import t3d
from run_folders import events_of, run, weights
from t3d.actors.governor import Governor
from t3d.actors.inline import InlineCollector, NoEvaluator
from t3d.actors.protocols import Collected
from t3d.algo.rules import RULES
from t3d.config import Config
from t3d.errors import UserError
from t3d.events import End, EpisodeEnd, Start, Update
from t3d.policy.acting import PolicySnapshot
from t3d.run.stepped import SteppedRun
from t3d.world.make import env_factory


def stepped(cfg: Config) -> SteppedRun:
    return SteppedRun(cfg, InlineCollector(cfg, env_factory(cfg.env)), NoEvaluator(), "PendulumEnv")


def advance_to(stepped_run: SteppedRun, updates: int) -> list[Any]:
    events = []
    while stepped_run.parts.learner.updates < updates:
        events += stepped_run.advance()
    return events


def test_it_learns_what_any_run_learns(tmp_path: Path) -> None:
    cfg = helpers.small_config(engine="fused", updates_per_step=0.3)
    straight = run(cfg, tmp_path)
    with closing(stepped(cfg)) as ours:
        ours.begin(cfg.total_steps)
        events = advance_to(ours, 60)
        np.testing.assert_array_equal(ours.parts.snapshot().flat[0], weights(straight))
    for kind in (Update, EpisodeEnd):
        assert [event.step for event in events if isinstance(event, kind)] == [
            event.step for event in straight if isinstance(event, kind)
        ]


def test_a_temporary_folder_is_removed_and_another_is_kept(tmp_path: Path) -> None:
    cfg = helpers.small_config()
    with closing(stepped(cfg)) as temporary:
        assert temporary.path is None, "before it begins, so what only acts has none"
        temporary.begin(300)
        advance_to(temporary, 5)
        folder = temporary.path
        assert folder is not None and events_of(folder)
    assert not folder.exists()
    with closing(stepped(cfg)) as kept:
        kept.begin(300, tmp_path / "kept")
        advance_to(kept, 5)
        kept.write_policies()
    events = events_of(tmp_path / "kept")
    assert isinstance(events[0], Start) and events[0].config["total_steps"] == 300
    assert isinstance(events[-1], End) and (events[-1].reason, events[-1].saved) == ("stopped", False)
    assert not (tmp_path / "kept" / "checkpoints").exists()
    policy = t3d.load_policy(tmp_path / "kept" / "last" / "seed-0.safetensors")
    assert policy.about["step"] > 100
    with closing(stepped(cfg)) as another, pytest.raises(UserError, match="holds a run already"):
        another.begin(300, tmp_path / "kept")


def test_a_governor_may_call_for_other_updates(tmp_path: Path) -> None:
    class EverySeventh(Governor):
        def due(self, transitions: Any, updates: int) -> int:
            return int(min(transitions)) // 7 - updates

    cfg = helpers.small_config()
    with closing(stepped(cfg)) as ours:
        ours.begin(300, governor=EverySeventh(cfg))
        for _ in range(10):
            advance_to(ours, ours.parts.learner.updates + 1)
            assert Fraction(ours.parts.counters.step, 7) == ours.parts.learner.updates


class NoCollector(InlineCollector):
    """Collects nothing: each poll is a step of every member, and with it an update is due."""

    def poll(self) -> Collected:
        return Collected([], [], [], [1] * len(self.member_actors))


class Submissions(NoEvaluator):
    def __init__(self) -> None:
        super().__init__()
        self.submitted: list[tuple[int, int]] = []

    def submit(self, snapshot: PolicySnapshot, step: int) -> bool:
        self.submitted.append((step, snapshot.updates))
        return True


@pytest.mark.parametrize("algo", ["td3", "td7"])
def test_where_nobody_acts_the_clock_is_of_updates(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "td7", RULES["td7"]._replace(hearing=None))  # as there are no episodes to hear
    sizes = {"batch_size": 8, "embedding": 6, "encoder_hidden": 7, "actor_hidden": [9], "critic_hidden": [8]}
    other = {"td3": vars(Config().td3), "td7": sizes} if algo == "td7" else {}
    schedules = {"eval": {"every_steps": 100}, "log": {"every_steps": 25}}
    cfg = helpers.small_config(algo=algo, random_steps=0, seeds=[0, 1], **schedules, **other)
    data, evaluator = InlineCollector(cfg, env_factory(cfg.env)), Submissions()
    ours = SteppedRun(cfg, NoCollector(cfg, env_factory(cfg.env)), evaluator, "PendulumEnv")
    with closing(ours):
        ours.begin(300)
        data.publish(ours.parts.learner.snapshot(ours.parts.learner.acting))
        ours.parts.memory.carry(rollout for _ in range(250) for rollout in data.poll().rollouts)
        updates = [event for event in advance_to(ours, 250) if isinstance(event, Update)]
        assert ours.parts.memory.added == [250, 250] and ours.parts.steps == [250, 250]
    assert evaluator.submitted == [(0, 0), (100, 100), (200, 200)]
    reported = [event.step for event in updates if event.member == 0]
    assert reported == [step + step % 2 for step in range(25, 251, 25)]  # the next update that moves the actor
    assert all(event.updates == event.step for event in updates)


def test_rates_are_set_while_it_stands_still() -> None:
    cfg = helpers.small_config(engine="fused")
    with closing(stepped(cfg)) as ours:
        ours.begin(300)
        advance_to(ours, 5)
        ours.parts.learner.set_rates(actor_lr=0.0, critic_lr=0.0)
        before = ours.parts.learner.state()
        advance_to(ours, 9)
        after = ours.parts.learner.state()
        for name in ("actor", "critic"):
            np.testing.assert_array_equal(before[name], after[name])
        assert not np.array_equal(before["critic_adam_mean"], after["critic_adam_mean"]), "updates are performed"


def test_an_error_ends_it_and_is_repeated() -> None:
    cfg = helpers.small_config(total_steps=110)
    with closing(stepped(cfg)) as ours:
        ours.begin(110)
        advance_to(ours, 4)
        ours.parts.learner.agent.actor.flat.fill_(np.nan)
        with pytest.raises(UserError, match=r"diverged|not finite"):
            advance_to(ours, 9)
        with pytest.raises(UserError, match=r"this run has ended: .*not finite|this run has ended: .*nan"):
            ours.advance()


def test_a_replay_smaller_than_a_batch_is_learned_from(tmp_path: Path) -> None:
    events = run(helpers.small_config(replay={"capacity": 10}), tmp_path)
    updates = [event for event in events if isinstance(event, Update)]
    assert updates and np.isfinite([event.critic_loss for event in updates]).all()
