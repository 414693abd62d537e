"""The pages in a real browser: they follow a run while it trains, control it, and ask no other host for anything."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import imageio_ffmpeg
import numpy as np
import pytest

from dash_client import served
from fake_runs import evaluation, update, write_run
from t3d.dash.process import address_of
from t3d.events import Alarm, StepsTaken, to_line

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("the tests of the pages need Chromium (apt install chromium)", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api", reason="the tests of the pages need playwright")
from playwright.sync_api import Browser, BrowserContext, Page, expect  # noqa: E402

SMALL = "--random-steps 100 --td3.batch-size 8 --td3.actor-hidden 8 --td3.critic-hidden 8 --log.every-steps 50"
LIVE = f"{SMALL} --eval.every-steps 500 --eval.episodes 1 --no-video --run.name live --total-steps 1000000"
SECONDS = 60_000  # milliseconds to wait for what has no limit of its own: the machine may be busy
NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A browser that fails the test if a page reports an error, or asks another host for anything."""
    made = browser.new_context(viewport={"width": 1280, "height": 900})
    made.set_default_timeout(SECONDS)
    expect.set_options(timeout=SECONDS)
    errors: list[str] = []
    hosts: set[str | None] = set()
    made.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    made.on("weberror", lambda error: errors.append(str(error.error)))
    made.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
    yield made
    made.close()
    assert hosts - {None} == {"127.0.0.1"}
    assert errors == []


@contextmanager
def training(folder: Path) -> Iterator[str]:
    """A run that trains with the dashboard beside it; provides its address."""
    command = [sys.executable, "-m", "t3d", "train", "Pendulum-v1", "--dash", *LIVE.split()]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield line.removeprefix("dashboard: ").strip()
        finally:
            process.send_signal(signal.SIGKILL)


def open_page(context: BrowserContext, address: str, part: str = "") -> Page:
    """Opens an address with its token, and then a part of the page."""
    page = context.new_page()
    page.goto(address)
    page.wait_for_url(re.compile(r"/(#.*)?$"))
    page.evaluate("part => { location.hash = part; }", part)
    return page


def usual_seconds(change: Callable[[int], None], shown: Callable[[int], None]) -> float:
    """The median time of three from a change to where it is shown: a busy machine may delay one."""
    found = []
    for number in range(3):
        change(number)
        started = time.monotonic()
        shown(number)
        found.append(time.monotonic() - started)
    return sorted(found)[1]


def test_a_run_is_watched_paused_and_stopped_while_it_trains(context: BrowserContext, tmp_path: Path) -> None:
    with training(tmp_path) as address:
        page = open_page(context, address)
        page.get_by_role("link", name="live", exact=True).click()
        badge = page.locator("h1 .badge")
        expect(badge).to_have_text("running")
        chart = page.get_by_role("region", name="Return of training episodes")
        expect(chart.locator(".plot .main-svg").first).to_be_visible()
        said = chart.locator(".newest").inner_text()
        expect(chart.locator(".newest")).not_to_have_text(said)  # the next episode, while it trains

        page.get_by_role("button", name="Pause").click()
        expect(badge).to_have_text("paused")
        page.get_by_role("button", name="Save a checkpoint").click()
        expect(page.get_by_text("Saved.")).to_be_visible()
        page.get_by_role("button", name="Go on").click()
        expect(badge).to_have_text("running")

        page.get_by_role("button", name="Stop …").click()
        page.get_by_role("button", name="Let it train").click()
        expect(page.get_by_role("dialog")).to_be_hidden()
        page.get_by_role("button", name="Stop …").click()
        page.get_by_role("button", name="Stop the run").click()
        expect(badge).to_have_text("stopped")
        page.close()


