"""The documents say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def test_the_algorithm_page_points_at_the_right_lines() -> None:
    page = (ROOT / "docs" / "algorithm.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|.*\[(\w+\.py):(\d+)\]\(\.\./(src/\S+)#L(\d+)\) \|$", page, re.MULTILINE)
    assert [int(step) for step, *_ in rows] == list(range(1, 16))
    for step, name, shown, path, line in rows:
        source = (ROOT / path).read_text(encoding="utf-8").splitlines()
        assert f"Step {step}:" in source[int(line) - 1], f"step {step} is not at {path}:{line}"
        assert shown == line and path.endswith(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r'src="([^"]+)"', text)
    for target in targets:
        assert target.startswith(("http://", "https://")) or (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readme_names_only_flags_that_exist() -> None:
    from t3d.app.train import parse  # noqa: PLC0415

    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    commands = re.findall(r"^(?:\.venv/bin/)?t3d train (.+?)(?:\s+#.*)?$", text, re.MULTILINE)
    assert commands
    for command in commands:
        parse([word for word in command.split() if word != "\\"])
