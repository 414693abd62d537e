"""Explains one update in its steps, from what was handed to it, what it returned, and the agent before and after.

Nothing is computed again; examples are the first transition of the batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from t3d.config import Config
from t3d.config.networks import actor_architecture, critic_architecture
from t3d.insight.fifteen_steps import AGGREGATE_IN_WORDS, LETTERS, Text, fifteen_texts
from t3d.insight.one_update import OneUpdate
from t3d.insight.td7_steps import LETTERS as TD7_LETTERS
from t3d.insight.td7_steps import STEPS as TD7_STEPS
from t3d.policy.architectures import Architecture

MOST_RETURN = 1e30  # of an episode that there was
MOST_CRITICS = 5  # that have a row each; of more only a common one is shown
Numbers: TypeAlias = "tuple[str, tuple[str, ...], list[Quantity]]"  # an example, facts, and what no trace has


class Quantity(NamedTuple):
    """A tensor that a step reads or makes, without the axis of members."""

    symbol: str
    source: str  # where it is in the code, e.g. trace.q2[0]
    values: Tensor

    @property
    def shape(self) -> str:
        return "×".join(map(str, self.values.shape)) or "1"

    @property
    def statistics(self) -> list[str]:
        """Mean, standard deviation, smallest and largest value; a single number is only itself."""
        values = self.values.double()
        if values.numel() == 1:
            return [number(values)]
        return [number(value) for value in (values.mean(), values.std(correction=0), values.min(), values.max())]


class Step(NamedTuple):
    """One step of one update: what is always said of it, and its numbers."""

    number: int
    text: Text
    settings: str  # that the formula names, e.g. γ = 0.98
    quantities: list[Quantity]
    example: str
    facts: tuple[str, ...]

    @property
    def sentences(self) -> list[tuple[str, str]]:
        """What is said below its numbers, each with a label."""
        facts = [("", fact) for fact in self.facts]
        labelled = [("e.g.", self.example), ("why:", self.text.why), ("without it:", self.text.without)]
        return [(label, sentence) for label, sentence in [*facts, *labelled] if sentence]


def heading(update: OneUpdate) -> str:
    """Says which update it is."""
    where = f"{update.cfg.env.title}, {update.member.title}, run {update.title} at step {update.step:,}"
    return f"Update {update.number:,} of {update.cfg.rule_title}: {where}"


def letters_of(cfg: Config) -> str:
    """Says what the letters of its steps mean."""
    return TD7_LETTERS if cfg.algo == "td7" else LETTERS


def number(value: Any) -> str:
    """Formats a number with four significant digits."""
    return f"{float(value):.4g}"


def explained(update: OneUpdate) -> list[Step]:
    """Returns the steps of an update; none if the rule is the user's own."""
    return {"td3": of_td3, "td7": of_td7}.get(update.cfg.algo, lambda _: [])(update)


def of_td7(update: OneUpdate) -> list[Step]:
    """Returns the steps of TD7."""
    trace, batch = update.trace, update.batch
    y, r, discount, v2 = (number(column[0]) for column in (trace.y, batch.r, batch.discount, trace.v2))
    low, high = (number(update.before[f"seen_{name}"]) for name in ("low", "high"))
    stored = f"{update.stored:,} transitions stored, room for {update.cfg.replay.capacity:,}"
    best = number(update.before["assessment_best"])
    more: dict[int, tuple[str, tuple[str, ...]]] = {  # by the number of the step: an example, facts
        1: ("", (stored,)),
        4: (f"s = {_vector(batch.s[0])}, a = {_vector(batch.a[0])}, r = {number(batch.r[0])}", ()),
        9: (f"the smallest of ({', '.join(map(number, trace.q2[:, 0]))}), inside [{low}, {high}], is {v2}", ()),
        10: (f"{y} = {r} + {discount} · (1 - {batch.terminated[0]:g}) · {v2}", ()),
        12: ("", (f"the whole loss, over the batch and the critics: {number(update.losses['critic'])}",)),
        14: ("", (f"this is update {update.number:,}, which moves the actor",)),
        16: ("", (f"the checkpoint's lowest return is {best}",) if abs(float(best)) < MOST_RETURN else ()),
    }
    return [_step(update, index, text, *more.get(index, ("", ())), []) for index, text in enumerate(TD7_STEPS, 1)]


