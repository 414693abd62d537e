"""What alarms look for, over the newest events of a member, and what they advise: only what can still be set."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Any, NamedTuple, TypeVar

from t3d.config import Config, RuleConfig
from t3d.events import ActingEvent, Diagnosed, EpisodeEnd, Eval, Event, Update

NEWEST = 4  # events of a kind that are remembered: enough to see growth in spite of noise; chosen
# Healthy runs and stored curves that these limits were checked on: docs/lab/watching.md
STUCK = 0.5  # of the action's components: a healthy policy may hold one of many joints at its limit
TOO_HIGH = 0.5  # of the largest return or reward known
GROWN = 0.1  # of the same, from the first to the last of the newest looks
RISING = 0.05  # of the bias: while returns fall, critics that lag behind are too high, but do not rise
MOSTLY_DEAD = 0.75  # of a network's hidden units: four times what healthy ones have
LOST = 0.75  # of what training had gained
CHANCE = 2  # times the deviation over an evaluation's episodes
CHANCE_OF_MEANS = 6  # times the usual change from one evaluation to the next: 200 of pure noise rarely differ so much
EVALUATIONS = 5  # after updates, before a policy should be better than an untrained one; chosen
RATIO = 1.25  # times too many or too few updates
SLOW = 0.75  # of the time: acting takes three times as long as learning
LARGE_MEAN = 100.0  # reward of a step, on average; the doctor's limit
LARGE_REWARD = 1000.0  # of a single step: LunarLander has 100 for a crash, and learns
MANY_CRITICS = 5  # more cost much and add little; chosen
EPISODES = 20  # that a fall or a goal would not all end after the same number of steps
HIGH_RATE = 3e-3  # three times the highest learning rate of any preset
START_AGAIN = "Start again with t3d train: a resumed run keeps its settings, and what it has learned so far."
AFTER_FIX = "Start again with t3d train: a resumed run still learns from what it has stored of the old environment."
ONLY_SLOWER = "This run learns the same without, only more slowly; to change it, start again with t3d train."
RESUMED = "A resumed run can have fewer actors; for the others, start again with t3d train."


Kind = TypeVar("Kind", bound=Event)


@dataclass
class History:
    """What is remembered of one member."""

    events: dict[type[Event], deque[Event]] = field(default_factory=dict)
    first: Eval | None = None
    best: Eval | None = None
    means: list[float] = field(default_factory=list)  # of the first evaluation and of all after updates
    largest_return: float = 0.0  # discounted, that critics were compared with
    largest_reward: float = 0.0  # of all rewards until the newest look
    never_changed: set[int] | None = None  # components of the observation, in all those batches; None: before the first
    longest_episode: int = 0  # in steps, of training and of evaluations
    last_length: int = 0
    terminated_alike: int = 0  # newest episodes in a row that were terminated after the same number of steps

    def add(self, event: Event) -> None:
        self.events.setdefault(type(event), deque(maxlen=NEWEST)).append(event)
        if isinstance(event, EpisodeEnd):
            is_alike = event.terminated and event.length == self.last_length
            self.terminated_alike = self.terminated_alike + 1 if is_alike else int(event.terminated)
            self.last_length, self.longest_episode = event.length, max(self.longest_episode, event.length)
        if isinstance(event, Eval):
            self.longest_episode = max([self.longest_episode, *event.lengths])
            if self.first is None or event.updates:
                self.means.append(event.mean_return)
            self.first = self.first or event
            self.best = event if self.best is None or event.mean_return > self.best.mean_return else self.best
        if isinstance(event, Diagnosed):
            self.largest_return = max(self.largest_return, abs(_or_nan(event.q_return)))
            constant = set(event.constant_observations)
            self.never_changed = constant if self.never_changed is None else self.never_changed & constant
            self.largest_reward = event.largest_reward or 0.0  # its scale may change, so only the newest counts

    def newest(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.events.get(kind, ()) if isinstance(event, kind)]


class Finding(NamedTuple):
    """What looks wrong, in a sentence or two, and what to try."""

    text: str
    advice: str


class Symptom(NamedTuple):
    """What to look for, in which events, and for how many in a row it must hold."""

    kind: str
    find: Callable[[Any, History, Config, RuleConfig], Finding | None]  # the event is one of looks_at
    looks_at: tuple[type[Event], ...]
    looks: int
    then: str = START_AGAIN  # ends the advice: whether to resume or to start again
    of_environment: bool = False  # the same for all members, and so told once
    is_note: bool = False  # it may be as it should, so that nobody has to do anything


def saturated_actor(event: Diagnosed, _: History, cfg: Config, rule: RuleConfig) -> Finding | None:
    """Components of the action stay at one limit whatever the state; being at either limit often is healthy."""
    if not _or_nan(event.stuck_actions) > STUCK:
        return None
    is_fast = rule.actor_lr > HIGH_RATE  # then nothing else is to blame
    is_unpunished = getattr(rule, "pre_activation_penalty", None) == 0
    advice = _options(
        (_can_normalise(event, cfg) and not is_fast, "--normalise-observations if observations are large"),
        (True, _lower_rates(rule, ["actor"])),
        (is_unpunished and not is_fast, f"--{rule.prefix}pre-activation-penalty 0.001"),
    )
    return Finding(
        f"the actor is saturated: {event.stuck_actions:.0%} of the action's components stay at the same limit of "
        "their range whatever it observes. There its tanh passes almost no gradient, so it cannot learn its way back.",
        f"{advice}.",
    )


def overestimation(event: Diagnosed, history: History, _: Config, rule: RuleConfig) -> Finding | None:
    """The critics predict far more than the returns that follow, and ever more; slow ones lag, but do not rise."""
    looks = history.newest(Diagnosed)
    predicted, biases = [_or_nan(look.q_predicted) for look in looks], [_or_nan(look.q_bias) for look in looks]
    scale = max(history.largest_return, history.largest_reward) if history.largest_return else float("inf")
    is_high = biases[-1] > TOO_HIGH * scale and biases[-1] > biases[0] + GROWN * scale
    if not (is_high and _rise(biases) > 0 and _rise(predicted) > RISING * biases[-1]):
        return None
    more = (rule.critics < MANY_CRITICS, f"more critics, --{rule.prefix}critics {MANY_CRITICS}")
    advice = _options((True, _lower_rates(rule, ["critic"])), more) + "."
    if rule.critics == 1:
        advice = f"two critics, --{rule.prefix}critics 2: the smaller of their values counts, which prevents this."
    elif getattr(rule, "aggregate", "min") != "min":
        advice = f"the smallest of the critics' values, --{rule.prefix}aggregate min."
    return Finding(
        f"the critics overestimate, more and more: they predict returns of {_number(predicted[-1])} where "
        f"{_number(_or_nan(event.q_return))} followed, too high by {_number(biases[-1])} ({NEWEST - 1} looks ago by "
        f"{_number(biases[0])}). The actor then prefers actions that only look good.",
        advice,
    )


def critics_diverging(event: Update, history: History, _: Config, rule: RuleConfig) -> Finding | None:
    """Values beyond what rewards allow, or errors larger than any reward that keep doubling."""
    largest = history.largest_reward
    if not (largest > 0 and rule.gamma < 1):
        return None
    limit = largest / (1 - rule.gamma)
    errors, text = [_or_nan(update.td_abs_mean) for update in history.newest(Update)], ""
    if abs(_or_nan(event.q_mean)) > limit:
        text = (
            f"the critics diverge: their mean value is {_number(event.q_mean)}, and no return can be beyond "
            f"{_number(limit)} (the largest reward so far, {_number(largest)}, / (1 - gamma))."
        )
    elif len(errors) == NEWEST and errors[-1] > largest and errors[-1] > 2 * errors[0]:
        text = (
            f"the critics diverge: their mean error has grown from {_number(errors[0])} to {_number(errors[-1])} "
            f"within {NEWEST} reports and is larger than any reward ({_number(largest)})."
        )
    return Finding(text, f"{_lower_rates(rule)}; then a lower --{rule.prefix}gamma.") if text else None


def dead_units(event: Diagnosed, _: History, cfg: Config, rule: RuleConfig) -> Finding | None:
    """Most of a network's hidden units pass nothing, whatever the input."""
    name, share = max(event.dead_units.items(), key=lambda pair: _or_nan(pair[1]), default=("", 0.0))
    if not _or_nan(share) >= MOSTLY_DEAD:
        return None
    network = "actor" if "actor" in name else "critic"
    advice = _options(
        (True, _lower_rates(rule, [network])),
        (_can_normalise(event, cfg), "--normalise-observations"),
        (getattr(rule, f"{network}_network", "") == "mlp", f"--{rule.prefix}{network}-network layer_norm"),
    )
    return Finding(
        f"{share:.0%} of the hidden units of the {name} are dead: they pass 0 for every state of a batch and get no "
        "gradient any more. The rest of the network has to do all the work.",
        f"{advice}.",
    )


