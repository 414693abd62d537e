"""Explains one update in fifteen steps, from what was handed to it, what it returned, and the agent before and after.

Nothing is computed again; examples are the first transition of the batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from t3d.config.networks import actor_architecture, critic_architecture
from t3d.insight.fifteen_steps import AGGREGATE_IN_WORDS, OBJECTIVE, Text, fifteen_texts
from t3d.insight.one_update import OneUpdate
from t3d.policy.architectures import Architecture

MOST_CRITICS = 5  # that have a row each; of more only a common one is shown


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


class Details(NamedTuple):
    """What is special to this update about a step."""

    quantities: list[Quantity]
    example: str = ""
    settings: dict[str, float] = {}  # by their letters  # noqa: RUF012 (never changed)
    facts: tuple[str, ...] = ()

    @property
    def settings_line(self) -> str:
        return ", ".join(f"{letter} = {value:,.6g}" for letter, value in self.settings.items())


class Step(NamedTuple):
    """One of the fifteen steps in one update."""

    number: int
    text: Text
    details: Details

    @property
    def sentences(self) -> list[tuple[str, str]]:
        """What is said below its numbers, each with a label."""
        facts = [("", fact) for fact in self.details.facts]
        labelled = [("e.g.", self.details.example), ("why:", self.text.why), ("without it:", self.text.without)]
        return [(label, sentence) for label, sentence in [*facts, *labelled] if sentence]


def heading(update: OneUpdate) -> str:
    """Says which update it is."""
    where = f"{update.cfg.env.title}, {update.member.title}, run {update.title} at step {update.step:,}"
    return f"Update {update.number:,} of {update.cfg.rule_title}: {where}"


def number(value: Any) -> str:
    """Formats a number with four significant digits."""
    return f"{float(value):.4g}"


def explained(update: OneUpdate) -> list[Step]:
    """Returns the fifteen steps of an update of TD3."""
    texts = fifteen_texts(update.cfg, update.td3, images=bool(update.spec.images))
    details = [*_parts(update), *_target(update), *_learning(update), *_following(update)]
    return [Step(place, *both) for place, both in enumerate(zip(texts, details, strict=True), 1)]


def returned(update: OneUpdate) -> list[Quantity]:
    """Everything that an update returned by its own names, for rules whose steps are not known."""
    trace = update.trace._asdict()
    return [Quantity(name, f"trace.{name}", values) for name, values in trace.items() if values is not None]


def online_actor(update: OneUpdate, agent: dict[str, Tensor]) -> Tensor:
    """The actor's weights without the encoder of images, which has no target; agent is update.before or after."""
    return agent["actor"] if "actor" in agent else agent["policy"][:, -agent["actor_target"].shape[1] :]


def _parts(update: OneUpdate) -> list[Details]:
    """Steps 1 to 4."""
    batch, td3, cfg = update.batch, update.td3, update.cfg
    actor, critic = actor_architecture(update.spec, td3), critic_architecture(update.spec, td3)
    before, phi = update.before, online_actor(update, update.before)
    rows = [("s", "s"), ("a", "a"), ("r", "r"), ("s'", "s2"), ("terminated", "terminated")]
    rows += [("γⁿ", "discount")] if cfg.replay.n_step > 1 else []
    rows += [("w", "weight")] if cfg.replay.sampling == "proportional" else []
    filled = f"{update.stored:,} transitions stored, room for {cfg.replay.capacity:,}"
    return [
        Details([], facts=(filled,)),
        Details(
            [Quantity("φ", "agent.actor", phi), Quantity("φ'", "agent.actor_target", before["actor_target"])],
            facts=(_network(actor, "tanh"),),
        ),
        Details(
            [
                Quantity(letter, f"agent.{name}", before[name])
                for letter, name in (("θ", "critic"), ("θ'", "critic_target"))
            ],
            facts=(f"{td3.critics} × {_network(critic)}",),
        ),
        Details(
            [Quantity(symbol, f"batch.{name}", getattr(batch, name)) for symbol, name in rows],
            f"s = {_vector(batch.s[0])}, a = {_vector(batch.a[0])}, r = {number(batch.r[0])}",
            {"N": td3.batch_size},
        ),
    ]


def _target(update: OneUpdate) -> list[Details]:
    """Steps 5 to 9."""
    batch, trace, td3 = update.batch, update.trace, update.td3
    kept = AGGREGATE_IN_WORDS[td3.aggregate][1] if td3.critics > 1 else "Q'"
    pi2, eps, a2 = (number(values[0, 0]) for values in (trace.pi2, trace.eps, trace.a2))
    component = " (first component)" if update.spec.action_size > 1 else ""
    at_clip = float((trace.eps.abs() >= td3.target_noise_clip).double().mean()) if td3.target_noise else 0.0
    values = ", ".join(map(number, trace.q2[:, 0]))
    y, r, discount, v2 = (number(column[0]) for column in (trace.y, batch.r, batch.discount, trace.v2))
    return [
        Details([Quantity("π_φ'(s')", "trace.pi2", trace.pi2)], f"π_φ'(s') = {_vector(trace.pi2[0])}"),
        Details(
            [Quantity("noise", "trace.eps", trace.eps), Quantity("a'", "trace.a2", trace.a2)],
            f"clamp({pi2} + {eps}, -1, 1) = {a2}{component}",
            {"σ̃": td3.target_noise, "c": td3.target_noise_clip},
            (f"{at_clip:.1%} of the noise is at its clip",),
        ),
        Details(_by_critic("Q_θ{}'", "trace.q2", trace.q2), f"Q' = ({values})"),
        Details([Quantity(kept, "trace.v2", trace.v2)], f"{kept} of ({values}) = {v2}", facts=_smaller(update)),
        Details(
            [Quantity("y", "trace.y", trace.y)],
            f"{y} = {r} + {discount} · (1 - {batch.terminated[0]:g}) · {v2}",
            {"γ": td3.gamma},
        ),
    ]