def of_td3(update: OneUpdate) -> list[Step]:
    """Returns the fifteen steps of TD3."""
    phi, theta = online_actor(update, update.after), update.after["critic"]
    numbers = [
        *_before(update),
        *_target(update),
        *_learning(update),
        _followed(update, "φ", "actor_target", phi),
        _followed(update, "θ", "critic_target", theta),
    ]
    texts = fifteen_texts(update.cfg, update.td3, images=bool(update.spec.images))
    return [
        _step(update, index, *pair)
        for index, pair in enumerate(zip(texts, *zip(*numbers, strict=True), strict=True), 1)
    ]


def _step(
    update: OneUpdate, index: int, text: Text, example: str, facts: tuple[str, ...], others: list[Quantity]
) -> Step:
    letters = {
        letter: getattr(update.td3, name[len(update.td3.prefix) :]) for name, letter in text.settings.items() if letter
    }
    settings = ", ".join(f"{letter} = {value:,.6g}" for letter, value in letters.items())
    traced = [quantity for name, symbol in text.values.items() if symbol for quantity in _traced(update, symbol, name)]
    return Step(index, text, settings, [*traced, *others], example, facts)


def returned(update: OneUpdate) -> list[Quantity]:
    """Everything that an update returned by its own names, for rules whose steps are not known."""
    trace = update.trace._asdict()
    return [Quantity(name, f"trace.{name}", values) for name, values in trace.items() if values is not None]


def online_actor(update: OneUpdate, agent: dict[str, Tensor]) -> Tensor:
    """The actor's weights without the encoder of images, which has no target; agent is update.before or after."""
    return agent["actor"] if "actor" in agent else agent["policy"][:, -agent["actor_target"].shape[1] :]


def _before(update: OneUpdate) -> list[Numbers]:
    """Steps 1 to 4."""
    batch, td3, cfg, before = update.batch, update.td3, update.cfg, update.before
    actor, critic = actor_architecture(update.spec, td3), critic_architecture(update.spec, td3)
    phi, theta = online_actor(update, before), before["critic"]
    actors = [Quantity("φ", "agent.actor", phi), Quantity("φ'", "agent.actor_target", before["actor_target"])]
    critics = [Quantity("θ", "agent.critic", theta), Quantity("θ'", "agent.critic_target", before["critic_target"])]
    rows = {"s": "s", "a": "a", "r": "r", "s'": "s2", "terminated": "terminated"}
    rows |= {"γⁿ": "discount"} if cfg.replay.n_step > 1 else {}
    rows |= {"w": "weight"} if cfg.replay.sampling == "proportional" else {}
    columns = [Quantity(symbol, f"batch.{name}", getattr(batch, name)) for symbol, name in rows.items()]
    example = f"s = {_vector(batch.s[0])}, a = {_vector(batch.a[0])}, r = {number(batch.r[0])}"
    return [
        ("", (f"{update.stored:,} transitions stored, room for {cfg.replay.capacity:,}",), []),
        ("", (_network(actor, ", tanh"),), actors),
        ("", (f"{td3.critics} × {_network(critic)}",), critics),
        (example, (), columns),
    ]