def test_a_live_update_is_on_the_screen_within_two_seconds(context: BrowserContext, tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", {0: [1.0]})
    with served(tmp_path) as access:
        page = open_page(context, address_of(access), "#/run/a")
        newest = page.get_by_role("region", name="Return of evaluations").locator(".newest")
        expect(newest).to_have_text("1 at step 0")

        def grow(number: int) -> None:
            with (path / "events.jsonl").open("a") as log:
                log.write(to_line(evaluation(0, 0, 1000 * (number + 1), 10.0 + number)) + "\n")

        def shown(number: int) -> None:
            expect(newest).to_have_text(f"{10 + number} at step {number + 1},000")

        assert usual_seconds(grow, shown) < 2.0
        page.close()


def test_an_alarm_is_shown_in_words_and_run_folders_cannot_add_html(context: BrowserContext, tmp_path: Path) -> None:
    alarm = Alarm(step=1000, member=0, seed=0, kind="saturated", text=f"the actor {NASTY}", advice="a lower rate")
    path = write_run(tmp_path / "<b>a", {0: [1.0, 2.0]}, env=NASTY, events=[alarm])
    (path / "notes.json").write_text('{"tags": ["<i>tag"], "note": "<u>note"}')
    with served(tmp_path) as access:
        page = open_page(context, address_of(access))
        expect(page.locator("td.env")).to_have_text(NASTY)
        page.get_by_role("link", name="<b>a").click()
        box = page.get_by_role("region", name="Alarms")
        expect(box).to_contain_text(f"seed-0, step 1,000: the actor {NASTY} Try: a lower rate")
        expect(page.get_by_text("<u>note")).to_be_visible()
        assert page.locator("main").locator("img, b, i, u").count() == 0
        page.close()


def test_zooming_into_one_chart_zooms_all_and_asks_for_more_detail(context: BrowserContext, tmp_path: Path) -> None:
    updates = [update(0, 0, step, float(step % 7)) for step in range(100, 20_000, 10)]
    write_run(tmp_path / "a", {0: [1.0, 2.0]}, events=updates)
    with served(tmp_path) as access:
        page = open_page(context, address_of(access), "#/run/a")
        chart = page.get_by_role("region", name="Values and targets")
        drag = chart.locator(".nsewdrag")
        drag.scroll_into_view_if_needed()
        box = drag.bounding_box()
        assert box is not None
        middle = box["y"] + box["height"] / 2
        with page.expect_request(re.compile(r"/series\?.*from=\d")) as asked:
            page.mouse.move(box["x"] + box["width"] * 0.25, middle)
            page.mouse.down()
            page.mouse.move(box["x"] + box["width"] * 0.5, middle, steps=5)
            page.mouse.up()
        found = re.search(r"from=([\d.]+)&to=([\d.]+)", asked.value.url)
        assert found is not None
        assert 4000 < float(found[1]) < 6000 and 9000 < float(found[2]) < 11_000
        first, last = page.get_by_label("From"), page.get_by_label("to", exact=True)
        assert 4000 < int(first.input_value()) < 6000 and 9000 < int(last.input_value()) < 11_000
        page.get_by_role("button", name="Show all").click()
        expect(first).to_have_value("")
        first.fill("1000")
        last.fill("2000")
        with page.expect_request(re.compile(r"from=1000&to=2000")):
            last.press("Enter")
        page.close()


def test_runs_are_found_sorted_and_compared_with_the_keyboard(context: BrowserContext, tmp_path: Path) -> None:
    write_run(tmp_path / "low", {0: [1.0, 2.0], 1: [2.0, 3.0]}, env="Pendulum-v1")
    write_run(tmp_path / "high", {0: [5.0, 6.0]}, env="Hopper-v5", td3={"gamma": 0.9})
    write_run(tmp_path / "other", {0: [3.0]}, env="Hopper-v5")
    with served(tmp_path) as access:
        page = open_page(context, address_of(access))
        names = page.locator("td.name a")
        page.get_by_role("button", name="Run", exact=True).press("Enter")
        expect(names).to_have_text(["high", "low", "other"])
        page.keyboard.press("/")
        page.keyboard.type("hopper")
        expect(names).to_have_text(["high", "other"])
        page.get_by_role("searchbox").fill("")
        expect(names).to_have_count(3)
        names.first.focus()
        page.keyboard.press("ArrowDown")
        expect(names.nth(1)).to_be_focused()
        page.get_by_label("Compare low").press("Space")
        page.get_by_label("Compare high").press("Space")
        page.get_by_role("link", name="Compare 2 runs").press("Enter")
        chart = page.get_by_role("region", name="Return of evaluations")
        expect(chart.locator(".newest")).to_have_text("low 2.5, high 6 at step 1,000")
        expect(page.get_by_role("row", name=re.compile(r"td3\.gamma"))).to_contain_text("0.9")
        page.close()


def wait_until_it_plays(page: Page) -> None:
    until = time.monotonic() + SECONDS / 1000
    while not page.evaluate("document.querySelector('video').currentTime > 0.1"):
        assert time.monotonic() < until
        page.wait_for_timeout(50)


def test_videos_play_and_the_slider_chooses_among_them(context: BrowserContext, tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", {0: [1.0]})
    (path / "videos").mkdir()
    for step in (1000, 2000):
        writer = imageio_ffmpeg.write_frames(str(path / "videos" / f"seed-0-step-{step}.mp4"), (64, 64), fps=10)
        writer.send(None)
        for shade in range(10):
            writer.send(np.full((64, 64, 3), 20 * shade, np.uint8))
        writer.close()
    with served(tmp_path) as access:
        page = open_page(context, address_of(access), "#/run/a/videos")
        expect(page.get_by_text("step 2,000, 2 of 2")).to_be_visible()
        wait_until_it_plays(page)
        page.get_by_role("slider").press("ArrowLeft")
        expect(page.get_by_text("step 1,000, 1 of 2")).to_be_visible()
        wait_until_it_plays(page)
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "part", ["#/", "#/run/a", "#/run/a/steps", "#/run/a/config", "#/run/a/journal", "#/compare?run=a&run=b"]
)
def test_nothing_is_wider_than_a_phone(context: BrowserContext, tmp_path: Path, scheme: str, part: str) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, {0: [1.0, 2.0]}, events=[update(0, 0, 1000, 1.0)])
    with served(tmp_path) as access:
        page = open_page(context, address_of(access), part)
        page.set_viewport_size({"width": 390, "height": 844})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        expect(page.get_by_text("Pendulum-v1").first).to_be_attached()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] < 128")
        assert dark == (scheme == "dark")
        page.close()