def evaluation_collapsed(event: Eval, history: History, cfg: Config, rule: RuleConfig) -> Finding | None:
    """The policy has lost most of what training had gained, or is worse than before training, and not by chance."""
    first, best = history.first, history.best
    if first is None or best is None:
        return None
    changes = [abs(new - old) for old, new in pairwise(history.means)]
    gained, by_chance = best.mean_return - first.mean_return, CHANCE_OF_MEANS * median(changes or [0.0])
    larger_replay = (cfg.replay.capacity < cfg.total_steps, "a larger --replay.capacity")
    if gained > max(CHANCE * first.std_return, CHANCE * best.std_return, by_chance):
        if event.mean_return >= best.mean_return - LOST * gained:
            return None
        return Finding(
            f"the policy has collapsed: its evaluation is {event.mean_return:,.1f}, after {best.mean_return:,.1f} at "
            f"step {best.step:,} and {first.mean_return:,.1f} before training. best/ still holds the good policy.",
            _options((True, _lower_rates(rule)), larger_replay) + "; and other alarms first if there are any.",
        )
    lost = first.mean_return - event.mean_return
    enough = len(history.means) > EVALUATIONS and lost > max(CHANCE * first.std_return, CHANCE * event.std_return)
    if not (enough and lost > by_chance):
        return None
    return Finding(
        f"the policy is worse than before training: its evaluation is {event.mean_return:,.1f}, and that of the "
        f"untrained one was {first.mean_return:,.1f}. None of {len(history.means) - 1} since was clearly better.",
        f"t3d doctor, which checks the environment's rewards, then {_lower_rates(rule)}, or more --random-steps.",
    )


