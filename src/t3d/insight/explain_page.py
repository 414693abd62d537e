"""One update in its steps as a page, with pictures of some steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from t3d.insight.drawing import GREY, PAGE_COLOURS, page_picture
from t3d.insight.explain import Quantity, Step, heading, letters_of, online_actor
from t3d.insight.fifteen_steps import AGGREGATE_IN_WORDS
from t3d.insight.html import Html, document, element, joined, picture, section, table
from t3d.insight.one_update import OneUpdate

BLUE, ORANGE = PAGE_COLOURS[:2]
DASHED: dict[str, Any] = {"color": GREY, "linewidth": 1, "linestyle": "--"}
INDEX = re.compile(r"_([φθ]?[i\d]?'?)")
MOST_POINTS = 500  # of a scatter; chosen


def page(update: OneUpdate, steps: Sequence[Step], others: Sequence[Quantity] = (), *, pictures: bool = True) -> str:
    """Returns the page; others are what a rule that is not TD3 returned."""
    title = heading(update)
    links = (element("a", {"href": f"#step-{step.number}"}, str(step.number)) for step in steps)
    about = (
        "One real update, taken apart. ",
        _math(letters_of(update.cfg)),
        " Point at a tensor to see where it is in the code.",
    )
    return document(
        title,
        element("h1", None, title),
        element("p", None, about),
        element("nav", None, links),
        (_section(step, update, pictures=pictures) for step in steps),
        section("What its update returned", _table(others)) if others else None,
    )


def _section(step: Step, update: OneUpdate, *, pictures: bool) -> Html:
    figure = None
    if pictures and update.cfg.algo == "td3" and step.number in PICTURES:
        caption = PICTURES[step.number].caption(update)
        svg = picture(drawn(step.number, update), caption)
        figure = element("figure", None, svg, element("figcaption", None, caption))
    return element(
        "section",
        {"id": f"step-{step.number}"},
        element("h2", None, f"{step.number}. {step.text.title}"),
        element("p", {"class": "formula"}, _math(step.text.formula)),
        element("p", {"class": "quiet"}, step.settings) if step.settings else None,
        _table(step.quantities) if step.quantities else None,
        figure,
        (
            element("p", None if label else {"class": "quiet"}, element("b", None, label), " ", _math(sentence))
            for label, sentence in step.sentences
        ),
    )


def _math(text: str) -> Html:
    """Sets indices lower: π_φ', Q_θ1, Σ_i."""
    pieces = INDEX.split(text)
    return joined(element("sub", None, piece) if number % 2 else piece for number, piece in enumerate(pieces))


def _table(quantities: Sequence[Quantity]) -> Html:
    rows = (
        [element("span", {"title": tensor.source}, _math(tensor.symbol)), tensor.shape, *tensor.statistics]
        for tensor in quantities
    )
    return table(("tensor", "shape", "mean", "std", "min", "max"), rows)


def drawn(step: int, update: OneUpdate) -> bytes:
    """Draws the picture of a step, as SVG."""
    return page_picture(lambda axes: PICTURES[step].draw(axes, update))


class Picture(NamedTuple):
    """What a picture shows, and how it is drawn into axes."""

    caption: Callable[[OneUpdate], str]
    draw: Callable[[Any, OneUpdate], None]


def _noise(axes: Any, update: OneUpdate) -> None:
    eps, sigma, clip = _array(update.trace.eps).ravel(), update.td3.target_noise, update.td3.target_noise_clip
    most = 1.15 * max(clip, float(np.abs(eps).max()), 1e-6) if clip < 4 * sigma else 4.2 * sigma or 1.0
    axes.hist(eps, bins=41, range=(-most, most), density=True, color=BLUE)
    if sigma:
        x = np.linspace(-most, most, 301)
        density = np.exp(-((x / sigma) ** 2) / 2) / (sigma * np.sqrt(2 * np.pi))
        axes.plot(x, density, color=ORANGE, label="before the clip")
        axes.legend(loc="upper center")
    for limit in (-clip, clip):
        if abs(limit) < most:
            axes.axvline(limit, **DASHED)
    axes.set(xlabel="noise on a'", ylabel="density", xlim=(-most, most), ylim=(0, 1.25 * axes.get_ylim()[1]))


