"""Takes the pictures of the dashboard and of a report in docs/img, with Chromium through playwright:

python experiments/dash_pictures.py RUNS_DIR RUN OTHER LIVE BROKEN

RUN is a finished run, OTHER one to compare it with, LIVE one that trains meanwhile, BROKEN one with alarms.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from playwright.sync_api import Browser, sync_playwright

PICTURES = Path("docs/img")
HEIGHTS = {1280: 900, 390: 844}  # by width: a desktop's window and a phone's
MOMENT, PATIENCE = 3000, 120_000  # milliseconds in which charts are drawn, and that a picture may take
OVERLONG = (2420, 0.75)  # height of the report's picture, and its scale


def take(
    browser: Browser, address: str, name: str, size: tuple[int, int], scale: float = 1.0, scrolled: int = 0
) -> None:
    """Saves what a page shows; the name of the picture ends with the scheme of its colours."""
    width, height = size
    scheme: Literal["dark", "light"] = "dark" if name.endswith("dark") else "light"
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme, device_scale_factor=scale)
    page.goto(address.partition("#")[0])
    page.wait_for_timeout(MOMENT if "#" in address else 0)  # the page that stores the token leads to the other
    page.evaluate("part => { location.hash = part; }", address.partition("#")[2])
    page.wait_for_timeout(MOMENT)
    page.evaluate("by => window.scrollTo(0, by)", scrolled)
    page.evaluate("() => { const root = document.getElementById('root'); if (root) root.textContent = 'runs'; }")
    page.wait_for_timeout(MOMENT)
    page.screenshot(path=PICTURES / f"{name}.png", timeout=PATIENCE)
    page.close()
    print(f"{PICTURES / name}.png", flush=True)


def main(root: str, *names: str) -> None:
    run, other, live, broken = (quote(name, safe="") for name in names)
    shots = {  # by name: part of the page, width, and how far down
        "dash-run-1280-light": (f"#/run/{run}", 1280, 0),
        "dash-run-390-light": (f"#/run/{live}", 390, 0),
        "dash-alarm-1280-light": (f"#/run/{broken}", 1280, 0),
        "dash-compare-1280-dark": (f"#/compare?run={other}&run={broken}", 1280, 0),
    }
    t3d = [sys.executable, "-m", "t3d"]
    with (
        sync_playwright() as playwright,
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen([*t3d, "dash", root, "--port", "0"], stdout=subprocess.PIPE, text=True) as server,
    ):
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        assert server.stdout is not None
        address = server.stdout.readline().split()[1]
        for name, (part, width, scrolled) in shots.items():
            take(browser, address + part, name, (width, HEIGHTS[width]), scrolled=scrolled)
        server.terminate()
        report = Path(folder) / "report.html"
        subprocess.run([*t3d, "report", other, "--root", root, "--out", str(report)], check=True)
        height, scale = OVERLONG
        take(browser, report.as_uri(), "report-1280-light", (1280, height), scale)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