def update_ratio(event: ActingEvent, history: History, cfg: Config, __: RuleConfig) -> Finding | None:
    """The learner makes far more, or far fewer, updates for each step than asked for, again and again."""
    wanted, ratio = cfg.updates_per_step, _or_nan(event.ratio)
    ratios = [_or_nan(report.ratio) for report in history.newest(ActingEvent)]
    one_way = all(known > RATIO * wanted for known in ratios) or all(known < wanted / RATIO for known in ratios)
    if event.summary or not wanted or not one_way:
        return None
    fewer = (cfg.async_actors > 1, f"fewer actors, --actors {cfg.actors_kind}:{max(1, cfg.async_actors // 2)}")
    advice = _options(
        fewer, (cfg.most_ahead > 1, f"a lower --max-ahead (now {cfg.most_ahead})"), (True, "a larger --log.every-steps")
    )
    return Finding(
        f"{ratio:.3g} updates are made for each step, and updates_per_step={wanted:g} are asked for.",
        f"{advice}, so that one report covers more steps than actors can be ahead.",
    )


def slow_environment(event: Diagnosed | ActingEvent, _: History, cfg: Config, __: RuleConfig) -> Finding | None:
    """Learning mostly waits for the environment."""
    share = _or_nan(event.learner_waited if isinstance(event, ActingEvent) else event.acting_share)
    if not share > SLOW:
        return None
    if cfg.async_actors:
        return Finding(
            f"the learner waits for transitions {share:.0%} of its time: the environments are the bottleneck.",
            f"more actors, if there are cores for them: --actors {cfg.actors_kind}:{2 * cfg.async_actors}.",
        )
    return Finding(
        f"{share:.0%} of the time goes into acting, so the environment is much slower than learning from it.",
        "processes that act while this one learns, as many as there are cores: --actors local:4.",
    )


def constant_observation(_: Diagnosed, history: History, __: Config, ___: RuleConfig) -> Finding | None:
    """Components of the observation have been the same in every batch that was looked at."""
    constant = sorted(history.never_changed or ())
    if not constant:
        return None
    named = ", ".join(map(str, constant[:5])) + (f" and {len(constant) - 5} more" if len(constant) > 5 else "")
    return Finding(
        f"observation {'value' if len(constant) == 1 else 'values'} {named} (counted from 0) did not change in "
        "any of the batches that were looked at, so the agent learns nothing from that.",
        "If that is meant to be so, it does no harm; otherwise check that reset() and step() set it (t3d doctor looks "
        "at the environment alone), or leave it out.",
    )


