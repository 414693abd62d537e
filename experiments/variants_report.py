"""Tables and pictures of what experiments/variants.py has trained."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from table1 import TASKS, paper_curve

from t3d.insight.statistics import Array, band, interval, mean, resample

LAST = 3  # evaluations whose mean is the return at the end
CLOSE = 1.001  # evaluations at steps whose ratio is smaller belong together: each waits for the slowest seed


class Report(NamedTuple):
    """The results of a study and the order of its variants, of which the first is what others are compared with."""

    study: str
    found: list[dict[str, Any]]
    names: list[str]
    beside_paper: bool

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(one["task"] for one in self.found))

    @property
    def base(self) -> str:
        return self.names[0]

    def of_task(self, task: str) -> dict[str, dict[str, Any]]:
        """Returns a task's results by variant, best first."""
        mine = [one for one in self.found if one["task"] == task]
        return {one["variant"]: one for one in sorted(mine, key=lambda one: -float(ends(one).mean()))}

    def cut(self) -> Report:
        """Returns the same without evaluations after the last that all of a task have."""
        found = []
        for task in self.tasks:
            mine = [one for one in self.found if one["task"] == task]
            last = min(curves_of(one)[0][-1] for one in mine) * CLOSE
            found += [{**one, "evaluations": cut(one["evaluations"], last)} for one in mine]
        return self._replace(found=found)


def cut(evaluations: dict[str, Any], last: float) -> dict[str, Any]:
    return {seed: [(step, value) for step, value in curve if step <= last] for seed, curve in evaluations.items()}


def ends(result: dict[str, Any]) -> Array:
    """Returns each seed's return at the end."""
    found: Array = curves_of(result)[1][:, -LAST:].mean(axis=1)
    return found


def resampled(values: Array, rng: np.random.Generator) -> Array:
    """Returns means over seeds drawn with replacement."""
    return mean([resample(values, rng)])


def tables(report: Report) -> list[str]:
    """Returns the results as tables in Markdown: over all tasks, then one for each."""
    if not report.found:
        return ["There are no results yet."]
    return [*tables_of(report.cut()), *conditions(report.found)]


def tables_of(report: Report) -> list[str]:
    lines = overall(report) if len(report.tasks) > 1 else []
    for task in report.tasks:
        mine = report.of_task(task)
        lines += [
            f"**{task}**",
            "",
            f"| variant | return at the end | difference to {report.base} | engine | steps/s | time per step |",
            "|---|---|---|---|---|---|",
            *(row(one, mine.get(report.base)) for one in mine.values()),
            *authors_row(report, task),
            "",
        ]
    return lines


def row(one: dict[str, Any], base: dict[str, Any] | None) -> str:
    values, rng = ends(one), np.random.default_rng(0)
    low, high = interval(resampled(values, rng))
    cells = [one["variant"], f"{values.mean():,.0f} [{low:,.0f}, {high:,.0f}]{diverged(one)}"]
    difference = cost = ""
    if base is not None and base is not one:
        apart = interval(resampled(values, rng) - resampled(ends(base), rng))
        difference = f"{values.mean() - ends(base).mean():+,.0f} [{apart[0]:+,.0f}, {apart[1]:+,.0f}]"
    speed = one["steps_per_second"]
    if base is not None and speed and conditions_of(one) == conditions_of(base):
        cost = f"{base['steps_per_second'] / speed:.2f} ×"
    return f"| {' | '.join([*cells, difference, one['engine'], f'{speed:,.0f}', cost])} |"


def conditions_of(one: dict[str, Any]) -> tuple[Any, ...]:
    """What speeds depend on besides the settings."""
    return one["machine"], one["actors"], one["jobs"], len(one["evaluations"])


def diverged(one: dict[str, Any]) -> str:
    count = len(one.get("diverged", []))
    return f", {count} of {len(one['evaluations'])} seeds diverged" if count else ""


def authors_row(report: Report, task: str) -> list[str]:
    """Returns the same of the authors' seeds: means of evaluations as far apart as ours, until the same step."""
    if not report.beside_paper or task not in TASKS:
        return []
    ours = next(iter(report.of_task(task).values()))
    last, curve = curves_of(ours)[0][-1], paper_curve(TASKS[task].curve)
    nearest = int(np.abs(np.array(curve["step"]) - last).argmin())
    middle, std = curve["mean_of_three"][nearest], curve["std_of_three"][nearest]
    return [f"| the authors, v1 (± standard deviation over seeds) | {middle:,.0f} ± {std:,.0f} | | | | |"]


def overall(report: Report) -> list[str]:
    """Returns how much better each variant is on average over all tasks, of those that were trained on all."""
    by_task = [report.of_task(task) for task in report.tasks]
    complete = [name for name in report.names if all(name in mine for mine in by_task)]
    if report.base not in complete or len(complete) < 2:
        return []
    rows = []
    for name in complete:
        pairs = [(ends(mine[name]), ends(mine[report.base])) for mine in by_task]
        ratio = np.mean([ours.mean() / base.mean() for ours, base in pairs])
        rng = np.random.default_rng(0)  # draws the seeds of each task on their own
        ratios = [resampled(ours, rng) / resampled(base, rng) for ours, base in pairs]
        low, high = interval(np.mean(ratios, axis=0))
        beside = [(mine[name], mine[report.base]) for mine in by_task]
        times = np.mean([base["steps_per_second"] / one["steps_per_second"] for one, base in beside])
        alike = all(conditions_of(one) == conditions_of(base) for one, base in beside)
        cost = f"{times:.2f} ×" if alike else ""
        within = "" if name == report.base else f" [{low:.2f}, {high:.2f}]"
        rows.append((ratio, f"| {name} | {ratio:.2f}{within} | {cost} |"))
    return [
        "**All tasks**",
        "",
        f"| variant | return at the end / that of {report.base} | time per step |",
        "|---|---|---|",
        *(line for _, line in sorted(rows, reverse=True)),
        "",
    ]


