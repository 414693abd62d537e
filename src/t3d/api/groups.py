"""Several runs at once: compared, and reported on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from t3d.config.metrics import RETURN
from t3d.errors import UserError
from t3d.insight.comparison import Comparison
from t3d.insight.comparison import compare as compare_groups
from t3d.insight.groups import read_groups, run_paths
from t3d.insight.html import check_folder, write_page

if TYPE_CHECKING:
    from t3d.api.run import Run

MOST_RUNS = 30  # in one report; chosen
Named: TypeAlias = "Run | str | Path"  # a run, its path, or a word that names a group of runs


def compare(
    *others: Named,
    names: Sequence[str] = (),
    metric: str = RETURN,
    threshold: float | None = None,
    at: int | None = None,
    root: str | Path = "runs",
) -> Comparison:
    """Compares runs, folders of runs or patterns with the first, with intervals over seeds."""
    if not others:
        raise UserError("name the groups to compare, e.g. t3d compare runs/<name> runs/<other>")
    if threshold is not None and not math.isfinite(threshold):
        raise UserError(f"--threshold {threshold} is no number that can be reached")
    compared = read_groups([*map(word_of, others)], Path(root))
    if names and len(names) != len(compared):
        known = ", ".join(group.name for group in compared)
        raise UserError(f"--names gives {len(names)} names to {len(compared)} groups: {known}")
    compared = [group._replace(name=name) for group, name in zip(compared, names, strict=True)] if names else compared
    return compare_groups(compared, metric, threshold, at)


def report(*named: Named, out: str | Path | None = None, root: str | Path = "runs") -> Path:
    """Writes one HTML file about runs, which it compares if they are several; returns its path."""
    from t3d.insight.report import report as report_page  # noqa: PLC0415 (takes 0.1 s)

    words, root, out = [*map(word_of, named)], Path(root), None if out is None else Path(out)
    if not words:
        raise UserError("name at least one run, e.g. t3d report runs/<name>")
    check_folder(out)
    paths = [*dict.fromkeys(path for word in words for path in run_paths(word, root))]
    if len(paths) > MOST_RUNS:
        raise UserError(f"these are {len(paths)} runs, and a report has at most {MOST_RUNS}; name fewer")
    compared, refused = None, ""
    try:
        known = read_groups(words, root)
        compared = compare_groups(known) if len(known) > 1 else None
    except UserError as error:
        refused = str(error) if len(paths) > 1 else ""
    content = report_page(paths, compared, refused).encode(errors="replace")
    return write_page(content, out, paths[0] / "report.html" if len(paths) == 1 else Path("report.html"))


def word_of(run: Named) -> str:
    """Returns what names a run, or a group of runs, on the command line."""
    return str(run if isinstance(run, str | Path) else run.path)
