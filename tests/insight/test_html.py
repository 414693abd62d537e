"""HTML in which text is always text, and pictures of any numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from html_pages import Seen
from t3d.insight.html import Html, element, table
from t3d.insight.svg_chart import HEIGHT, WIDTH, Curve, Points, bars_chart, curves_chart, labels, ticks

NUMBERS = st.floats(-1e299, 1e299, allow_nan=False)


@given(st.text(), st.text())
def test_text_and_attributes_come_back_as_they_were_but_for_what_cannot_be_printed(said: str, named: str) -> None:
    found = Seen(element("p", {"title": named}, said, Html("<b></b>")))
    assert found.elements == ["p", "b"]
    for original, shown in ((said, found.said), (named, found.attributes["title"])):
        assert shown == "".join(one if one.isprintable() or one in "\n\t" else "?" for one in original)


def test_a_table_has_a_heading_for_each_row_and_column() -> None:
    assert table(["", "<x>"], [["a", "1"]]) == (
        '<div class="table"><table><thead><tr><th scope="col"></th><th scope="col">&lt;x&gt;</th></tr></thead>'
        '<tbody><tr><th scope="row">a</th><td>1</td></tr></tbody></table></div>'
    )


@given(NUMBERS, st.floats(1e-3, 1e6))
def test_ticks_are_round_evenly_spaced_and_inside(low: float, width: float) -> None:
    low = float(np.clip(low, -1e6, 1e6))
    found = ticks(low, low + width)
    assert 2 <= len(found) <= 6
    steps = np.diff(found)
    assert np.allclose(steps, steps[0])
    assert round(steps[0] / 10 ** np.floor(np.log10(steps[0] * 1.001)), 6) in (1, 2, 5)
    assert low - 1e-6 * width <= found[0] and found[-1] <= low + width * (1 + 1e-6)


def read(label: str) -> float:
    """The number that a label stands for."""
    unit = {"k": 1e3, "M": 1e6}.get(label[-1], 1.0)
    return float(label.rstrip("kM").replace(",", "")) * unit


@given(NUMBERS, st.floats(0, 1e299))
@example(-1200.4, 0.8)
@example(1_234_560.0, 10.0)
@example(1e12, 1e4)
@example(0.0, 1e-7)
def test_labels_of_an_axis_are_different_and_say_where_they_are(low: float, width: float) -> None:
    drawn = curves_chart([Curve("", Points(np.array([0.0, 1.0]), np.array([low, low + width])))], "", "steps")
    shown = re.findall(r'class="y"[^>]*>([^<]*)<', drawn)
    assert 2 <= len(shown) == len({*shown})
    assume(width > 1e-8 * abs(low) + 1e-190)  # otherwise the axis is wider than the curve
    found = ticks(low, low + width)
    assert np.allclose([read(one) for one in labels(found)], found, rtol=0, atol=0.01 * (found[1] - found[0]))


def test_labels_are_short() -> None:
    for low, high, wanted in [
        (0.0, 1.0, ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (-2000.0, 0.0, ["-2,000", "-1,500", "-1,000", "-500", "0"]),
        (0.0, 50_000.0, ["0", "10k", "20k", "30k", "40k", "50k"]),
        (0.0, 2e6, ["0", "0.5M", "1.0M", "1.5M", "2.0M"]),
        (0.0, 5e12, ["0", "1e+12", "2e+12", "3e+12", "4e+12", "5e+12"]),
        (-1200.4, -1199.6, ["-1,200.4", "-1,200.2", "-1,200.0", "-1,199.8", "-1,199.6"]),
        (1_234_560.0, 1_234_570.0, [f"1,234,5{last}" for last in (60, 62, 64, 66, 68, 70)]),
    ]:
        assert labels(ticks(low, high)) == wanted


def places(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)]


def test_a_curve_goes_from_the_lower_left_to_the_upper_right_and_its_band_is_around_it() -> None:
    x = np.array([0.0, 1.0, 2.0])
    drawn = curves_chart([Curve("up", Points(x, x), x - 1, x + 1)], "a line", "steps")
    line = places(re.findall(r'class="mean" d="([^"]*)"', drawn)[0])
    band = places(re.findall(r'class="band" d="([^"]*)"', drawn)[0])
    assert line[1] == pytest.approx(np.mean([line[0], line[2]], axis=0), abs=0.1)
    assert line[0][0] < line[2][0] and line[0][1] > line[2][1]  # y grows downwards in pictures
    unit = line[0][1] - line[1][1]
    assert [at[1] for at in band[:3]] == pytest.approx([at[1] - unit for at in line], abs=0.2)
    assert [at[1] for at in band[:2:-1]] == pytest.approx([at[1] + unit for at in line], abs=0.2)


@given(st.lists(NUMBERS, min_size=1, max_size=5))
def test_any_numbers_can_be_drawn_and_stay_inside(values: list[float]) -> None:
    y = np.array(values)
    curve = curves_chart([Curve("any", Points(np.arange(len(y), dtype=float), y))], "any", "steps")
    drawn = curve + bars_chart(np.abs(y), values[0], values[-1], "any", "x")
    assert not re.search("nan|inf", drawn)
    for x, at in places(" ".join(re.findall(r'class="mean" d="([^"]*)"', drawn))):
        assert 0 <= x <= WIDTH and 0 <= at <= HEIGHT
