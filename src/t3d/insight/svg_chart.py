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


def short_number(value: float) -> str:
    """Formats a number at an axis: 0.25, -1,200, 20k, 1.5M, 3e+12."""
    size = abs(value)
    if size >= 1e10 or 0 < size < 1e-4:
        return f"{value:.3g}"
    if size >= 1e6:
        return f"{value / 1e6:,.4g}M"
    if size >= 1e4:
        return f"{value / 1e3:,.4g}k"
    return f"{value:,.0f}" if size >= 1e3 else f"{value:.4g}"


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
    for value in ticks(frame.bottom, frame.top):
        at = _number(frame.y(value))
        lines.append(f"M{LEFT} {at}H{right}")
        numbers.append(element("text", {"x": LEFT - 6, "y": at, "class": "y"}, short_number(value)))
    for value in ticks(frame.left, frame.right):
        at = _number(frame.x(value))
        lines.append(f"M{at} {TOP}V{bottom}")
        numbers.append(element("text", {"x": at, "y": bottom + 14, "class": "x"}, short_number(value)))
    label = element("text", {"x": (LEFT + right) / 2, "y": HEIGHT - 4, "class": "x"}, x_label)
    return element("g", {"class": "axes"}, element("path", {"class": "grid", "d": "".join(lines)}), *numbers, label)


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
