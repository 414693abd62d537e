"""Tables of `t3d bench --json` files: `python experiments/performance_tables.py FILE...` prints theirs.

Without files it writes those of docs/lab/performance.md from the files in docs/lab/performance.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from common import write_into

from t3d.bench.command import COLUMNS, compared, plain

PAGE, FOLDER = Path("docs/lab/performance.md"), Path("docs/lab/performance")
GPU = ("gpu", "gpu-tf32", "gpu-ten", "gpu-ten-tf32", "gpu-plus", "gpu-plus-ten")
ENGINES = {"cpu": ("cpu", "cpu-400-300", "cpu-64-64", "cpu-plus"), "gpu": GPU}
GROWTH = {"CPU, `fused`, two threads": ("cpu-growth", 2), "GPU, `graph`": ("gpu-growth", 16)}  # and the threads
Size = tuple[str, ...]  # batch, width, seeds, critics


def tables(file: Path) -> str:
    """Formats a file of `t3d bench` as Markdown, each row compared with the first of its case."""
    bench = json.loads(file.read_text())
    machine, versions = bench["machine"], bench["versions"]
    where = (machine["gpu"] or versions["cpu"]) + (" with TF32" if machine["tf32"] else "")
    made = f"T3D {versions['t3d']}, torch {versions['torch']}, Python {versions['python']}"
    columns = [key for key in COLUMNS if key != "device"]
    lines = [f"`{file.name}`: {where}, {made}", ""]
    lines += [f"| {' | '.join(columns)} | best | median | times as fast |", "|---" * (len(columns) + 3) + "|"]
    for row, figures in compared(bench["rows"]):
        cells = [plain(row[key]).replace(" ", "-") for key in columns]
        lines.append(f"| {' | '.join([*cells, *figures])} |")
    return "\n".join(lines)


def growth() -> str:
    """Formats how the cost of an update grows, with one size changed at a time."""
    columns = {title: best_by_size(*file) for title, file in GROWTH.items()}
    lines = [f"| batch | width | seeds | critics | {' | '.join(columns)} |", "|---" * (4 + len(columns)) + "|"]
    for size in dict.fromkeys(size for column in columns.values() for size in column):
        lines.append(f"| {' | '.join([*size, *(column.get(size, '') for column in columns.values())])} |")
    return "\n".join(lines)


def best_by_size(name: str, threads: int) -> dict[Size, str]:
    """Milliseconds of the fastest update of each size."""
    best: dict[Size, float] = {}
    for row in json.loads((FOLDER / f"{name}.json").read_text())["rows"]:
        size = tuple(str(number) for number in (row["batch"], row["hidden"][0], row["seeds"], row["critics"]))
        if row["threads"] == threads:
            best[size] = min(row["ms_best"], best.get(size, row["ms_best"]))
    return {size: f"{milliseconds:.3f}" for size, milliseconds in best.items()}


def main(files: list[Path]) -> None:
    if files:
        print("\n\n".join(map(tables, files)))
        return
    for name, stems in ENGINES.items():
        text = "\n\n".join(tables(FOLDER / f"{stem}.json") for stem in stems)
        write_into(PAGE, name, "performance_tables.py", text)
    write_into(PAGE, "growth", "performance_tables.py", growth())


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
