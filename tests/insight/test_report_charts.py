"""The charts of reports: curves are where their values are, and any numbers can be drawn."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from t3d.insight.drawing import PAGE_COLOURS, page_picture
from t3d.insight.report_charts import SIZE, Labelled, draw_bars, draw_chart

NUMBERS = st.floats(-1e299, 1e299, allow_nan=False)


def labelled(label: str, y: list[float], *, margin: float | None = None) -> Labelled:
    steps = [*range(len(y))]
    low, high = (None if margin is None else [value + way * margin for value in y] for way in (-1, 1))
    curve = {"steps": steps, "y": y, "low": low, "high": high}
    return Labelled(label, {"members": [{"steps": steps, "y": y, "diverged": False}], "mean": curve})


def svg_of(*drawn: Labelled, **options: Any) -> str:
    return page_picture(partial(draw_chart, drawn=drawn, **options), SIZE).decode()


def points(svg: str, line: int) -> list[tuple[float, float]]:
    path = re.search(rf'id="line-{line}">\s*<path d="([^"]*)"', svg)
    assert path is not None
    return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path[1])]


def test_a_curve_goes_from_the_lower_left_to_the_upper_right_and_its_band_is_around_it() -> None:
    svg = svg_of(labelled("up", [0.0, 1.0, 3.0], margin=1.0), labelled("down", [3.0, 2.0, 0.0]))
    up, down = points(svg, 0), points(svg, 1)
    assert up[0][0] < up[1][0] < up[2][0] and up[0][1] > up[1][1] > up[2][1], "y grows downwards in pictures"
    assert down[0] == pytest.approx((up[0][0], up[2][1]), abs=0.2) and down[2][1] == pytest.approx(up[0][1], abs=0.2)
    unit = up[0][1] - up[1][1]
    band = re.search(r'id="FillBetweenPolyCollection_1">.*?<path [^>]*d="([^"]*)"', svg, re.DOTALL)
    assert band is not None
    edges = {float(y) for y in re.findall(r"-?[\d.]+ (-?[\d.]+)", band[1])}
    assert max(up[0][1] + unit - edge for edge in edges) >= 0
    assert all(colour in svg for colour in PAGE_COLOURS[:2])


def test_an_alarm_is_a_dashed_line_at_its_step() -> None:
    line = labelled("up", [0.0, 1.0, 3.0])
    assert svg_of(line, sounded=[1]).count("stroke-dasharray") == svg_of(line).count("stroke-dasharray") + 1


@given(st.lists(NUMBERS, min_size=1, max_size=5))
@example([-1e299, 1e299])
@example([1e12, 1e12 + 1e4])
@example([0.0])
def test_any_numbers_can_be_drawn_and_stay_inside(values: list[float]) -> None:
    svg = svg_of(labelled("any", values))
    bars = page_picture(
        partial(draw_bars, counts=np.abs(values), span=(values[0], values[-1]), x_label="x"), SIZE
    ).decode()
    assert not re.search(r"[\d\" ](nan|inf)\b", svg + bars)
    for x, y in points(svg, 0):
        assert 0 <= x <= 72 * SIZE[0] and 0 <= y <= 72 * SIZE[1]