def large_rewards(event: EpisodeEnd, history: History, cfg: Config, _: RuleConfig) -> Finding | None:
    """Rewards are so large that the critics' values and gradients are out of proportion to the learning rates."""
    mean = _or_nan(event.total_reward) / max(1, event.length)
    if cfg.scales_rewards(cfg.members[event.member or 0]) or not (
        abs(mean) > LARGE_MEAN or history.largest_reward > LARGE_REWARD
    ):
        return None
    largest = f", and up to {_number(history.largest_reward)} in magnitude" if history.largest_reward else ""
    return Finding(
        f"rewards are very large: {_number(mean)} a step on average{largest}. The learning rates are made for rewards "
        "of about 1; with these the critics' values and errors are so large that learning is slow or fails.",
        "--scale-rewards (divides them by the spread of the returns), or smaller rewards in the environment.",
    )


def time_limit_terminates(event: EpisodeEnd, history: History, _: Config, __: RuleConfig) -> Finding | None:
    """Episodes terminate again and again at exactly the same length, which none exceeds, as a time limit would do."""
    if history.terminated_alike < 2 or event.length == 1 or event.length < history.longest_episode:
        return None
    return Finding(
        f"each of the last {EPISODES} episodes was terminated after exactly {event.length:,} steps, and no episode was "
        "longer: probably a time limit that the environment reports as termination. Termination means that no reward "
        "can follow, so the critics learn wrong values: the reward seems to stop at states that look like any other.",
        "let step() return truncated=True and terminated=False at the time limit (gymnasium.wrappers.TimeLimit does). "
        "If the deadline is part of the task, put the remaining time into the observation.",
    )


def _or_nan(value: float | None) -> float:
    """Returns a number, or NaN, which is neither above nor below anything, if there is none."""
    return float("nan") if value is None else value


def _rise(values: list[float]) -> float:
    """By how much the newer half is above the older one, on average; NaN if not enough are known."""
    half = NEWEST // 2
    return fmean(values[half:]) - fmean(values[:half]) if len(values) == NEWEST else float("nan")


def _number(value: float) -> str:
    """Formats a number without an exponent where that is readable."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.3g}"


def _options(*each: tuple[bool, str]) -> str:
    return ", or ".join(text for is_of_use, text in each if is_of_use)


def _lower_rates(rule: RuleConfig, networks: Sequence[str] = ("actor", "critic")) -> str:
    """Names the flags of learning rates that are a third of the present ones, at most the default."""
    rates: list[float] = [getattr(rule, f"{network}_lr") for network in networks]
    lower = [f"{min(rate / 3, 3e-4) or 3e-4:.0e}".replace("e-0", "e-") for rate in rates]
    flags = " ".join(f"--{rule.prefix}{network}-lr {rate}" for network, rate in zip(networks, lower, strict=True))
    now = " and ".join(f"{rate:g}" for rate in rates) + (", which is far too high" if max(rates) > HIGH_RATE else "")
    return f"{'a lower learning rate' if len(rates) == 1 else 'lower learning rates'}, {flags} (now {now})"


def _can_normalise(event: Diagnosed, cfg: Config) -> bool:
    """Whether observations could be normalised and are not; those with images, which have an encoder, cannot."""
    return not cfg.normalise_observations and "encoder" not in event.weight_norms


# Summaries have this order: what makes learning meaningless, then the environment, then speed.
SYMPTOMS = (
    Symptom("critics-diverging", critics_diverging, (Update,), 10),  # largest_reward is of the last look
    Symptom("overestimation", overestimation, (Diagnosed,), 3),
    Symptom("saturated-actor", saturated_actor, (Diagnosed,), 3),
    Symptom("dead-units", dead_units, (Diagnosed,), 3),
    Symptom("evaluation-collapsed", evaluation_collapsed, (Eval,), 3),
    Symptom("time-limit-terminates", time_limit_terminates, (EpisodeEnd,), EPISODES - 1, AFTER_FIX, True),
    Symptom("large-rewards", large_rewards, (EpisodeEnd,), 10, of_environment=True),
    Symptom("constant-observation", constant_observation, (Diagnosed,), 5, "", True, is_note=True),
    Symptom("update-ratio", update_ratio, (ActingEvent,), 5, RESUMED),
    Symptom("slow-environment", slow_environment, (Diagnosed, ActingEvent), 3, ONLY_SLOWER, True),
)
