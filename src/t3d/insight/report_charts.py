"""The charts of a report: those of the dashboard's run page, as pictures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from t3d.config import Config
from t3d.config.metrics import parse_metrics
from t3d.config.sweeps import short, value_text
from t3d.events import Alarm, Eval
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
    lost: str = ""  # what its members that diverged are called

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
        Labelled(_label(panel, name, metric, line, pool[0].cfg, several=len(pools) > 1), line)
        for pool in pools
        for name, metric in metrics
        for line in lines(pool, metric, Window(POINTS))
    ]
    if not known:
        return None
    drawn = ending_highest(known, MOST_LINES)
    notes = [f"The {MOST_LINES} of {len(known)} that end highest."] if len(known) > len(drawn) else []
    notes += ["Dashed in red: an alarm about this."] if sounded else []
    svg = page_picture(partial(draw_chart, drawn=drawn, sounded=sounded), SIZE)
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


def _label(
    panel: dict[str, Any], name: str, metric: Metric, line: dict[str, Any], cfg: Config, *, several: bool
) -> str:
    """Says what a line is, where there are others beside it."""
    parts = [joined(line["runs"])] if several else []
    parts += [f"{short(field)}={value_text(value)}" for field, value in line["values"].items()]
    first_set = cfg.eval.set_names[0] if metric.kind is Eval else ""
    if not parts or len(panel["metrics"]) > 1 or metric.name != name or first_set:
        rest = metric.entry.removeprefix(parse_metric(name).entry).lstrip(".") or first_set
        entry = panel.get("entries", {}).get(rest) or rest
        parts.append(" ".join(filter(None, [panel["metrics"][name], entry])) or metric.name)
    return " · ".join(parts)


def ending_highest(known: Sequence[Labelled], most: int) -> list[Labelled]:
    """Returns the lines that end highest, in their order."""
    ends = [labelled.line["mean"]["y"][-1] if labelled.line["mean"] else -np.inf for labelled in known]
    highest = sorted(range(len(known)), key=ends.__getitem__, reverse=True)
    return [known[index] for index in sorted(highest[:most])]


def _look(index: int) -> dict[str, str]:
    return {"color": PAGE_COLOURS[index % len(PAGE_COLOURS)]}


def draw_lines(
    axes: Any,
    drawn: Sequence[Labelled],
    look: Callable[[int], dict[str, Any]] = _look,
    x: Literal["steps", "time"] = "steps",
    smooth: int = 1,
    *,
    seeds: bool = False,
) -> None:
    """Draws means with their bands, and members that diverged up to where they stopped.

    Seeds are drawn, too, if there is a single line, or for each line that is none of a sweep.
    """
    for index, labelled in enumerate(drawn):
        line, style, lost = labelled.line, look(index), labelled.lost
        thin: dict[str, Any] = {"color": style["color"], "linewidth": 0.6}
        living = [member for member in line["members"] if not member["diverged"]]
        of_sweep = bool(line.get("values")) and len(drawn) > 1
        if (mean := line["mean"]) is not None:
            marker = "o" if len(mean["y"]) == 1 else ""  # a line of one point cannot be seen
            about: dict[str, Any] = {"label": labelled.label, "marker": marker, "markersize": 4, "gid": f"line-{index}"}
            axes.plot(_across(mean, x), averaged(mean["y"], smooth), **style, linewidth=1.8, zorder=2.5, **about)
            if mean["low"] is not None and len(drawn) <= MOST_BANDED and (len(living) > 1 or not of_sweep):
                ends = (averaged(mean[end], smooth) for end in ("low", "high"))
                axes.fill_between(_across(mean, x), *ends, color=style["color"], alpha=0.2, linewidth=0)
        for member in living if len(living) > 1 and (len(drawn) == 1 or (seeds and not of_sweep)) else ():
            axes.plot(_across(member, x), averaged(member["y"], smooth), **thin, alpha=0.6, marker="")
        for member in (member for member in line["members"] if member["diverged"]):
            across, y = _across(member, x), averaged(member["y"], smooth)
            axes.plot(across, y, **thin, linestyle=":", marker="")
            axes.plot(across[-1:], y[-1:], "x", color=style["color"], markersize=7, label=lost)
            lost = ""  # one label is enough
    axes.xaxis.set_major_formatter(STEPS if x == "steps" else VALUES)
    axes.yaxis.set_major_formatter(VALUES)


def _across(curve: Mapping[str, Any], x: str) -> Any:
    """The steps of a curve, or minutes since its first value."""
    return np.array(curve["steps"]) if x == "steps" else (np.array(curve["seconds"]) - curve["seconds"][0]) / 60


def averaged(values: Sequence[float], width: int) -> Any:
    """Averages each value with the ones before it, at most width in total."""
    return np.array([np.mean(values[max(0, end - width) : end]) for end in range(1, len(values) + 1)])


def draw_chart(axes: Any, drawn: Sequence[Labelled], sounded: Sequence[int] = ()) -> None:
    """Draws the lines of a chart, and where alarms sounded."""
    draw_lines(axes, drawn)
    for step in sounded:
        axes.axvline(step, color=RED, linewidth=1, linestyle="--")
    _finish(axes, "steps")


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