def _critics(axes: Any, update: OneUpdate) -> None:
    q2, v2 = _array(update.trace.q2), _array(update.trace.v2)
    if len(q2) == 2 and update.td3.aggregate == "min":
        apart, first = q2[1] - q2[0], q2[0] < q2[1]
        axes.scatter(q2[0][first], apart[first], s=9, color=BLUE, label="Q_θ1' is kept")
        axes.scatter(q2[0][~first], apart[~first], s=9, color=ORANGE, label="Q_θ2' is kept")
        axes.axhline(0, **DASHED)
        axes.set(xlabel="Q_θ1'(s', a')", ylabel="Q_θ2' − Q_θ1'")
    else:
        order = np.argsort(v2)
        for critic, values in enumerate(q2):
            axes.plot(values[order], ".", markersize=3, color=BLUE, label="" if critic else "each critic")
        axes.plot(v2[order], color=ORANGE, label="kept")
        axes.set(xlabel="transitions, sorted by what is kept", ylabel="Q'(s', a')")
    axes.legend()


def _errors(axes: Any, update: OneUpdate) -> None:
    td, y = _array(update.trace.td), _array(update.trace.y)
    for index, errors in enumerate(td):
        axes.scatter(y, errors, s=9, color=PAGE_COLOURS[index % len(PAGE_COLOURS)], label=f"Q_θ{index + 1}")
    axes.axhline(0, **DASHED)
    axes.set(xlabel="target y", ylabel="error Q(s, a) − y")
    axes.legend()


def _polyak(letter: str, online: Callable[[OneUpdate], Tensor], name: str) -> Callable[[Any, OneUpdate], None]:
    def draw(axes: Any, update: OneUpdate) -> None:
        weights = (online(update), update.before[name], update.after[name])
        ahead, before, after = (_array(tensor).ravel() for tensor in weights)
        gap, moved = ahead - before, after - before
        some = np.linspace(0, len(gap) - 1, min(MOST_POINTS, len(gap))).astype(int)
        axes.scatter(gap[some], moved[some], s=5, color=BLUE, label="each weight")
        ends = np.array([gap.min(), gap.max()])
        axes.plot(ends, update.td3.tau * ends, color=ORANGE, linewidth=1, label=f"slope τ = {update.td3.tau:g}")
        axes.set(xlabel=f"{letter} − {letter}' before", ylabel=f"move of {letter}'")
        axes.legend()

    return draw


def _array(values: Tensor) -> NDArray[np.float64]:
    array: NDArray[np.float64] = values.double().numpy()
    return array


def _kept(update: OneUpdate) -> str:
    if len(update.trace.q2) == 1:
        return "What the target critic says."
    words = AGGREGATE_IN_WORDS[update.td3.aggregate][0].format(dropped=update.td3.drop_highest)
    return f"What the target critics say; kept: {words.removeprefix('keep ')}."


PICTURES = {
    6: Picture(lambda _: "The noise of this batch; dashed: its clip. What was beyond is at the clip.", _noise),
    8: Picture(_kept, _critics),
    11: Picture(lambda _: "How far each critic was from the target, before moving.", _errors),
    14: Picture(
        lambda _: "Each weight of the target has gone τ of its way to the actor.",
        _polyak("φ", lambda update: online_actor(update, update.after), "actor_target"),
    ),
    15: Picture(
        lambda _: "Each weight of the targets has gone τ of its way to its critic.",
        _polyak("θ", lambda update: update.after["critic"], "critic_target"),
    ),
}
