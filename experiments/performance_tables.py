"""The tables of docs/performance.md from what `t3d bench --json` wrote: experiments/performance_tables.py FILE..."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def table(rows: list[dict[str, Any]], note: str) -> str:
    """Markdown; each row beside the first of its case."""
    lines = ["| what | engine | threads | batch | hidden | members | critics | best | median | times the first |"]
    lines += ["|---|---|---|---|---|---|---|---|---|---|"]
    first: dict[str, dict[str, Any]] = {}
    for row in rows:
        hidden = "-".join(map(str, row["hidden"]))
        case = " | ".join(map(str, [row["threads"], row["batch"], hidden, row["members"], row["critics"]]))
        reference = first.setdefault(f"{row['what']} {case}", row)
        if row["what"] == "update":
            best, median = f"{row['ms_best']:.3f} ms", f"{row['ms_median']:.3f} ms"
            times = reference["ms_best"] / row["ms_best"]
        else:
            best, median = "", f"{row['steps_per_second']:.0f} steps/s"
            times = row["steps_per_second"] / reference["steps_per_second"]
        lines.append(f"| {row['what']} | {row['engine']}{note} | {case} | {best} | {median} | {times:.2f} |")
    return "\n".join(lines)


def main(files: list[Path]) -> None:
    for file in files:
        bench = json.loads(file.read_text())
        machine, versions = bench["machine"], bench["versions"]
        where = machine["gpu"] or versions["cpu"]
        extra = " with TF32" if machine["tf32"] else ""
        print(f"\n`{file}`: {where}{extra}, torch {versions['torch']}, Python {versions['python']}\n")
        print(table(bench["rows"], "" if machine.get("inductor", True) else ", without Inductor"))


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
