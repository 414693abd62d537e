"""A report in a real browser: it opens from a file, asks for nothing else, and suits phones, the dark and paper."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest

from browsers import SECONDS, Browser, Page, _browser  # noqa: F401 (a fixture)
from fake_runs import diagnosis, update, write_run
from t3d.app.cli import main
from t3d.events import Alarm, Event

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two runs with long names, alarms and a video."""
    root = tmp_path_factory.mktemp("runs")
    for name, base in (("a-run-with-a-name-that-is-as-long-as-names-become-in-practice", 0.0), ("other", 5.0)):
        events: list[Event] = [update(seed, seed, step, base) for seed in range(2) for step in range(100, 2000, 100)]
        events += [diagnosis({"step": 1000, "member": seed, "seed": seed, "time": 1e9}) for seed in range(2)]
        events.append(Alarm(step=9, member=0, seed=0, kind="dead-units", text="x" * 200, advice="less"))
        write_run(
            root / name, {0: [base, 1.0, 2.0], 1: [base, 2.0, 3.0]}, events=events, td3={"gamma": 0.9 + base / 100}
        )
    writer = imageio_ffmpeg.write_frames(str(root / "other" / "video.mp4"), (64, 64), fps=10)
    writer.send(None)
    for shade in range(10):
        writer.send(np.full((64, 64, 3), 20 * shade, np.uint8))
    writer.close()
    runs = [str(path) for path in sorted(root.iterdir())]
    assert main(["report", *runs, "--out", str(root / "report.html")]) == 0
    return root / "report.html"


def open_file(browser: Browser, file: Path, **how: Any) -> tuple[Page, list[str], list[str]]:
    """Opens a report; returns it, what it asked for, and what the browser complained about."""
    page = browser.new_page(**how)
    page.set_default_timeout(SECONDS)
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url.partition(",")[0]))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(file.as_uri())
    return page, asked, complaints


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_from_a_file_and_asks_for_nothing(browser: Browser, file: Path, scheme: str, width: int) -> None:
    page, asked, complaints = open_file(browser, file, viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert page.locator("h1").first.inner_text() == "Report of 2 runs"
    pictures = page.locator(".charts img")
    assert pictures.count() > 10
    assert pictures.evaluate_all("all => all.every((one) => one.naturalWidth > 100 && one.naturalHeight > 50)")
    page.mouse.wheel(0, 20_000)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] < 128")
    assert dark == (scheme == "dark")
    assert {*asked} <= {file.as_uri(), "data:video/mp4;base64", "data:image/svg+xml;base64"} and complaints == []
    page.close()


def test_the_video_inside_it_plays(browser: Browser, file: Path) -> None:
    page, *_ = open_file(browser, file)
    page.locator("video").evaluate("video => video.play()")
    until = time.monotonic() + SECONDS / 1000  # wait_for_function would run a script, which the page forbids
    while not page.evaluate("document.querySelector('video').currentTime > 0.1"):
        assert time.monotonic() < until
        page.wait_for_timeout(50)
    page.close()


def test_on_paper_it_is_black_on_white_without_what_paper_cannot_do(browser: Browser, file: Path) -> None:
    page, *_ = open_file(browser, file, color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert not page.locator("video").is_visible() and page.locator(".charts img").first.is_visible()
    page.close()
