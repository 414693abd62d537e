"""The charts of a report: those of the dashboard's run page, as pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from t3d.app.tables import figure
from t3d.config.sweeps import short, value_text
from t3d.insight.curves import DrawnRun, Window, find, lines
from t3d.insight.groups import joined, pooled
from t3d.insight.html import Html, element
from t3d.insight.svg_chart import COLOURS, Curve, Points, bars_chart, curves_chart
from t3d.store.metrics import Metric

POINTS = 200  # of each curve; chosen
MOST_LINES = 12  # in a chart; of more, those that end highest are drawn
MOST_BANDED = 6  # lines whose bands can be told apart
BINS = ("action_counts", "reward_counts")

Pool = Sequence[DrawnRun]


class Labelled(NamedTuple):
    """A line as the dashboard has it, and what it is called."""

    label: str
    line: dict[str, Any]

    @property
    def end(self) -> dict[str, Any]:
        """What is drawn thick: the mean, or the only one there is."""
        found: dict[str, Any] = self.line["mean"] or self.line["members"][0]
        return found


def charts(runs: Sequence[DrawnRun]) -> list[Html]:
    """Returns the charts under their headings; runs that differ only in their seeds are one line."""
    pools = pooled(runs)
    groups: dict[str, list[Html]] = {}
    for panel in _panels():
        for one in [panel] if len(pools) == 1 else _each_metric(panel):
            if (made := _chart(one, pools)) is not None:
                groups.setdefault(panel["group"], []).append(made)
    return [
        element("section", {"class": "group"}, element("h3", None, name), element("div", {"class": "charts"}, made))
        for name, made in groups.items()
    ]


def _panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((resources.files("t3d.dash") / "pages" / "panels.json").read_text("utf-8"))
    return found


def _each_metric(panel: dict[str, Any]) -> list[dict[str, Any]]:
    """Splits a panel, because several runs have a line each; figures with several entries would have too many."""
    if "bars" in panel:
        return []
    several = len(panel["metrics"]) > 1
    return [
        {**panel, "metrics": {metric: label}, "title": f"{panel['title']}: {label}" if several else panel["title"]}
        for metric, label in panel["metrics"].items()
        if label
    ]


def _chart(panel: dict[str, Any], pools: Sequence[Pool]) -> Html | None:
    every = [run for pool in pools for run in pool]
    figures = [(metric, figure) for metric in panel["metrics"] for figure in find(every, metric)]
    if not figures:
        return None
    if "bars" in panel:
        return _bars(panel, pools[0], [figure for _, figure in figures])
    found = [
        Labelled(_label(panel, metric, figure, line, several=len(pools) > 1), line)
        for pool in pools
        for metric, figure in figures
        for line in lines(pool, figure, Window(POINTS))
    ]
    if not found:
        return None
    highest = sorted(range(len(found)), key=lambda place: float(found[place].end["y"][-1]), reverse=True)
    drawn = [found[place] for place in sorted(highest[:MOST_LINES])]
    said = _newest(drawn)
    picture = curves_chart([_curve(one, len(drawn)) for one in drawn], f"{panel['title']}: {said}", "steps")
    left_out = f"The {MOST_LINES} of {len(found)} that end highest. " if len(found) > len(drawn) else ""
    return _card(panel, said, picture, _legend(drawn), left_out)


def _card(panel: dict[str, Any], said: str, picture: Html, legend: Html | None, left_out: str = "") -> Html:
    note = element("p", {"class": "quiet"}, left_out, panel["note"])
    return element(
        "figure",
        None,
        element("h4", None, panel["title"]),
        element("p", {"class": "newest"}, said),
        picture,
        legend,
        note,
    )


def _label(panel: dict[str, Any], metric: str, figure: Metric, line: dict[str, Any], *, several: bool) -> str:
    """Says what a line is, where there are others beside it."""
    whose = [joined(line["runs"])] if several else []
    values = [f"{short(name)}={value_text(value)}" for name, value in line["values"].items()]
    is_alone = len(panel["metrics"]) == 1 and figure.name == metric
    what = panel["metrics"][metric] or panel.get("entries", {}).get(figure.entry) or figure.entry or figure.name
    return " · ".join([*whose, *values, *([] if is_alone and (whose or values) else [what])])


def _curve(one: Labelled, count: int) -> Curve:
    line, mean = one.line, one.line["mean"]
    living = [member for member in line["members"] if not member["diverged"]]
    banded = mean is not None and mean["low"] is not None and count <= MOST_BANDED
    low, high = (np.array(mean[edge], np.float64) if banded else None for edge in ("low", "high"))
    return Curve(
        one.label,
        _points(one.end),
        low,
        high,
        seeds=[_points(member) for member in living] if count == 1 and len(living) > 1 else [],
        diverged=[_points(member) for member in line["members"] if member["diverged"]],
    )


def _points(curve: dict[str, Any]) -> Points:
    return Points(np.array(curve["steps"], np.float64), np.array(curve["y"], np.float64))


def _newest(drawn: Sequence[Labelled]) -> str:
    """Says the last value of each of a few lines."""
    said = []
    for label, line in drawn if len(drawn) <= 4 else ():
        end = Labelled(label, line).end
        banded = len(drawn) == 1 and len(line["members"]) > 1 and end.get("low")
        within = f" [{figure(end['low'][-1])}, {figure(end['high'][-1])}]" if banded else ""
        name = f"{label} " if len(drawn) > 1 else ""
        said.append(f"{name}{figure(end['y'][-1])}{within}")
    last = max((one.end["steps"][-1] for one in drawn), default=0)
    return f"{'; '.join(said)} at step {last:,}" if said else ""


def _legend(drawn: Sequence[Labelled]) -> Html | None:
    if len(drawn) == 1:
        return None
    items = [
        element("li", {"class": f"c{place % COLOURS}"}, element("span", {"class": "key"}), one.label)
        for place, one in enumerate(drawn)
    ]
    return element("ul", {"class": "legend"}, items)


def _bars(panel: dict[str, Any], pool: Pool, figures: Sequence[Metric]) -> Html | None:
    """Draws the newest counts of the first member that has any, as the dashboard does."""
    newest = {}
    for one in figures:
        members = [member for line in lines(pool, one, Window(POINTS)) for member in line["members"]]
        if members:
            newest[one] = (members[0]["y"][-1], members[0]["member"])
    counts = np.array([value for one, (value, _) in newest.items() if one.field in BINS], np.float64)
    if not len(counts):
        return None
    edges = {one.entry: value for one, (value, _) in newest.items() if one.field not in BINS}
    low, high = edges.get("low", -1.0), edges.get("high", 1.0)
    said = f"of {next(iter(newest.values()))[1]}"
    return _card(panel, said, bars_chart(counts, low, high, f"{panel['title']} {said}", panel["bars"]), None)