def test_a_page_says_when_the_server_is_gone_and_goes_on_when_it_is_back(browser: Browser, tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", {0: [1.0]})
    page = browser.new_page()
    expect.set_options(timeout=SECONDS)
    with served(tmp_path) as access:
        page.goto(f"{address_of(access).partition('?')[0]}#/run/a")
        expect(page.locator("h1")).to_contain_text("a")
        expect(page.locator("#connection")).to_be_hidden()
        page.route("**/api/**", lambda route: route.abort())
        path.rename(tmp_path / "b")
        expect(page.get_by_text("The dashboard's server does not answer")).to_be_visible()
        page.unroute("**/api/**")
        expect(page.locator("#connection")).to_be_hidden()
        expect(page.get_by_role("alert").first).to_contain_text("there is no run of this name")
        (tmp_path / "b").rename(path)
        expect(page.get_by_role("alert").first).to_be_hidden()
    page.close()


def test_without_the_token_the_page_explains_how_to_get_it(browser: Browser, tmp_path: Path) -> None:
    expect.set_options(timeout=SECONDS)
    with training(tmp_path) as address:
        page = browser.new_page()
        page.goto(f"{address.partition('?')[0]}#/run/live")
        expect(page.get_by_text("open the address that t3d dash printed")).to_be_visible()
        expect(page.get_by_role("button", name="Pause")).to_be_disabled()
        page.close()


def test_settings_are_compared_with_those_of_another_run(context: BrowserContext, tmp_path: Path) -> None:
    write_run(tmp_path / "a", {0: [1.0]}, td3={"gamma": 0.9})
    write_run(tmp_path / "b", {0: [1.0]}, td3={"tau": 0.5})
    with served(tmp_path) as access:
        page = open_page(context, address_of(access), "#/run/a/config")
        changed = page.locator(".card", has_text="What differs from the defaults")
        difference = page.locator(".card", has_text="Difference to another run")
        expect(changed.get_by_role("row", name="td3.gamma")).to_have_text("td3.gamma0.90.99")
        page.get_by_label("Compare with").select_option("b")
        expect(difference.locator("tbody tr")).to_have_text(["td3.gamma0.90.99", "td3.tau0.0050.5"])
        page.close()


def test_the_fifteen_steps_have_the_numbers_of_the_newest_update(context: BrowserContext, tmp_path: Path) -> None:
    values = {"q": {"shape": [2, 8], "mean": 12.5, "std": 0.5, "first": [12.0, 12.5, 13.0]}}
    taken = StepsTaken(step=1000, time=1e9, member=0, seed=0, updates=900, values=values)
    write_run(tmp_path / "a", {0: [1.0]}, events=[taken])
    with served(tmp_path) as access:
        page = open_page(context, address_of(access), "#/run/a/steps")
        cards = page.get_by_role("article")
        expect(cards).to_have_count(15)
        expect(page.get_by_text("Update 900, at step 1,000")).to_be_visible()
        expect(cards.nth(9).get_by_role("row", name=re.compile("^q "))).to_have_text("q12.50.512, 12.5, 132 × 8")
        page.close()
