"""The names and numbers that other tools are told."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fake_runs import diagnosis, evaluation, update
from t3d.algo.adam import scheduled
from t3d.config import Config, merge
from t3d.events import ActingEvent, EpisodeEnd, Event, SettingsChanged, to_line
from t3d.sinks.process import WHOLE_RUN, Point, Scalars, _events, learning_rates


def points(*events: Event, **settings: object) -> list[Point]:
    scalars = Scalars(merge(Config(), {"seeds": [0], **settings}))
    return [*(point for event in events for point in scalars.of(event)), *scalars.rest()]


def episode(step: int, total_reward: float | None, length: int = 10, seed: int = 0) -> EpisodeEnd:
    about = {"env": 0, "episode": 0, "length": length, "terminated": True, "total_reward": total_reward}
    return EpisodeEnd(step=step, member=0, seed=seed, time=float(step), **about)  # type: ignore[arg-type]


def test_names_are_those_of_stable_baselines_where_it_has_one() -> None:
    (evaluated,) = points(evaluation(0, 0, 1000, 5.0))
    assert (evaluated.name, evaluated.step) == ("seed-0", 1000)
    assert evaluated.values["eval/mean_reward"] == 5.0 and evaluated.values["eval/mean_ep_length"] == 200.0
    (learned,) = points(update(0, 0, 2000, 7.0))
    theirs = {"train/actor_loss", "train/critic_loss", "train/learning_rate", "train/n_updates", "time/fps"}
    own = {"train/q_mean", "train/y_mean", "train/td_abs_mean"}
    assert {*learned.values} == theirs | own | {"time/total_timesteps"}
    (looked,) = points(diagnosis({"step": 1, "member": 0, "seed": 0, "time": 1.0}, 3.0))
    assert looked.values["diagnostics/q_bias"] == 3.0 and looked.values["diagnostics/td_quantiles.p95"] == 1.0
    assert looked.values["diagnostics/gradient_norms.critic-1"] == 0.25
    assert not [name for name in looked.values if "counts" in name]


def test_what_episodes_say_has_the_names_of_stable_baselines_and_is_averaged_over_those_that_say_it() -> None:
    said = [{"success": 1.0, "energy": 3.0}, {"success": 0.0}, {}]
    rollout = points(*(dataclasses.replace(episode(0, 1.0), metrics=metrics) for metrics in said))[-1].values
    assert (rollout["rollout/success_rate"], rollout["rollout/energy"]) == (0.5, 3.0)
    (evaluated,) = points(
        dataclasses.replace(evaluation(0, 0, 1, 5.0), metrics={"success": 0.9}, metric_counts={"success": 9})
    )
    assert evaluated.values["eval/success_rate"] == 0.9
    assert not [name for name in evaluated.values if "metric" in name or name.endswith("/success")]


def test_episodes_are_averaged_over_the_last_hundred_and_those_of_one_step_are_one_point() -> None:
    told = points(*(episode(step // 2, float(step)) for step in range(300)))
    assert [point.step for point in told] == [*range(150)]
    assert told[-1].values == {
        "rollout/ep_rew_mean": sum(range(200, 300)) / 100,
        "rollout/ep_len_mean": 10.0,
        "time/episodes": 300.0,
    }


def test_what_is_not_finite_is_left_out() -> None:
    (told,) = points(episode(1, None))
    assert {*told.values} == {"rollout/ep_len_mean", "time/episodes"}


def test_an_event_of_nobody_is_left_out_and_acting_is_of_the_whole_run() -> None:
    assert points(episode(1, 2.0, seed=5)) == []
    figures = {"ratio": 1.0, "age_median": 1, "age_p99": 2, "ring_fill": None, "actors_waited": 0.5}
    acting = ActingEvent(step=5, since=0, learner_waited=0.1, actors=2, restarts=0, **figures)  # type: ignore[arg-type]
    (told,) = points(acting)
    assert told.name == WHOLE_RUN and told.values["acting/actors_waited"] == 0.5


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_learning_rates_are_those_of_the_optimiser(schedule: str) -> None:
    used = {} if schedule == "constant" else {"lr_updates": 100, "lr_final": 0.2}
    td3 = merge(Config(), {"td3": {"lr_schedule": schedule, "critic_lr": 1e-3, "actor_lr": 1e-4, **used}}).td3
    for made in (0, 30, 100, 500):
        rates = learning_rates(td3, made)
        for name, rate in (("train/learning_rate", 1e-3), ("train/actor_learning_rate", 1e-4)):
            theirs = scheduled(rate, torch.tensor(float(made)), td3)
            assert rates[name] == pytest.approx(float(theirs), rel=1e-5)


def test_learning_rates_are_those_that_were_set_while_it_trained() -> None:
    changes = [SettingsChanged(step=150, values=values) for values in ({"td3.actor_lr": 1e-5}, {"td3.actor_lrr": 1})]
    before, after = points(update(0, 0, 100, 1.0), *changes, update(0, 0, 200, 1.0))
    assert "train/actor_learning_rate" not in before.values and before.values["train/learning_rate"] == 3e-4
    assert (after.values["train/actor_learning_rate"], after.values["train/learning_rate"]) == (1e-5, 3e-4)


@pytest.mark.parametrize("step", ["-1", "4611686018427387904", "1.5", "true", '"1"'])
def test_lines_whose_step_is_no_count_are_left_out(step: str) -> None:
    line = to_line(update(0, 0, 111, 1.0)).encode()
    assert len([*_events([line])]) == 1
    assert [*_events([line.replace(b'"step": 111', b'"step": %s' % step.encode()), b"{}", line[:-5]])] == []
