"""Tables and pictures of what experiments/variants.py has trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import drawing, write_into
from table1 import TASKS, paper_curve

from t3d.insight.statistics import Array, band, interval, mean, resample

LAST = 3  # evaluations whose mean is the return at the end
CLOSE = 1.001  # evaluations at steps whose ratio is smaller belong together: each waits for the slowest seed


class Report(NamedTuple):
    """The results of a study and the order of its variants, of which the first is what others are compared with."""

    study: str
    results: list[dict[str, Any]]
    names: list[str]
    beside_paper: bool

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(result["task"] for result in self.results))

    @property
    def base(self) -> str:
        return self.names[0]

    def of_task(self, task: str) -> dict[str, dict[str, Any]]:
        """Returns a task's results by variant, best first."""
        results = [result for result in self.results if result["task"] == task]
        return {result["variant"]: result for result in sorted(results, key=lambda result: -float(ends(result).mean()))}

    def cut(self) -> Report:
        """Returns the same without evaluations after the last that all of a task have."""
        shorter = []
        for results in map(self.of_task, self.tasks):
            last = CLOSE * min(curves_of(result)[0][-1] for result in results.values())
            shorter += [{**result, "evaluations": cut(result["evaluations"], last)} for result in results.values()]
        return self._replace(results=shorter)


def cut(evaluations: dict[str, Any], last: float) -> dict[str, Any]:
    return {seed: [(step, value) for step, value in curve if step <= last] for seed, curve in evaluations.items()}


def ends(result: dict[str, Any]) -> Array:
    """Returns each seed's return at the end."""
    values: Array = curves_of(result)[1][:, -LAST:].mean(axis=1)
    return values


def resampled(values: Array, rng: np.random.Generator) -> Array:
    """Returns means over seeds drawn with replacement."""
    return mean([resample(values, rng)])


def tables(report: Report) -> list[str]:
    """Returns the results as tables in Markdown: over all tasks, then one for each."""
    if not report.results:
        return ["There are no results yet."]
    return [*tables_of(report.cut()), *conditions(report.results)]


def tables_of(report: Report) -> list[str]:
    lines = overall(report) if len(report.tasks) > 1 else []
    for task in report.tasks:
        results = report.of_task(task)
        lines += [
            f"**{task}**",
            "",
            f"| variant | return at the end | difference to {report.base} | engine | steps/s | time per step |",
            "|---|---|---|---|---|---|",
            *(row(result, results.get(report.base)) for result in results.values()),
            *authors_row(report, task),
            "",
        ]
    return lines


def row(result: dict[str, Any], base: dict[str, Any] | None) -> str:
    values, rng = ends(result), np.random.default_rng(0)
    low, high = interval(resampled(values, rng))
    cells = [result["variant"], f"{values.mean():,.0f} [{low:,.0f}, {high:,.0f}]{diverged(result)}"]
    difference = cost = ""
    if base is not None and base is not result:
        apart = interval(resampled(values, rng) - resampled(ends(base), rng))
        difference = f"{values.mean() - ends(base).mean():+,.0f} [{apart[0]:+,.0f}, {apart[1]:+,.0f}]"
    speed = result["steps_per_second"]
    if base is not None and speed and conditions_of(result) == conditions_of(base):
        cost = f"{base['steps_per_second'] / speed:.2f} ×"
    return f"| {' | '.join([*cells, difference, result['engine'], f'{speed:,.0f}', cost])} |"


def conditions_of(result: dict[str, Any]) -> tuple[Any, ...]:
    """What speeds depend on besides the settings."""
    return result["machine"], result["actors"], result["jobs"], len(result["evaluations"])


def diverged(result: dict[str, Any]) -> str:
    count = len(result.get("diverged", []))
    return f", {count} of {len(result['evaluations'])} seeds diverged" if count else ""


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
    complete = [name for name in report.names if all(name in results for results in by_task)]
    if report.base not in complete or len(complete) < 2:
        return []
    rows = []
    for name in complete:
        results = [(of_task[name], of_task[report.base]) for of_task in by_task]
        pairs = [(ends(result), ends(base)) for result, base in results]
        ratio = np.mean([ours.mean() / base.mean() for ours, base in pairs])
        rng = np.random.default_rng(0)  # draws the seeds of each task on their own
        ratios = [resampled(ours, rng) / resampled(base, rng) for ours, base in pairs]
        low, high = interval(np.mean(ratios, axis=0))
        times = np.mean([base["steps_per_second"] / result["steps_per_second"] for result, base in results])
        alike = all(conditions_of(result) == conditions_of(base) for result, base in results)
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


