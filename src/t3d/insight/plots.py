"""Plots learning curves, and any other metric, from run folders: what is a line, what it is called, how it looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from t3d.config import Member
from t3d.config.metrics import RETURN, SUCCESS, parse_metrics
from t3d.config.sweeps import by_values, counted, short, swept, value_text
from t3d.errors import UserError
from t3d.files import readable
from t3d.insight.curves import DrawnRun, Window, lines
from t3d.insight.drawing import drawing, look, save
from t3d.insight.groups import joined, pooled
from t3d.insight.report_charts import MOST_BANDED, Labelled, draw_lines, ending_highest
from t3d.insight.statistics import differ
from t3d.store.columns import read_metric
from t3d.store.metrics import Metric, parse_metric
from t3d.store.reader import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_DRAWN, DRAWN_OF_MORE = 24, 12  # combinations of a sweep: one for each colour and style; the second is chosen
ALL = Window(points=10**9, deviation=True)  # of steps and reports
LABELS = {"steps": "environment steps per seed", "time": "minutes since the first evaluation or report"}


def plot_curves(runs: Sequence[Run], out: Path, **how: Any) -> None:
    """Draws curves into a file; a link at out is replaced, not followed."""
    save(draw_curves(runs, **how), out)


def draw_curves(
    runs: Sequence[Run],
    *,
    seed: int | str | None = None,
    x: Literal["steps", "time"] = "steps",
    smooth: int = 1,
    metric: str = RETURN,
    pool: bool = True,
) -> Figure:
    """Draws evaluation returns or another metric: the mean over seeds, a band of one standard deviation, thin seeds.

    Runs that differ only in their seeds are one line, unless pool is False or one seed is asked for. A sweep has a line
    for each combination of its values, without thin ones, and bands only where they can be told apart.
    """
    if smooth < 1:
        raise UserError(f"smooth={smooth} is too small; 1 plots every evaluation as it is")
    for run in runs if metric == RETURN else ():
        run.best_member()  # raises if there is nothing to plot
    pools = pooled(runs) if pool and seed is None else [[run] for run in runs]
    drawn = _lines(pools, metric, seed)
    banded = len(drawn) <= MOST_BANDED
    with drawing(_size(drawn)) as figure:
        axes = figure.subplots()
        draw_lines(axes, drawn, look, x, smooth, seeds=True)
        if x == "steps" and len(pools) == 1:
            start = runs[0].cfg.steps_before_learning
            axes.axvline(start, color="#999999", linewidth=0.8, linestyle=":", label="learning starts")
        axes.set_title(_title(runs, seed, smooth))
        axes.set_xlabel(LABELS[x])
        of_first_set = {RETURN, SUCCESS, *(name for run in runs for name in parse_metrics(run.cfg.env.metrics))}
        sets = {run.cfg.eval.set_names[0] for run in runs if metric in of_first_set}
        in_set = "".join(f" ({name})" for name in sorted(sets) if name)
        axes.set_ylabel(f"mean return in evaluation{in_set}, no noise" if metric == RETURN else f"{metric}{in_set}")
        axes.grid(alpha=0.3)
        if parse_metric(metric).is_share:
            axes.set_ylim(-0.04, 1.04)  # where a band of one deviation may go beyond
        title = None if seed is not None else _legend_title(pools, banded=banded)
        if banded:
            axes.legend(loc="best", frameon=False, title=title)
        else:
            beside: dict[str, Any] = {"loc": "outside right upper", "fontsize": "small", "title_fontsize": "small"}
            figure.legend(**beside, frameon=False, handlelength=3, alignment="left", title=title)
    return figure


def _lines(pools: Sequence[Sequence[Run]], name: str, seed: int | str | None) -> list[Labelled]:
    """Returns one line for each pool of runs, in a sweep one for each combination of values; or those of one member."""
    metrics, columns = read_metric([run.path for pool in pools for run in pool], name)
    drawn = list[Labelled]()
    for pool in pools:
        runs = [DrawnRun(readable(run.path.name), columns[run.path]) for run in pool]
        of_run = f"{joined([run.name for run in runs])}: " if len(pools) > 1 else ""
        only = None if seed is None else pool[0].member(seed)
        seeds = 0 if only else sum(len(run.cfg.seeds) for run in pool)
        for metric in metrics:
            prefix, of_metric = of_run + (f"{metric.entry}: " if len(metrics) > 1 else ""), list[Labelled]()
            for line in lines(runs, metric, ALL, only):
                label, lost = _labels(line, metric, seeds)
                of_metric.append(Labelled(prefix + label, line, prefix + lost))
            drawn += of_metric if len(of_metric) <= MOST_DRAWN else ending_highest(of_metric, DRAWN_OF_MORE)
    if len(metrics) > 1 and len(drawn) > MOST_DRAWN:
        names = joined([metric.name for metric in metrics])
        raise UserError(f"{name} would make {len(drawn)} lines; choose one of its entries: {names}")
    return drawn


def _labels(line: Mapping[str, Any], metric: Metric, seeds: int) -> tuple[str, str]:
    """Says what a line is the mean of, of how many seeds (0: of a named one) and where it ends; and which diverged."""
    values, members = line["values"], line["members"]
    if members[0]["member"] is None:
        return f"mean of {len(members)} runs, ± std" if len(members) > 1 else "the whole run", ""
    living, diverged = ([member for member in members if member["diverged"] is gone] for gone in (False, True))
    numbers = ", ".join(str(member["seed"]) for member in diverged)
    lost = f"seed{'s' if len(diverged) > 1 else ''} {numbers} diverged"
    titles = [Member(member["seed"], tuple(values.items())).title for member in living]
    label = f"mean of {len(living)} seeds, ± std over seeds; thin: single seeds"
    if len(living) == 1 and (not values or not seeds):
        label = titles[0] + (", ± std of its episodes" if metric.name == RETURN else "")
    elif values:
        # of several settings only the values: the legend's title has their names
        names = [f"{short(field)}={value_text(value)}" for field, value in values.items()]
        combination = names[0] if len(values) == 1 else ", ".join(map(value_text, values.values()))
        count = f"{len(living)} of {seeds} seeds" if len(living) < seeds else counted(seeds, "seed")
        lost, label = f"{combination}: {lost}", f"{combination} ({count})"
    ends = [member["steps"][-1] for member in living]
    if differ(ends):  # some of its seeds went on
        label += f"; to step {min(ends):,.0f}, where {titles[ends.index(min(ends))]} ends"
    return label, lost


def _legend_title(pools: Sequence[Sequence[Run]], *, banded: bool) -> str | None:
    grids = dict.fromkeys(", ".join(map(short, swept(pool[0].cfg.members))) for pool in pools)
    mean = [f"mean over seeds{', ± std' if banded else ''}"] if any(grids) else []
    return "\n".join([*(names for names in grids if ", " in names), *mean]) or None


def _size(drawn: Sequence[Labelled]) -> tuple[float, float]:
    """The size of the figure in inches, with room for a legend beside the axes if there are many lines."""
    if len(drawn) <= MOST_BANDED:
        return 7.5, 4.5
    lost = [labelled.lost for labelled in drawn if any(member["diverged"] for member in labelled.line["members"])]
    names = [*(labelled.label for labelled in drawn if labelled.line["mean"]), *lost]
    entries, longest = len(names), max(map(len, names))
    return 8.2 + 0.075 * longest, max(4.5, 1.2 + 0.19 * entries)


def _title(runs: Sequence[Run], seed: int | str | None, smooth: int) -> str:
    title = " and ".join(dict.fromkeys(f"{run.cfg.rule_title} on {run.cfg.env.title}" for run in runs))
    title += f", averaged over {smooth} reports" if smooth > 1 else ""
    for run in runs if seed is None else ():
        count = len(by_values(run.evals))
        if count > MOST_DRAWN:
            title += f"\nthe {DRAWN_OF_MORE} of {count} combinations with the highest means of last evaluations"
    return title
