"""Alarms: each sounds on a history of events that deserves it, and stays silent on a healthy one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t3d.alarms.symptoms import SYMPTOMS
from t3d.alarms.watch import WATCHED_EVENTS, Debounce, Watch
from t3d.config import Config, merge
from t3d.events import (
    ActingEvent,
    Alarm,
    Diagnosed,
    EpisodeEnd,
    Eval,
    Event,
    Note,
    SeedStopped,
    Update,
    from_line,
    to_line,
)

CFG = merge(Config(), {"seeds": [7, 8]})  # gamma is 0.99, so no value is beyond 100 times the largest reward
Events = list[Event]


def diagnosed(step: int, member: int = 0, **changes: Any) -> Diagnosed:
    """A healthy look: rewards up to 2, returns of 80, predictions a little below."""
    healthy: dict[str, Any] = {
        "updates": step,
        "q_predicted": 78.0,
        "q_return": 80.0,
        "q_bias": -2.0,
        "q_rows": 1000,
        "disagreement": 1.0,
        "saturated": 0.7,  # of a policy that often uses full force
        "stuck_actions": 0.0,
        "dead_units": {"actor": 0.3, "critic": 0.2},
        "gradient_norms": {"actor": 1.0, "critic": 1.0},
        "weight_norms": {"actor": 10.0, "critic": 10.0},
        "td_quantiles": [-2.0, -1.0, 0.0, 1.0, 2.0],
        "sampled_age": [10.0, 500.0, 1000.0],
        "action_counts": [1, 2, 1],
        "reward_counts": [1, 2, 1],
        "reward_range": [-2.0, 1.0],
        "largest_reward": 2.0,
        "constant_observations": [],
        "acting_share": 0.2,
        "seconds": 0.01,
    }
    return Diagnosed(step=step, member=member, seed=CFG.seeds[member], time=0.0, **{**healthy, **changes})


def update(step: int, member: int = 0, **changes: Any) -> Update:
    healthy = {"critic_loss": 1.0, "actor_loss": -70.0, "q_mean": 70.0, "y_mean": 70.0, "td_abs_mean": 1.0}
    figures: dict[str, Any] = {**healthy, "steps_per_second": 100.0, **changes}
    return Update(step=step, member=member, seed=CFG.seeds[member], time=0.0, updates=step, **figures)


def evaluated(step: int, mean: float, std: float = 50.0, member: int = 0, **changes: Any) -> Eval:
    figures: dict[str, Any] = {
        "mean_return": mean,
        "std_return": std,
        "min_return": mean,
        "max_return": mean,
        "mean_length": 9.0,
        "lengths": [9],
        **changes,
    }
    return Eval(
        step=step,
        member=member,
        seed=CFG.seeds[member],
        time=0.0,
        updates=step,
        returns=[],
        best=False,
        **figures,
    )


def ended(number: int, length: int = 0, member: int = 0, **changes: Any) -> EpisodeEnd:
    """By a fall after another number of steps every time."""
    length = length or 50 + number % 3
    healthy: dict[str, Any] = {"total_reward": 1.5 * length, "length": length, "terminated": True, **changes}
    return EpisodeEnd(
        step=number * 50, member=member, seed=CFG.seeds[member], time=0.0, env=0, episode=number, **healthy
    )


def acted(step: int, **changes: Any) -> ActingEvent:
    healthy: dict[str, Any] = {"ratio": 1.0, "actors_waited": 0.3, "learner_waited": 0.1, **changes}
    return ActingEvent(
        step=step, time=0.0, since=step, age_median=9, age_p99=20, ring_fill=0.1, actors=2, restarts=0, **healthy
    )


def told(events: Iterable[Event], cfg: Config = CFG) -> list[Alarm | Note]:
    watch = Watch(cfg)
    return [told for event in events for told in watch.see(event)]


def heard(events: Iterable[Event], cfg: Config = CFG) -> list[Alarm]:
    return [one for one in told(events, cfg) if isinstance(one, Alarm)]


def looks(make: Callable[..., Event], count: int = 8, **changes: Any) -> Events:
    """So many events alike."""
    return [make(number, **changes) for number in range(1, count + 1)]


def healthy(member: int = 0) -> Events:
    """Rises, falls to half of what it had gained, and rises again; bias, errors and episodes go up and down."""
    returns = [-500.0, 0.0, 400.0, 500.0, 50.0, 60.0, 300.0, 480.0, 700.0, 650.0] * 2
    events: Events = []
    for number, mean in enumerate(returns, start=1):
        events += [ended(number, member=member), ended(number, length=200, terminated=False, member=member)]
        events += [update(number, q_mean=5.0 * number, td_abs_mean=1.0 + number % 4, member=member)]
        events += [
            diagnosed(number, q_bias=-5.0 + 3 * (number % 7), member=member),
            evaluated(number, mean, member=member),
        ]
    return [*events, *looks(acted, 20, ratio=1.1)]


def growing_bias(cfg: Config = CFG) -> Events:
    biases = [40.0, 60.0, 90.0, 140.0, 200.0, 300.0, 400.0, 500.0]
    return [diagnosed(step, q_bias=bias, q_predicted=80 + bias) for step, bias in enumerate(biases)]


def collapsed() -> Events:
    returns = [-500.0, 0.0, 500.0, 400.0, -300.0, -350.0, -280.0, -300.0, -310.0, -320.0, -340.0]
    return [evaluated(step, mean) for step, mean in enumerate(returns)]


PROVOKED: dict[str, Events] = {
    "saturated-actor": looks(diagnosed, saturated=0.95, stuck_actions=0.67),
    "overestimation": growing_bias(),
    "critics-diverging": [diagnosed(0), *looks(update, 12, q_mean=-201.0)],
    "dead-units": looks(diagnosed, dead_units={"actor": 0.2, "critic": 0.95}),
    "evaluation-collapsed": collapsed(),
    "update-ratio": looks(acted, ratio=0.5),
    "slow-environment": looks(diagnosed, acting_share=0.9),
    "large-rewards": looks(ended, 20, total_reward=-60_000.0),
    "time-limit-terminates": looks(ended, 30, length=200),
}


def test_every_alarm_is_provoked_here() -> None:
    assert PROVOKED.keys() == {symptom.kind for symptom in SYMPTOMS} - {"constant-observation"}


@pytest.mark.parametrize("kind", PROVOKED)
def test_an_alarm_sounds_once_on_a_history_that_deserves_it_and_no_other_does(kind: str) -> None:
    assert [alarm.kind for alarm in heard(PROVOKED[kind])] == [kind]


def test_a_healthy_history_is_silent() -> None:
    assert told([*healthy(0), *healthy(1)]) == []


NOT_ENOUGH: dict[str, Events] = {
    "actions at their limits that depend on the state": looks(diagnosed, saturated=1.0),
    "one of two components is stuck": looks(diagnosed, saturated=0.6, stuck_actions=0.5),
    "a large bias that does not grow": [diagnosed(step, q_bias=70.0, q_predicted=150.0 + step) for step in range(9)],
    "a growing bias that is small": [diagnosed(n, q_bias=4.0 * n, q_predicted=80.0 + 4 * n) for n in range(9)],
    "underestimation that grows": [diagnosed(step, q_bias=-100.0 * step) for step in range(9)],
    "a bias that rose and fell again": [
        diagnosed(n, q_bias=bias, q_predicted=bias) for n, bias in enumerate([100.0, 60.0, 60.0, 99.0] * 5)
    ],
    "returns are 0 while rewards are": [
        diagnosed(n, q_bias=0.01 * 2**n, q_predicted=0.01 * 2**n, q_return=0.0, largest_reward=0.0) for n in range(12)
    ],
    "a bias below half of one reward": [
        diagnosed(n, q_bias=0.1 * n, q_predicted=0.1 * n, q_return=0.01) for n in range(9)
    ],
    "critics that follow falling returns slowly": [
        diagnosed(step, q_predicted=-20.0 * step, q_return=-60.0 * step, q_bias=40.0 * step) for step in range(9)
    ],
    "returns that fall while predictions stay": [
        diagnosed(step, q_predicted=0.3 * step, q_return=-60.0 * step, q_bias=60.3 * step) for step in range(9)
    ],
    "no return is known": looks(diagnosed, q_bias=None, q_return=None, q_predicted=None),
    "values below their limit": [diagnosed(0), *looks(update, 30, q_mean=199.0)],
    "no reward is known": looks(update, 30, q_mean=1e6),
    "values beyond their limit for a short time": [diagnosed(0), *looks(update, 9, q_mean=1e6), update(10)],
    "only zero rewards": [diagnosed(0, largest_reward=0.0), *looks(update, 30, q_mean=0.1)],
    "large errors that do not grow": [diagnosed(0), *looks(update, 30, td_abs_mean=9.0)],
    "growing errors that are small": [diagnosed(0), *(update(n, td_abs_mean=1.3**n / 100) for n in range(20))],
    "two bad evaluations": [evaluated(0, 0.0), evaluated(1, 500.0), *looks(lambda n: evaluated(n + 1, 0.0), 2)],
    "it never learned much": [evaluated(0, 0.0), evaluated(1, 99.0), *looks(lambda n: evaluated(n + 1, -90.0))],
    "single episodes that differ by chance": [
        evaluated(n, 100.0 * (-1) ** n + 20 * (n % 7), std=0.0) for n in range(40)
    ],
    "worse than before training at first": [evaluated(n, mean) for n, mean in enumerate([0, -200, -300, -250, 400.0])],
    "worse than before training by chance": [evaluated(0, 0.0), *looks(lambda n: evaluated(n, -99.0), 20)],
    "too many and too few updates in turn": [acted(n, ratio=(0.5, 1.5)[n % 2]) for n in range(20)],
    "the summary of a run that was stopped": looks(acted, ratio=0.1, summary=True),
    "a component that rarely changes": [diagnosed(0), *looks(diagnosed, 20, constant_observations=[3])],
    "components that change in turn": [diagnosed(n, constant_observations=[n % 2]) for n in range(20)],
    "episodes of one step": looks(ended, 30, length=1, total_reward=1.0),
    "truncated at the time limit": looks(ended, 30, length=200, terminated=False),
    "an early policy that always falls after three steps": [
        *looks(ended, 30),
        *(ended(n, length=3) for n in range(30, 70)),
    ],
    "evaluations are longer": [evaluated(0, 0.0, lengths=[9, 201]), *looks(ended, 30, length=200)],
    "terminated after as many steps as it was truncated before": [
        ended(n, length=200, terminated=n % 2 == 0) for n in range(60)
    ],
    "nineteen of the same length": looks(ended, 19, length=200),
}


@pytest.mark.parametrize("history", NOT_ENOUGH)
def test_what_is_not_enough_is_silent(history: str) -> None:
    assert told(NOT_ENOUGH[history]) == []


def test_what_was_asked_for_is_no_alarm() -> None:
    scaled = merge(CFG, {"scale_rewards": True})
    assert heard(PROVOKED["large-rewards"], scaled) == []
    undiscounted = merge(CFG, {"td3": {"gamma": 1.0}})
    assert heard(PROVOKED["critics-diverging"], undiscounted) == []
    assert heard(looks(acted, ratio=0.5), merge(CFG, {"updates_per_step": 0.5})) == []


def test_errors_that_double_and_exceed_every_reward_are_divergence_too() -> None:
    errors = [update(step, td_abs_mean=2.0 ** (step / 2)) for step in range(20)]
    [alarm] = heard([diagnosed(0), *errors])
    assert alarm.kind == "critics-diverging" and "has grown from" in alarm.text


def test_a_policy_that_is_worse_than_an_untrained_one_is_told() -> None:
    means = [-40.0, -900.0, -1100.0, -1140.0, -1120.0, -1130.0, -1150.0, -1140.0, -1140.0]
    [alarm] = heard([evaluated(step, mean) for step, mean in enumerate(means)])
    assert alarm.kind == "evaluation-collapsed" and alarm.step == 7, "at the third after five evaluations"
    assert "worse than before training: its evaluation is -1,140.0" in alarm.text and "best/" not in alarm.text


def test_evaluations_of_one_episode_that_differ_by_chance_are_almost_never_a_collapse() -> None:
    """A policy that does not change, evaluated 50 times with one episode each, in 100 runs."""
    runs = np.random.default_rng(0).normal(size=(100, 50)).tolist()
    sounded = [heard([evaluated(step, mean, std=0.0) for step, mean in enumerate(means)]) for means in runs]
    assert len([alarms for alarms in sounded if alarms]) <= 2


def test_the_limit_of_values_is_that_of_the_largest_reward_so_far() -> None:
    events = [diagnosed(0, largest_reward=5.0, reward_range=[-2.0, 1.0])]
    assert heard([*events, *looks(update, 12, q_mean=499.0)]) == []
    assert [alarm.kind for alarm in heard([*events, *looks(update, 12, q_mean=501.0)])] == ["critics-diverging"]


def test_a_rare_huge_reward_is_a_large_reward() -> None:
    events = [diagnosed(0, largest_reward=10_000.0), *looks(ended, 20)]
    [alarm] = heard(events)
    assert alarm.kind == "large-rewards" and "up to 10,000 in magnitude" in alarm.text


def test_waiting_for_actors_is_a_slow_environment_too() -> None:
    [alarm] = heard(looks(acted, learner_waited=0.9), merge(CFG, {"actors": "local:3"}))
    assert alarm.kind == "slow-environment" and "--actors local:6" in alarm.advice
    [alarm] = heard(looks(diagnosed, acting_share=0.9))
    assert "--actors local:" in alarm.advice and "90%" in alarm.text


def test_an_alarm_that_was_over_for_as_long_as_it_takes_sounds_again() -> None:
    good: dict[str, Any] = {}
    bad: dict[str, Any] = {"saturated": 1.0, "stuck_actions": 1.0}
    pattern = [bad] * 3 + [good] * 2 + [bad] * 5 + [good] * 3 + [bad] * 2 + [good] + [bad] * 3
    events = [diagnosed(step, **changes) for step, changes in enumerate(pattern)]
    assert [alarm.step for alarm in heard(events)] == [2, 18]


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5))
def test_a_run_of_looks_that_ends_the_opposite_state_is_reported(holds: list[bool], looks: int) -> None:
    """Against a second way of counting: runs of equal looks, of which only long ones change the state."""
    debounce, reported = Debounce(), [False] * len(holds)
    state, start = False, 0
    for place, now in enumerate(holds):
        start = place if place == 0 or holds[place - 1] != now else start
        if place - start + 1 == looks and now != state:
            state, reported[place] = now, now
    assert [debounce.look(now, looks) for now in holds] == reported


def test_texts_have_numbers_and_advice_names_a_flag() -> None:
    for kind, events in PROVOKED.items():
        [alarm] = heard(events)
        assert any(character.isdigit() for character in alarm.text), kind
        assert alarm.text.endswith(".") and alarm.advice.endswith("."), kind
        assert "--" in alarm.advice or kind == "time-limit-terminates", kind  # the environment is to be changed


def test_advice_says_whether_to_start_again() -> None:
    for kind, events in PROVOKED.items():
        [alarm] = heard(events)
        assert alarm.advice.count("tart again with t3d train") == 1, kind
        assert ("resume" in alarm.advice) == (kind != "slow-environment"), kind


def test_what_may_be_as_it_should_is_a_note_and_no_alarm() -> None:
    [note] = told(looks(diagnosed, constant_observations=[2, 5]))
    assert isinstance(note, Note) and note.step == 5 and note.member is None
    assert "observation values 2, 5 (counted from 0)" in note.text and "it does no harm" in note.text


def test_large_rewards_are_told_with_the_sign_of_their_mean() -> None:
    [alarm] = heard([diagnosed(0, largest_reward=10_000.0), *looks(ended, 10, total_reward=-1e6, length=200)][:11])
    assert "very large: -5,000 a step on average, and up to 10,000 in magnitude." in alarm.text


def test_advice_does_not_repeat_what_is_set() -> None:
    [one] = heard(growing_bias(), merge(CFG, {"td3": {"critics": 1}}))
    assert "--td3.critics 2" in one.advice
    [two] = heard(growing_bias())
    assert "--td3.critics 2" not in two.advice and "--td3.critic-lr 1e-4 (now 0.0003)" in two.advice
    [three] = heard(PROVOKED["saturated-actor"], merge(CFG, {"normalise_observations": True}))
    assert "--normalise-observations" not in three.advice and "--td3.actor-lr 1e-4 (now 0.0003)" in three.advice
    [four] = heard(PROVOKED["saturated-actor"], merge(CFG, {"td3": {"actor_lr": 1.0}}))
    assert "--td3.actor-lr 3e-4 (now 1, which is far too high)" in four.advice, "and nothing else"
    assert "--normalise" not in four.advice
    penalised = {"pre_activation_penalty": 0.01, "critics": 5, "actor_network": "layer_norm"}
    penalised |= {"critic_network": "layer_norm"}
    for kind, flag in {
        "saturated-actor": "--td3.pre-activation-penalty",
        "overestimation": "--td3.critics",
        "dead-units": "layer_norm",
    }.items():
        [before], [after] = (heard(PROVOKED[kind], cfg) for cfg in (CFG, merge(CFG, {"td3": penalised})))
        assert flag in before.advice and flag not in after.advice and "a lower learning rate" in after.advice
    [small], [large] = (
        heard(collapsed(), merge(CFG, {"replay": {"capacity": size}})) for size in (1000, CFG.total_steps)
    )
    assert "--replay.capacity" in small.advice and "--replay.capacity" not in large.advice


@pytest.mark.parametrize("kind", ["saturated-actor", "dead-units"])
def test_observations_with_images_are_not_to_be_normalised(kind: str) -> None:
    norms = {"encoder": 1.0, "actor": 1.0, "critic": 1.0}
    changed = [dataclasses.replace(one, weight_norms=norms) for one in PROVOKED[kind] if isinstance(one, Diagnosed)]
    [vectors], [images] = heard(PROVOKED[kind]), heard(changed)
    assert "--normalise-observations" in vectors.advice and "--normalise-observations" not in images.advice


def test_a_member_has_its_own_limit_in_a_sweep() -> None:
    swept = merge(Config(), {"seeds": [7], "sweep": ["td3.gamma=0.9,0.99"]})
    events: Events = []
    for member in (0, 1):
        both = [diagnosed(0, member=member), *looks(update, 12, q_mean=150.0, member=member)]
        events += [dataclasses.replace(event, seed=7) for event in both]
    assert [alarm.member for alarm in heard(events, swept)] == [0]


def test_what_the_environment_does_is_told_once_for_all_members() -> None:
    events = [ended(number, length=200, member=member) for number in range(60) for member in (0, 1)]
    assert [(alarm.member, alarm.seed, alarm.step) for alarm in heard(events)] == [(None, None, 19 * 50)]
    first_stops = SeedStopped(step=0, member=0, seed=7, text="its loss is nan")
    assert [alarm.member for alarm in heard([first_stops, *looks(ended, 30, length=200, member=1)])] == [None]


def members_of_all() -> list[Events]:
    """For each member one history after the other, with other alarms at other times."""
    first = [*PROVOKED["saturated-actor"], *PROVOKED["large-rewards"], *PROVOKED["evaluation-collapsed"]]
    second = [dataclasses.replace(event, member=1, seed=8) for event in [*growing_bias(), *collapsed()]]
    return [first, second]


@given(st.permutations([0] * 39 + [1] * 19))
def test_the_order_of_members_does_not_matter(order: list[int]) -> None:
    queues = [iter(events) for events in members_of_all()]
    mixed = heard(next(queues[member]) for member in order)
    apart = heard([event for events in members_of_all() for event in events])

    def known(alarms: list[Alarm]) -> list[tuple[Any, ...]]:
        return sorted((alarm.kind, str(alarm.member), alarm.step, alarm.text) for alarm in alarms)

    assert len(apart) == 5 and known(mixed) == known(apart)


ALL = [event for history in (*PROVOKED.values(), healthy(1)) for event in history]


@pytest.mark.parametrize("cut", range(0, len(ALL), 7))
def test_a_watch_that_has_read_the_log_equals_one_that_was_there(cut: int) -> None:
    watch = Watch(CFG)
    told = watch.with_alarms(ALL[:cut])
    lines = [to_line(event) for event in told]
    again = Watch(CFG)
    for line in lines:
        event = from_line(line)
        assert event is not None
        again.see(event)
    assert again == watch

    def rest(one: Watch) -> list[dict[str, Any]]:
        alarms = [json.loads(to_line(alarm)) for event in ALL[cut:] for alarm in one.see(event)]
        return [{key: value for key, value in alarm.items() if key != "time"} for alarm in alarms]

    assert rest(again) == rest(watch)


def test_alarms_follow_the_event_that_set_them_off() -> None:
    events = PROVOKED["saturated-actor"]
    told = Watch(CFG).with_alarms(events)
    [place] = [place for place, event in enumerate(told) if isinstance(event, Alarm)]
    assert told[:place] == events[:place] and told[place + 1 :] == events[place:]
    assert told[place].step == told[place - 1].step


def test_figures_that_were_not_finite_are_no_alarm_and_no_error() -> None:
    events: Events = []
    for event in ALL:
        figures: dict[str, Any] = {
            field.name: None
            for field in dataclasses.fields(event)
            if str(field.type) in ("float", "float | None") and field.name not in ("mean_return", "std_return")
        }
        events.append(dataclasses.replace(event, **figures))
    quiet = [event for event in events if not isinstance(event, Eval)]
    kinds = {alarm.kind for alarm in heard(quiet)}
    assert kinds <= {"dead-units", "time-limit-terminates"}  # which have other figures
    assert heard([diagnosed(0), *looks(update, q_mean=float("nan"))]) == []


def test_only_some_kinds_of_events_are_needed() -> None:
    assert {type(event) for event in ALL} <= set(WATCHED_EVENTS)