def conditions(results: list[dict[str, Any]]) -> list[str]:
    def all_of(values: Iterable[Any]) -> str:
        return "; ".join(dict.fromkeys(str(value) for value in values))

    seeds = [f"{len(run['evaluations'])} seeds" for run in results]
    jobs = [f"actors {run['actors']}, {run.get('jobs', 1)} at a time" for run in results]
    trainings = all_of(map(", ".join, zip(seeds, jobs, strict=True)))
    versions = all_of(f"T3D {run['versions']['t3d']}, torch {run['versions']['torch']}" for run in results)
    return [f"Trainings: {trainings}. {versions}. Machine: {all_of(run['machine'] for run in results)}."]


def draw(report: Report, docs: Path) -> None:
    """Draws both pictures and writes them and the tables into the page, if it has a place for this study."""
    (docs / "img").mkdir(parents=True, exist_ok=True)
    with panels(docs / "img" / f"{report.study}.png", len(report.tasks), 4.0) as (figure, axes):
        draw_curves(figure, axes, report)
    shorter = report.cut()
    height = 1.0 + 0.35 * len(shorter.names)
    with panels(docs / "img" / f"{report.study}-ends.png", len(shorter.tasks), height) as (_, axes):
        draw_ends(axes, shorter)
    images = [
        f"![Return at the end of each variant](../img/{report.study}-ends.png)",
        f"![Learning curves](../img/{report.study}.png)",
    ]
    write_into(
        docs / "lab" / "ablations.md", report.study, "variants.py", "\n\n".join(["\n".join(tables(report)), *images])
    )


def draw_curves(figure: Any, axes: list[Any], report: Report) -> None:
    """Draws means over seeds with 95 % intervals, one panel for each task."""
    tasks, colours = report.tasks, colours_of(report)
    lines: dict[str, Any] = {}
    for task, axis in zip(tasks, axes, strict=True):
        results = report.of_task(task)
        for name in [name for name in report.names if name in results]:
            steps, curves = curves_of(results[name])
            middle, low, high = band(mean, curves, resamples=10_000)
            (lines[name],) = axis.plot(steps, middle, color=colours[name], linewidth=1.5)
            axis.fill_between(steps, low, high, color=colours[name], alpha=0.12, linewidth=0)
        axis.set_xlim(right=1.02 * max(curves_of(result)[0][-1] for result in results.values()))
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


@contextmanager
def panels(file: Path, count: int, height: float) -> Iterator[tuple[Any, list[Any]]]:
    """Provides a figure that is then written to a file, and the axes of its panels, two in a row."""
    rows, columns = (count + 1) // 2, min(count, 2)
    with drawing(file, (6 * columns, height * rows + 0.5)) as figure:
        axes = figure.subplots(rows, columns, squeeze=False)
        for empty in axes.flat[count:]:
            empty.remove()
        yield figure, list(axes.flat[:count])


def curves_of(result: dict[str, Any]) -> tuple[list[int], Array]:
    """Returns steps and (seeds, evaluations); a seed that diverged stays at its last value."""
    evals = list(result["evaluations"].values())
    steps = [step for step, _ in max(evals, key=len)]
    padded = [[value for _, value in curve] + [curve[-1][1]] * (len(steps) - len(curve)) for curve in evals]
    return steps, np.array(padded)


def draw_ends(axes: list[Any], report: Report) -> None:
    """Draws the return at the end of each variant with its 95 % interval and every seed, best at the top."""
    tasks, colours = report.tasks, colours_of(report)
    for task, axis in zip(tasks, axes, strict=True):
        results = report.of_task(task)
        for height, (name, result) in enumerate(results.items()):
            values, colour = ends(result), colours[name]
            within = interval(resampled(values, np.random.default_rng(0)))
            axis.plot(within, [height, height], color=colour, linewidth=3, alpha=0.5)
            axis.plot(values, [height] * len(values), "|", color=colour, markersize=7)
            axis.plot(values.mean(), height, "o", color=colour)
        if report.base in results:
            axis.axvline(ends(results[report.base]).mean(), color="black", linewidth=0.8, linestyle=":")
        axis.set_yticks(range(len(results)), list(results))
        axis.set_ylim(len(results) - 0.5, -0.5)
        axis.set(title=task, xlabel="return at the end")
        axis.grid(alpha=0.3, axis="x")


def colours_of(report: Report) -> dict[str, Any]:
    """Returns black for what the others are compared with, and colours for these."""
    from matplotlib import colormaps  # noqa: PLC0415 (only pictures need it)

    table = colormaps["tab10" if len(report.names) <= 10 else "tab20"]
    return {name: "black" if name == report.base else table(number) for number, name in enumerate(report.names)}
