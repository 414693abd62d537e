"""The charts of a report: those of the dashboard's run page, as pictures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from t3d.config.metrics import parse_metrics
from t3d.config.sweeps import short, value_text
from t3d.events import Alarm
from t3d.insight.curves import DrawnRun, Window, find, lines
from t3d.insight.drawing import GREY, PAGE_COLOURS, STEPS, VALUES, page_picture
from t3d.insight.groups import joined, pooled
from t3d.insight.html import Html, element, picture
from t3d.insight.wording import number_text
from t3d.store.metrics import Metric, parse_metric

PANELS = Path(__file__).with_name("panels.json")  # the charts, which the dashboard reads too
POINTS = 200  # of each curve; chosen
MOST_LINES = 12  # in a chart; of more, those that end highest are drawn
MOST_BANDED = 6  # lines whose bands can be told apart
SIZE = 4.4, 2.5  # inches
RED = "#d9534f"
BINS = ("action_counts", "reward_counts")

Pool = Sequence[DrawnRun]


class Labelled(NamedTuple):
    """A line as the dashboard has it, and what it is called."""

    label: str
    line: dict[str, Any]

    @property
    def main(self) -> dict[str, Any]:
        """What is drawn thick: the mean, or the only curve there is."""
        curve: dict[str, Any] = self.line["mean"] or self.line["members"][0]
        return curve


def charts(runs: Sequence[DrawnRun], alarms: Iterable[Alarm]) -> list[Html]:
    """Returns the charts under their headings; runs that differ only in their seeds are one line."""
    pools = pooled(runs)
    names = dict.fromkeys(name for run in runs for name in parse_metrics(run.cfg.env.metrics))
    panels = [panel for whole in json.loads(PANELS.read_bytes()) for panel in _each_of_info(whole, names)]
    groups: dict[str, list[Html]] = {}
    for whole in panels:
        sounded = sorted({alarm.step for alarm in alarms if alarm.kind in whole.get("alarms", [])})
        for panel in [whole] if len(pools) == 1 else _each_metric(whole):
            if (chart := _chart(panel, pools, sounded)) is not None:
                groups.setdefault(whole["group"], []).append(chart)
    return [
        element("section", {"class": "group"}, element("h3", None, name), element("div", {"class": "charts"}, figures))
        for name, figures in groups.items()
    ]


def return_chart(run: DrawnRun) -> Html | None:
    """Returns the first chart, the returns of evaluations; None: there are none yet."""
    return _chart(json.loads(PANELS.read_bytes())[0], [[run]], [])


def _each_of_info(panel: dict[str, Any], names: Iterable[str]) -> list[dict[str, Any]]:
    """Gives each metric of info a chart, because their scales differ."""
    if "of_info" not in panel:
        return [panel]
    return [{**panel, "title": f"{panel['title']}: {name}", "metrics": {f"metrics.{name}": name}} for name in names]


def _each_metric(panel: dict[str, Any]) -> list[dict[str, Any]]:
    """Splits a panel, because several runs have a line each; metrics with several entries would have too many."""
    named = {metric: label for metric, label in panel["metrics"].items() if label and "bars" not in panel}
    several = len(panel["metrics"]) > 1
    return [
        {**panel, "metrics": {metric: label}, "title": f"{panel['title']}: {label}" if several else panel["title"]}
        for metric, label in named.items()
    ]


def _chart(panel: dict[str, Any], pools: Sequence[Pool], sounded: Sequence[int]) -> Html | None:
    metrics = [(name, metric) for name in panel["metrics"] for metric in find([run for p in pools for run in p], name)]
    if "bars" in panel:
        return _bars(panel, pools[0], [metric for _, metric in metrics])
    known = [
        Labelled(_label(panel, name, metric, line, several=len(pools) > 1), line)
        for pool in pools
        for name, metric in metrics
        for line in lines(pool, metric, Window(POINTS))
    ]
    if not known:
        return None
    highest = sorted(range(len(known)), key=lambda index: float(known[index].main["y"][-1]), reverse=True)
    drawn = [known[index] for index in sorted(highest[:MOST_LINES])]
    notes = [f"The {MOST_LINES} of {len(known)} that end highest."] if len(known) > len(drawn) else []
    notes += ["Dashed in red: an alarm about this."] if sounded else []
    svg = page_picture(partial(draw_lines, drawn=drawn, sounded=sounded), SIZE)
    keys = [{"class": "key", "style": f"background: {_look(index)['color']}"} for index in range(len(drawn))]
    items = (element("li", None, element("span", key), line.label) for key, line in zip(keys, drawn, strict=True))
    legend = element("ul", {"class": "legend"}, items) if len(drawn) > 1 else None
    return _card(panel, _newest(drawn), svg, legend, [*notes, panel["note"]])


def _card(panel: dict[str, Any], newest: str, svg: bytes, legend: Html | None, notes: Sequence[str]) -> Html:
    return element(
        "figure",
        None,
        element("h4", None, panel["title"]),
        element("p", {"class": "newest"}, newest),
        picture(svg, f"{panel['title']}: {newest}"),
        legend,
        element("p", {"class": "quiet"}, " ".join(notes)),
    )


def _label(panel: dict[str, Any], name: str, metric: Metric, line: dict[str, Any], *, several: bool) -> str:
    """Says what a line is, where there are others beside it."""
    parts = [joined(line["runs"])] if several else []
    parts += [f"{short(field)}={value_text(value)}" for field, value in line["values"].items()]
    if not parts or len(panel["metrics"]) > 1 or metric.name != name:
        rest = metric.entry.removeprefix(parse_metric(name).entry).lstrip(".")
        entry = panel.get("entries", {}).get(rest) or rest
        parts.append(" ".join(filter(None, [panel["metrics"][name], entry])) or metric.name)
    return " · ".join(parts)


def _look(index: int) -> dict[str, str]:
    return {"color": PAGE_COLOURS[index % len(PAGE_COLOURS)]}


def draw_lines(axes: Any, drawn: Sequence[Labelled], sounded: Sequence[int] = ()) -> None:
    """Draws means with their bands, the seeds of a single line, and members that diverged, dotted."""
    for index, labelled in enumerate(drawn):
        mean, main, look = labelled.line["mean"], labelled.main, _look(index)
        living = [member for member in labelled.line["members"] if not member["diverged"]]
        if mean is not None and mean["low"] is not None and len(drawn) <= MOST_BANDED:
            axes.fill_between(mean["steps"], mean["low"], mean["high"], **look, alpha=0.2, linewidth=0)
        for member in labelled.line["members"]:
            if member["diverged"]:
                axes.plot(member["steps"], member["y"], ":", **look, linewidth=1)
            elif len(drawn) == 1 and len(living) > 1:
                axes.plot(member["steps"], member["y"], **look, linewidth=0.6, alpha=0.6)
        marker = "o" if len(main["y"]) == 1 else ""  # a line of one point cannot be seen
        axes.plot(main["steps"], main["y"], **look, linewidth=1.6, marker=marker, markersize=4, gid=f"line-{index}")
    for step in sounded:
        axes.axvline(step, color=RED, linewidth=1, linestyle="--")
    _finish(axes, "steps")
    axes.xaxis.set_major_formatter(STEPS)


def _finish(axes: Any, x_label: str) -> None:
    axes.set_xlabel(x_label)
    axes.locator_params(nbins=5)
    axes.yaxis.set_major_formatter(VALUES)
    axes.grid(color=GREY, alpha=0.25, linewidth=0.6)


def _newest(drawn: Sequence[Labelled]) -> str:
    newest = []
    for labelled in drawn if len(drawn) <= 4 else ():
        main = labelled.main
        banded = len(drawn) == 1 and len(labelled.line["members"]) > 1 and main.get("low")
        within = f" [{number_text(main['low'][-1])}, {number_text(main['high'][-1])}]" if banded else ""
        name = f"{labelled.label} " if len(drawn) > 1 else ""
        newest.append(f"{name}{number_text(main['y'][-1])}{within}")
    last = max(labelled.main["steps"][-1] for labelled in drawn)
    return f"{'; '.join(newest)} at step {last:,}" if newest else ""


def _bars(panel: dict[str, Any], pool: Pool, metrics: Sequence[Metric]) -> Html | None:
    """Draws the newest counts of the first member that has any, as the dashboard does."""
    newest = {}
    for metric in metrics:
        members = [member for line in lines(pool, metric, Window(POINTS)) for member in line["members"]]
        if members:
            newest[metric] = (members[0]["y"][-1], members[0]["member"])
    counts = np.array([value for metric, (value, _) in newest.items() if metric.field in BINS], np.float64)
    if not len(counts):
        return None
    edges = {metric.entry: value for metric, (value, _) in newest.items() if metric.field not in BINS}
    span = edges.get("low", -1.0), edges.get("high", 1.0)
    svg = page_picture(partial(draw_bars, counts=counts, span=span, x_label=panel["bars"]), SIZE)
    return _card(panel, f"of {next(iter(newest.values()))[1]}", svg, None, [panel["note"]])


def draw_bars(axes: Any, counts: Any, span: tuple[float, float], x_label: str) -> None:
    """Draws counts of equal bins over a span."""
    low, high = span if span[0] < span[1] else (span[0] - 0.5, span[0] + 0.5)
    axes.stairs(counts, np.linspace(low, high, len(counts) + 1), fill=True, color=PAGE_COLOURS[0])
    _finish(axes, x_label)