def _target(update: OneUpdate) -> list[Numbers]:
    """Steps 5 to 9."""
    batch, trace, td3, q2 = update.batch, update.trace, update.td3, update.trace.q2
    kept = AGGREGATE_IN_WORDS[td3.aggregate][1] if td3.critics > 1 else "Q'"
    pi2, eps, a2 = (number(values[0, 0]) for values in (trace.pi2, trace.eps, trace.a2))
    component = " (first component)" if update.spec.action_size > 1 else ""
    at_clip = float((trace.eps.abs() >= td3.target_noise_clip).double().mean()) if td3.target_noise else 0.0
    values = ", ".join(map(number, q2[:, 0]))
    y, r, discount, v2 = (number(column[0]) for column in (trace.y, batch.r, batch.discount, trace.v2))
    smaller: tuple[str, ...] = ()
    if len(q2) == 2:
        share, apart = float((q2[0] < q2[1]).double().mean()), number((q2[0] - q2[1]).abs().mean())
        smaller = (f"Q_θ1' is the smaller one in {share:.0%} of the batch; they differ by {apart} on average",)
    return [
        (f"π_φ'(s') = {_vector(trace.pi2[0])}", (), []),
        (f"clamp({pi2} + {eps}, -1, 1) = {a2}{component}", (f"{at_clip:.1%} of the noise is at its clip",), []),
        (f"Q' = ({values})", (), []),
        (f"{kept} of ({values}) = {v2}", smaller, []),
        (f"{y} = {r} + {discount} · (1 - {batch.terminated[0]:g}) · {v2}", (), []),
    ]


def _learning(update: OneUpdate) -> list[Numbers]:
    """Steps 10 to 13."""
    trace, before, after = update.trace, update.before, update.after
    errors, losses = (", ".join(map(number, rows[:, 0])) for rows in (trace.td, trace.loss))
    whole = f"the whole loss, over the batch and the critics: {number(update.losses['critic'])}"
    penalty = " and the penalty" if update.td3.pre_activation_penalty else ""
    loss = f"actor loss, the negative mean{penalty}: {number(update.losses['actor'])}"
    delay = f"this is update {update.number:,}, which moves the actor"
    moved, example = _moved("θ", "critic", before["critic"], after["critic"])
    actor_moved, actor_example = _moved("φ", "actor", online_actor(update, before), online_actor(update, after))
    return [
        (f"Q = ({', '.join(map(number, trace.q[:, 0]))})", (), []),
        (f"errors ({errors}) give losses ({losses})", (whole,), []),
        (example, (), [moved]),
        (actor_example, (loss, delay), [actor_moved]),
    ]


def _moved(letter: str, name: str, before: Tensor, after: Tensor) -> tuple[Quantity, str]:
    change = after - before
    most = int(change.abs().argmax())
    then, now = (number(weights.flatten()[most]) for weights in (before, after))
    return Quantity(f"Δ{letter}", f"agent.{name}", change), f"the weight that moved most: {then} → {now}"


def _followed(update: OneUpdate, letter: str, name: str, online: Tensor) -> Numbers:
    before, after, tau = update.before[name], update.after[name], number(update.td3.tau)
    most = int((after - before).abs().argmax())
    ours, then, now = (number(weights.flatten()[most]) for weights in (online, before, after))
    far, near = (number((online - weights).double().norm()) for weights in (before, after))
    return (
        f"{tau} · {ours} + (1 - {tau}) · {then} = {now}",
        (f"distance |{letter} − {letter}'| over all weights: {far} → {near}",),
        [Quantity(f"Δ{letter}'", f"agent.{name}", after - before)],
    )


def _traced(update: OneUpdate, symbol: str, name: str) -> list[Quantity]:
    """A part of the trace; of critics a row for each, (B,), or one for all of very many, (C, B)."""
    values, source = getattr(update.trace, name), f"trace.{name}"
    if name not in ("q", "q2") or len(values) > MOST_CRITICS:
        return [Quantity(symbol, source, values)]
    return [Quantity(symbol.replace("i", str(i + 1)), f"{source}[{i}]", row) for i, row in enumerate(values)]


def _network(network: Architecture, output: str = "") -> str:
    layers = " → ".join(map(str, network.sizes))
    return f"{network.name} {layers}, {network.activation}{output}: {network.size:,} parameters"


def _vector(values: Tensor) -> str:
    """Formats a vector, of a long one the first values."""
    numbers = [number(value) for value in values[:3]]
    return numbers[0] if len(values) == 1 else f"({', '.join(numbers + ['…'] * (len(values) > 3))})"
