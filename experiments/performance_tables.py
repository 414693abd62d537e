"""Prints the tables of docs/performance.md from `t3d bench --json` files: experiments/performance_tables.py FILE..."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from t3d.bench.command import COLUMNS, compared, plain


def table(rows: list[dict[str, Any]], note: str) -> str:
    """Formats rows of `t3d bench` as Markdown, each compared with the first of its case."""
    columns = [key for key in COLUMNS if key != "device"]
    lines = [f"| {' | '.join(columns)} | best | median | times the first |", "|---" * (len(columns) + 3) + "|"]
    for row, figures in compared(rows):
        cells = [plain(row[key]).replace(" ", "-") + (note if key == "engine" else "") for key in columns]
        lines.append(f"| {' | '.join([*cells, *figures])} |")
    return "\n".join(lines)


def main(files: list[Path]) -> None:
    for file in files:
        bench = json.loads(file.read_text())
        machine, versions = bench["machine"], bench["versions"]
        where = machine["gpu"] or versions["cpu"]
        extra = " with TF32" if machine["tf32"] else ""
        made = f"T3D {versions['t3d']}, torch {versions['torch']}, Python {versions['python']}"
        print(f"\n`{file}`: {where}{extra}, {made}\n")
        print(table(bench["rows"], "" if machine.get("inductor", True) else ", without Inductor"))


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