def _learning(update: OneUpdate) -> list[Details]:
    """Steps 10 to 13."""
    trace, td3, before, after = update.trace, update.td3, update.before, update.after
    errors, losses = (", ".join(map(number, rows[:, 0])) for rows in (trace.td, trace.loss))
    whole = f"the whole loss, over the batch and the critics: {number(update.losses['critic'])}"
    rate = "learning rate" if td3.lr_schedule == "constant" else "initial learning rate"
    ascended = [
        Quantity("π_φ(s)", "trace.pi", trace.pi),
        Quantity(OBJECTIVE[td3.actor_objective], "trace.q_pi", trace.q_pi),
    ]
    loss = f"actor loss, the negative mean{' and the penalty' if td3.pre_activation_penalty else ''}"
    delay = f"this is update {update.number:,}, which moves the actor"
    moved, example = _moved("θ", "critic", before["critic"], after["critic"])
    actor_moved, actor_example = _moved("φ", "actor", online_actor(update, before), online_actor(update, after))
    return [
        Details(_by_critic("Q_θ{}", "trace.q", trace.q), f"Q = ({', '.join(map(number, trace.q[:, 0]))})"),
        Details(
            [Quantity("Q − y", "trace.td", trace.td), Quantity("loss", "trace.loss", trace.loss)],
            f"errors ({errors}) give losses ({losses})",
            facts=(whole,),
        ),
        Details([moved], example, {rate: td3.critic_lr}),
        Details(
            [*ascended, actor_moved],
            actor_example,
            {rate: td3.actor_lr, "d": td3.policy_delay},
            (f"{loss}: {number(update.losses['actor'])}", delay),
        ),
    ]


def _following(update: OneUpdate) -> list[Details]:
    """Steps 14 and 15."""
    phi, theta = online_actor(update, update.after), update.after["critic"]
    return [_followed(update, "φ", "actor_target", phi), _followed(update, "θ", "critic_target", theta)]


def _moved(letter: str, name: str, before: Tensor, after: Tensor) -> tuple[Quantity, str]:
    """How a step has changed weights, with an example."""
    change = after - before
    most = int(change.abs().argmax())
    then, now = (number(weights.flatten()[most]) for weights in (before, after))
    return Quantity(f"Δ{letter}", f"agent.{name}", change), f"the weight that moved most: {then} → {now}"


def _followed(update: OneUpdate, letter: str, name: str, online: Tensor) -> Details:
    before, after, tau = update.before[name], update.after[name], update.td3.tau
    most = int((after - before).abs().argmax())
    ours, then, now = (number(weights.flatten()[most]) for weights in (online, before, after))
    far, near = (number((online - weights).double().norm()) for weights in (before, after))
    return Details(
        [Quantity(f"Δ{letter}'", f"agent.{name}", after - before)],
        f"{number(tau)} · {ours} + (1 - {number(tau)}) · {then} = {now}",
        {"τ": tau},
        (f"distance |{letter} − {letter}'| over all weights: {far} → {near}",),
    )


def _by_critic(symbol: str, source: str, values: Tensor) -> list[Quantity]:
    """A row for each critic, (B,), or one for all of very many, (C, B)."""
    if len(values) > MOST_CRITICS:
        return [Quantity(symbol.format("i"), source, values)]
    return [Quantity(symbol.format(i + 1), f"{source}[{i}]", row) for i, row in enumerate(values)]


def _smaller(update: OneUpdate) -> tuple[str, ...]:
    """How often the first of two critics has the smaller value, and how far they are apart."""
    q2 = update.trace.q2
    if len(q2) != 2:
        return ()
    share, apart = float((q2[0] < q2[1]).double().mean()), number((q2[0] - q2[1]).abs().mean())
    return (f"Q_θ1' is the smaller one in {share:.0%} of the batch; they differ by {apart} on average",)


def _network(network: Architecture, output: str = "") -> str:
    layers, ends = " → ".join(map(str, network.sizes)), output and f", {output}"
    return f"{network.name} {layers}, {network.activation}{ends}: {network.size:,} parameters"


def _vector(values: Tensor) -> str:
    """Formats a vector, of a long one the first values."""
    shown = [number(value) for value in values[:3]]
    return shown[0] if len(values) == 1 else f"({', '.join(shown + ['…'] * (len(values) > 3))})"
