"""Updates the links of docs/algorithm.md to the paper's steps in td3.py: python scripts/algorithm_lines.py."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE, SOURCE = ROOT / "docs/algorithm.md", ROOT / "src/t3d/algo/td3.py"


def main() -> None:
    """Rewrites the line numbers of the steps in the page."""
    lines = SOURCE.read_text(encoding="utf-8").splitlines()
    found = [(re.search(r"# Step (\d+):", line), number) for number, line in enumerate(lines, 1)]
    where = {step[1]: number for step, number in found if step}

    def linked(row: re.Match[str]) -> str:
        line = where[row[1]]
        return f"| {row[1]} |{row[2]}[td3.py:{line}](../src/t3d/algo/td3.py#L{line}) |"

    rows = r"^\| (\d+) \|(.*)\[td3\.py:\d+\]\(\S+\) \|$"
    page, count = re.subn(rows, linked, PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if count != len(where):
        raise SystemExit(f"{PAGE} has {count} links to td3.py, which has {len(where)} steps")
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
