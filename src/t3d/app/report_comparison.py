"""The comparison of several runs, or of the values of a sweep, in a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from t3d.app.compare import estimated, signed
from t3d.app.report_facts import Facts
from t3d.config import plain
from t3d.insight.comparison import Comparison
from t3d.insight.html import Html, element, folded, listed, section, table
from t3d.store.details import difference

MOST_SAID = 8  # verdicts and notes that are shown at once; chosen


def comparison_section(found: Comparison, runs: Sequence[Facts]) -> Html:
    """Returns what t3d compare says, and the settings in which runs differ."""
    heads = ("group", "seeds", "mean", "IQM", "difference", "better")
    rows = [
        [
            row.name,
            str(len(row.scored.seeds)),
            estimated(row.mean),
            estimated(row.iqm),
            estimated(row.difference, signed),
            estimated(row.improvement, "{:.2f}".format),
        ]
        for row in found.rows
    ]
    base = found.rows[0].name
    meaning = (
        f"{found.score} In brackets 95 % intervals over seeds. IQM: interquartile mean. Difference: of the IQMs, to "
        f"{base}; better: how probably a seed scores higher than one of {base}."
    )
    said = [*(f"{row.verdict}." for row in found.rows[1:]), *found.notes]
    more = folded(f"{len(said) - MOST_SAID} more", listed(said[MOST_SAID:])) if len(said) > MOST_SAID else None
    boxed = element("div", {"class": "verdict"}, listed(said[:MOST_SAID]), more)
    settings = difference({one.name: one.listed for one in runs}) if len(runs) > 1 else {}
    differing = [[key, *(value_of(row[one.name]) for one in runs)] for key, row in settings.items()]
    return section(
        f"Comparison on {', '.join(found.tasks)}",
        boxed,
        table(heads, rows),
        element("p", {"class": "quiet"}, meaning),
        element("h3", None, "Settings in which the runs differ") if differing else None,
        table(("setting", *(one.name for one in runs)), differing, "words") if differing else None,
    )


def value_of(value: Any) -> str:
    """Formats a setting."""
    return "-" if value is None else plain(tuple(value) if isinstance(value, list) else value)
