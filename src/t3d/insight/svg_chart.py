"""Draws curves and bars as small SVG pictures whose colours are those of the page they are in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from t3d.insight.html import Html, element
from t3d.insight.statistics import Array

WIDTH, HEIGHT = 420, 230  # of a picture, in units that are about a pixel
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 10, 34  # margins
COLOURS = 8  # as the page's style sheet has them
TICKS = 5  # at most, on an axis
FLAT = 1e-9  # share of its size by which a curve must vary to be more than a straight line
TINY = 1e-200  # below this a difference cannot be divided
UNITS = ((1e6, "M", 1e6), (1e3, "k", 1e4))  # of ticks: from which size on, if two decimals are enough
LONGEST = 9  # letters that fit beside the y axis; longer labels are drawn narrower


class Points(NamedTuple):
    """A curve."""

    x: Array
    y: Array


class Curve(NamedTuple):
    """One line of a chart, with the band around it and the seeds behind it."""

    label: str
    line: Points
    low: Array | None = None  # of the band, at the points of the line
    high: Array | None = None
    seeds: Sequence[Points] = ()
    diverged: Sequence[Points] = ()  # drawn dotted, up to where they stopped


class Frame(NamedTuple):
    """Where values are in a picture."""

    left: float
    right: float
    bottom: float
    top: float

    def x(self, value: float) -> float:
        return LEFT + (value - self.left) / (self.right - self.left) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.bottom) / (self.top - self.bottom) * (HEIGHT - TOP - BOTTOM)


def curves_chart(curves: Sequence[Curve], described: str, x_label: str) -> Html:
    """Draws curves; described is for readers who cannot see them."""
    every = [points for one in curves for points in (one.line, *one.seeds, *one.diverged)]
    heights = [points.y for points in every] + [
        edge for one in curves for edge in (one.low, one.high) if edge is not None
    ]
    frame = _frame(np.concatenate([points.x for points in every]), np.concatenate(heights))
    drawn = [_curve(one, place, frame) for place, one in enumerate(curves)]
    return _picture(described, [_axes(frame, x_label), *drawn])


def bars_chart(counts: Array, low: float, high: float, described: str, x_label: str) -> Html:
    """Draws counts of equal bins between low and high."""
    low, high = _apart(low, high)
    frame = _frame(np.array([low, high]), np.array([0.0, counts.max()]))._replace(left=low, right=high, bottom=0.0)
    edges = np.linspace(low, high, len(counts) + 1)
    bars = [
        element(
            "rect",
            {
                "class": "bar",
                "x": _number(frame.x(left) + 0.5),
                "width": _number(frame.x(right) - frame.x(left) - 1),
                "y": _number(frame.y(count)),
                "height": _number(frame.y(0) - frame.y(count)),
            },
        )
        for left, right, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    return _picture(described, [_axes(frame, x_label), *bars])


def ticks(low: float, high: float, most: int = TICKS) -> list[float]:
    """Returns round numbers between two others."""
    rough = (high - low) / most
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * (1 - FLAT))
    return [float(place * step) for place in range(math.ceil(low / step - FLAT), math.floor(high / step + FLAT) + 1)]


def labels(values: Sequence[float]) -> list[str]:
    """Formats the ticks of an axis, with as many decimals as tell them apart: 0.25, -1,200, 20k, 1.5M, 3e+12."""
    size, step = max(map(abs, values)), values[1] - values[0]
    if size >= 1e10 or size < 1e-4:
        digits = _magnitude(size) - _magnitude(step)
        return [f"{value:.{digits}e}" if value else "0" for value in values]
    fitting = ((unit, name) for unit, name, least in UNITS if size >= least and step >= unit / 100)
    unit, name = next(fitting, (1.0, ""))
    decimals = max(0, -_magnitude(step / unit))
    return [f"{value / unit:,.{decimals}f}{name}" if value else "0" for value in values]


def _frame(x: Array, y: Array) -> Frame:
    bottom, top = _apart(float(y.min()), float(y.max()))
    margin = 0.04 * (top - bottom)
    return Frame(*_apart(float(x.min()), float(x.max())), bottom - margin, top + margin)


def _apart(low: float, high: float) -> tuple[float, float]:
    """Returns the ends of an axis, which must not be the same."""
    size = max(abs(low), abs(high))
    if high - low > FLAT * size + TINY:
        return low, high
    half = size / 2 if size > TINY else 0.5
    return low - half, low + half


def _axes(frame: Frame, x_label: str) -> Html:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    lines, numbers = [], []
    for value, label in _labelled(frame.bottom, frame.top):
        at = _number(frame.y(value))
        lines.append(f"M{LEFT} {at}H{right}")
        narrow = {"textLength": LEFT - 6, "lengthAdjust": "spacingAndGlyphs"} if len(label) > LONGEST else {}
        numbers.append(element("text", {"x": LEFT - 6, "y": at, "class": "y", **narrow}, label))
    for value, label in _labelled(frame.left, frame.right):
        at = _number(frame.x(value))
        lines.append(f"M{at} {TOP}V{bottom}")
        numbers.append(element("text", {"x": at, "y": bottom + 14, "class": "x"}, label))
    named = element("text", {"x": (LEFT + right) / 2, "y": HEIGHT - 4, "class": "x"}, x_label)
    return element("g", {"class": "axes"}, element("path", {"class": "grid", "d": "".join(lines)}), *numbers, named)


def _labelled(low: float, high: float) -> Iterable[tuple[float, str]]:
    found = ticks(low, high)
    return zip(found, labels(found), strict=True)


def _magnitude(value: float) -> int:
    """Returns the power of ten of a number's first digit; ticks are not exactly round."""
    return math.floor(math.log10(value) + 1e-5)


def _curve(one: Curve, place: int, frame: Frame) -> Html:
    parts = []
    if one.low is not None and one.high is not None and len(one.low) > 1:
        around = [*zip(one.line.x, one.high, strict=True), *[*zip(one.line.x, one.low, strict=True)][::-1]]
        parts.append(element("path", {"class": "band", "d": f"M{_path(around, frame)}Z"}))
    parts += [_line(points, frame, "seed") for points in one.seeds]
    parts += [_line(points, frame, "diverged") for points in one.diverged]
    parts.append(_line(one.line, frame, "mean"))
    return element("g", {"class": f"curve c{place % COLOURS}"}, element("title", None, one.label), *parts)


def _line(points: Points, frame: Frame, kind: str) -> Html:
    if len(points.x) == 1:  # a line of one point cannot be seen
        at = {"cx": _number(frame.x(points.x[0])), "cy": _number(frame.y(points.y[0]))}
        return element("circle", {"class": kind, **at, "r": 3})
    return element("path", {"class": kind, "d": f"M{_path(zip(points.x, points.y, strict=True), frame)}"})


def _path(points: Iterable[tuple[float, float]], frame: Frame) -> str:
    return "L".join(f"{_number(frame.x(x))} {_number(frame.y(y))}" for x, y in points)


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _picture(described: str, content: Sequence[Html]) -> Html:
    about = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "role": "img", "aria-label": described}
    return element("svg", about, *content)