def conditions(found: list[dict[str, Any]]) -> list[str]:
    def all_of(values: Iterable[Any]) -> str:
        return "; ".join(dict.fromkeys(str(value) for value in values))

    ran = [f"{len(one['evaluations'])} seeds, actors {one['actors']}, {one.get('jobs', 1)} at a time" for one in found]
    versions = [f"T3D {one['versions']['t3d']}, torch {one['versions']['torch']}" for one in found]
    machines = all_of(one["machine"] for one in found)
    return [f"Trainings: {all_of(ran)}. {all_of(versions)}. Machine: {machines}."]


def draw(report: Report, docs: Path) -> None:
    """Draws both pictures and writes them and the tables into the page, if it has a place for this study."""
    import matplotlib  # noqa: PLC0415 (a GPU machine may have none)

    matplotlib.use("Agg")
    (docs / "img").mkdir(parents=True, exist_ok=True)
    draw_curves(report, docs / "img" / f"{report.study}.png")
    draw_ends(report.cut(), docs / "img" / f"{report.study}-ends.png")
    page = docs / "ablations.md"
    first, last = f"<!-- {report.study}: written by experiments/variants.py -->", f"<!-- end of {report.study} -->"
    text = page.read_text() if page.exists() else ""
    if first not in text:
        return
    before, rest = text.split(first)
    images = [
        f"![Return at the end of each variant](img/{report.study}-ends.png)",
        f"![Learning curves](img/{report.study}.png)",
    ]
    middle = "\n\n".join([first, "\n".join(tables(report)), *images, last])
    page.write_text(before + middle + rest.split(last)[1])


def draw_curves(report: Report, file: Path) -> None:
    """Draws means over seeds with 95 % intervals, one panel for each task."""
    from matplotlib import pyplot  # noqa: PLC0415

    tasks, colours = report.tasks, colours_of(report)
    figure, axes = panels(len(tasks), 4.0)
    lines: dict[str, Any] = {}
    for task, axis in zip(tasks, axes, strict=True):
        mine = report.of_task(task)
        for name in [name for name in report.names if name in mine]:
            steps, curves = curves_of(mine[name])
            means = band(mean, curves)
            (lines[name],) = axis.plot(steps, means.value, color=colours[name], linewidth=1.5)
            axis.fill_between(steps, means.low, means.high, color=colours[name], alpha=0.12, linewidth=0)
        axis.set_xlim(right=1.02 * max(curves_of(one)[0][-1] for one in mine.values()))
        if report.beside_paper and task in TASKS:
            authors = {key: np.array(values) for key, values in paper_curve(TASKS[task].curve).items()}
            middle, std = authors["mean"], authors["std"]
            (lines["the authors, v1"],) = axis.plot(authors["step"], middle, color="tab:gray", linewidth=1.5)
            axis.fill_between(authors["step"], middle - std, middle + std, color="tab:gray", alpha=0.12, linewidth=0)
        axis.set(title=task, xlabel="steps")
        axis.grid(alpha=0.3)
    for axis in axes[::2]:
        axis.set_ylabel("mean return of an evaluation")
    figure.legend(lines.values(), lines.keys(), loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def panels(count: int, height: float) -> tuple[Any, list[Any]]:
    """Returns a figure and the axes of its panels, two in a row."""
    from matplotlib import pyplot  # noqa: PLC0415

    rows, columns = (count + 1) // 2, min(count, 2)
    size = (6 * columns, height * rows + 0.5)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for empty in axes.flat[count:]:
        empty.remove()
    return figure, list(axes.flat[:count])


def curves_of(result: dict[str, Any]) -> tuple[list[int], Array]:
    """Returns steps and (seeds, evaluations); a seed that diverged stays at its last value."""
    evals = list(result["evaluations"].values())
    steps = [step for step, _ in max(evals, key=len)]
    padded = [[value for _, value in one] + [one[-1][1]] * (len(steps) - len(one)) for one in evals]
    return steps, np.array(padded)


def draw_ends(report: Report, file: Path) -> None:
    """Draws the return at the end of each variant with its 95 % interval and every seed, best at the top."""
    from matplotlib import pyplot  # noqa: PLC0415

    tasks, colours = report.tasks, colours_of(report)
    figure, axes = panels(len(tasks), 1.0 + 0.35 * len(report.names))
    for task, axis in zip(tasks, axes, strict=True):
        mine = report.of_task(task)
        for place, (name, one) in enumerate(mine.items()):
            values = ends(one)
            axis.plot(
                interval(resampled(values, np.random.default_rng(0))),
                [place, place],
                color=colours[name],
                linewidth=3,
                alpha=0.5,
            )
            axis.plot(values, [place] * len(values), "|", color=colours[name], markersize=7)
            axis.plot(values.mean(), place, "o", color=colours[name])
        if report.base in mine:
            axis.axvline(ends(mine[report.base]).mean(), color="black", linewidth=0.8, linestyle=":")
        axis.set_yticks(range(len(mine)), list(mine))
        axis.set_ylim(len(mine) - 0.5, -0.5)
        axis.set(title=task, xlabel="return at the end")
        axis.grid(alpha=0.3, axis="x")
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def colours_of(report: Report) -> dict[str, Any]:
    """Returns black for what the others are compared with, and colours for these."""
    import matplotlib  # noqa: PLC0415

    table = matplotlib.colormaps["tab10" if len(report.names) <= 10 else "tab20"]
    return {name: "black" if name == report.base else table(number) for number, name in enumerate(report.names)}
