"""The pages in a real browser: they follow a run while it trains, control it, and ask no other host for anything."""

from __future__ import annotations

import json
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urlsplit

import imageio_ffmpeg
import numpy as np
import pytest

from browsers import SECONDS, Browser, BrowserContext, Locator, Page, _browser, expect  # noqa: F401 (a fixture)
from dash_client import served
from fake_runs import diagnosis, evaluation, update, write_long_run, write_run
from t3d.dash.process import address_of
from t3d.events import Alarm, TraceSummary, to_line

pytestmark = pytest.mark.system

SMALL = "--random-steps 100 --td3.batch-size 8 --td3.actor-hidden 8 --td3.critic-hidden 8 --log.every-steps 50"
LIVE = f"{SMALL} --eval.every-steps 500 --eval.episodes 1 --no-video --run.name live --total-steps 1000000"
LIVE += " --td3.actor-lr 1 --log.diagnose-every-steps 200"  # far too fast, which raises an alarm
LIVE += " --checkpoint.every-steps 1000000"  # so that only the page's button saves
BUSY = 20.0  # seconds that an episode may take to the screen where other tests run too; chosen
NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture
def errors() -> list[str]:
    """What the pages have reported in the browser's console."""
    return []


@pytest.fixture
def context(browser: Browser, errors: list[str]) -> Iterator[BrowserContext]:
    """A browser that fails the test if a page reports an error, or asks another host for anything."""
    made = browser.new_context(viewport={"width": 1280, "height": 900})
    made.set_default_timeout(SECONDS)
    expect.set_options(timeout=SECONDS)
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


def drag_over(page: Page, chart: Locator) -> tuple[float, float]:
    """Drags over the second quarter of a chart; returns the first and the last step that the server is asked for."""
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
    return float(found[1]), float(found[2])


def seconds_to_the_screen(newest: Locator, log: Path) -> float:
    """The median time from when a training episode was reported until its step, or a later one, is on the screen."""
    seen: list[tuple[int, float]] = []
    text = ""
    for _ in range(5):
        expect(newest).not_to_have_text(text)
        text = newest.inner_text()
        seen.append((int(text.rpartition("step ")[2].replace(",", "")), time.time()))
    written = [json.loads(line) for line in log.read_text().splitlines() if line.startswith('{"event": "episode"')]
    passed = [
        next(when for step, when in seen if step >= line["step"]) - float(line["time"])
        for line in written
        if seen[0][0] < line["step"] <= seen[-1][0]
    ]
    return statistics.median(passed)


def compare_with_other(page: Page) -> None:
    """Compares the run with another one, and waits for its next evaluation."""
    page.get_by_role("link", name="Runs", exact=True).first.click()
    page.get_by_label("Compare live").check()
    page.get_by_label("Compare other").check()
    page.get_by_role("link", name="Compare 2 runs").click()
    both = page.get_by_role("region", name="Return of evaluations").locator(".newest")
    expect(both).to_have_text(re.compile(r"live .+ at step [\d,]+, other 2 at step 1,000"))
    expect(both).not_to_have_text(both.inner_text())
    page.get_by_role("link", name="live", exact=True).click()


def save_pause_and_stop(page: Page, path: Path) -> None:
    """Does what the page's buttons do."""
    badge = page.locator("h1 .badge")
    for number in (1, 2):
        page.get_by_role("button", name="Save a checkpoint").click()
        expect(page.get_by_text("Saved.")).to_be_visible()
        assert (path / "journal.jsonl").read_text().count('"event": "saved"') == number, "it is true"
    page.get_by_role("button", name="Pause").click()
    expect(badge).to_have_text("paused")
    page.get_by_role("button", name="Continue").click()
    expect(badge).to_have_text("running")
    page.get_by_role("button", name="Stop …").click()
    page.get_by_role("button", name="Let it train").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.get_by_role("button", name="Stop …").click()
    page.get_by_role("button", name="Stop the run").click()


def test_a_run_is_watched_zoomed_compared_and_controlled_while_it_trains(
    context: BrowserContext, errors: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "runs" / "live"
    write_run(path.with_name("other"), {0: [1.0, 2.0]})
    with training(tmp_path) as address:
        page = open_page(context, address)
        page.get_by_role("link", name="live", exact=True).click()
        expect(page.locator("h1 .badge")).to_have_text("running")
        chart = page.get_by_role("region", name="Return of training episodes")
        expect(chart.locator(".plot .main-svg").first).to_be_visible()
        assert seconds_to_the_screen(chart.locator(".newest"), path / "events.jsonl") < BUSY
        expect(page.get_by_role("region", name="Alarms")).to_contain_text("the actor is saturated")
        first, last = drag_over(page, chart)
        expect(page.get_by_label("From")).to_have_value(str(round(first)))
        assert 0 < first < last
        page.get_by_role("button", name="Show all").click()

        compare_with_other(page)
        page.get_by_role("link", name="Videos").click()
        write_video(path, 0)  # as --record-every does, at a priority so low that a busy machine takes minutes
        expect(page.get_by_text("step 0, 1 of 1")).to_be_visible()
        wait_until_it_plays(page)
        save_pause_and_stop(page, path)
        assert errors == []
        expect(page.locator("h1 .badge")).to_have_text("stopped")
        page.close()
    # The server ends with the training, perhaps before the page is closed.
    errors[:] = [error for error in errors if "ERR_CONNECTION_REFUSED" not in error]


@pytest.mark.slow
def test_an_episode_is_on_the_screen_within_two_seconds(
    context: BrowserContext, errors: list[str], tmp_path: Path
) -> None:
    """On a machine that has nothing else to do."""
    with training(tmp_path) as address:
        page = open_page(context, address)
        page.get_by_role("link", name="live", exact=True).click()  # as soon as there is such a run
        newest = page.get_by_role("region", name="Return of training episodes").locator(".newest")
        assert seconds_to_the_screen(newest, tmp_path / "runs" / "live" / "events.jsonl") < 2.0
        assert errors == []
        page.close()


def test_an_alarm_is_shown_in_words_and_run_folders_cannot_add_html(context: BrowserContext, tmp_path: Path) -> None:
    alarm = Alarm(step=1000, member=0, seed=0, kind="saturated", text=f"the actor {NASTY}", advice="a lower rate")
    looked = diagnosis({"step": 1000, "member": 0, "seed": 0, "time": 1e9})
    looked = replace(looked, gradient_norms={'<a href="https://evil.example/x">actor</a>': 1.0, "&lt;b>critic": 2.0})
    path = write_run(tmp_path / "<b>a<b>", {0: [1.0, 2.0]}, env=NASTY, events=[alarm, looked])
    write_run(tmp_path / "<b>b", {0: [1.0, 2.0]}, td3={"gamma": 0.9})
    (path / "notes.json").write_text('{"tags": ["<i>tag"], "note": "<u>note"}')
    with served(tmp_path) as access:
        page = open_page(context, address_of(access))
        expect(page.locator("td.env", has_text="img")).to_have_text(NASTY)
        page.get_by_role("link", name="<b>a<b>").click()
        box = page.get_by_role("region", name="Alarms")
        expect(box).to_contain_text(f"seed-0, step 1,000: the actor {NASTY} Try: a lower rate")
        expect(page.get_by_text("<u>note")).to_be_visible()
        chart = page.get_by_role("region", name="Norms of gradients")
        chart.scroll_into_view_if_needed()
        names = chart.locator(".legendtext")
        expect(names).to_have_text(['<a href="https://evil.example/x">actor</a>', "&lt;b>critic"])
        chart.locator(".nsewdrag").hover()
        expect(chart.locator(".hoverlayer .legendtext").first).to_contain_text('<a href="')
        names_are_text = "[...document.querySelectorAll('.legendtext')].every((one) => one.childElementCount === 0)"
        assert page.evaluate(names_are_text) and page.locator("main svg a").count() == 0
        assert page.locator("main").locator("img, b, i, u").count() == 0
        asked = "&".join(f"run={quote(name)}" for name in ("<b>a<b>", "<b>b"))
        page.evaluate("part => { location.hash = part; }", f"#/compare?{asked}")
        returns = page.get_by_role("region", name="Return of evaluations")
        expect(returns.locator(".legendtext")).to_have_text(["<b>a<b>", "<b>b"])
        assert page.evaluate(names_are_text)
        page.close()


def test_events_of_a_member_that_the_run_does_not_have_are_left_out(context: BrowserContext, tmp_path: Path) -> None:
    foreign = {"step": 1000, "member": 0, "seed": 5, "time": 1e9}
    write_run(tmp_path / "a", {0: [1.0, 2.0]}, events=[update(0, 5, 1000, 1.0), diagnosis(foreign)])
    with served(tmp_path) as access:
        page = open_page(context, address_of(access), "#/run/a")
        expect(page.get_by_role("region", name="Return of evaluations").locator(".newest")).to_contain_text("2 at step")
        expect(page.get_by_role("region", name="Values and targets")).to_be_hidden()
        page.close()


def top(element: Locator) -> float:
    box = element.bounding_box()
    assert box is not None
    return box["y"]


def bottom(element: Locator) -> float:
    box = element.bounding_box()
    assert box is not None
    return box["y"] + box["height"]


def test_an_alarm_links_to_the_curve_that_shows_it(context: BrowserContext, tmp_path: Path) -> None:
    where = {"step": 1000, "member": 0, "seed": 0, "time": 1e9}
    alarm = Alarm(**where, kind="saturated-actor", text="it is saturated", advice="")  # type: ignore[arg-type]
    write_run(tmp_path / "a", {0: [1.0, 2.0]}, events=[diagnosis(where), update(0, 0, 1000, 1.0), alarm])
    with served(tmp_path) as access:
        page = open_page(context, address_of(access), "#/run/a/steps")  # from another tab, then from the same
        link = page.get_by_role("region", name="Alarms").get_by_role("link")
        chart = page.get_by_role("region", name="Saturated actions")
        for _ in range(2):
            expect(link).to_have_text(["Saturated actions (share)"])
            link.press("Enter")
            expect(chart).to_be_focused()
            expect(chart).to_be_in_viewport()
            page.evaluate("window.scrollTo(0, 0)")
        expect(chart.locator(".shapelayer path")).to_have_count(1)  # the step at which it sounded is marked
        word = chart.locator(".shapelayer text")
        expect(word).to_have_text("alarm")
        legend, axes = chart.locator(".legendtext").last, chart.locator(".nsewdrag")
        assert bottom(legend) <= top(word) + 2 and bottom(word) <= top(axes) + 2, "in a row of its own"
        other = page.get_by_role("region", name="Return of evaluations")
        expect(other.locator(".plot .main-svg").first).to_be_visible()
        expect(other.locator(".shapelayer path")).to_have_count(0)
        page.close()


def test_quantiles_are_named_in_words(context: BrowserContext, tmp_path: Path) -> None:
    write_run(tmp_path / "a", {0: [1.0]}, events=[diagnosis({"step": 1000, "member": 0, "seed": 0, "time": 1e9})])
    with served(tmp_path) as access:
        page = open_page(context, address_of(access), "#/run/a")
        age = page.get_by_role("region", name="Age of sampled transitions (steps)")
        age.scroll_into_view_if_needed()
        expect(age.locator(".newest")).to_have_text("5 % are below 1, median 2, 95 % are below 3 at step 1,000")
        errors = page.get_by_role("region", name="Quantiles of the TD errors")
        expect(errors.locator(".legendtext")).to_have_text(
            ["5 % are below", "25 % are below", "median", "75 % are below", "95 % are below"]
        )
        page.close()


def test_each_metric_of_info_has_a_chart_with_all_sets(context: BrowserContext, tmp_path: Path) -> None:
    said = [replace(evaluation(0, 0, step, 1.0), metrics={"success": 1.0, "energy": 3.0}) for step in (0, 1000)]
    windy = [replace(each, set="windy", chooses=False, metrics={"success": 0.5, "energy": 4.0}) for each in said]
    sets: dict[str, dict[str, int]] = {"calm": {}, "windy": {}}
    write_run(tmp_path / "a", {0: []}, metrics=["energy:sum"], events=[*said, *windy], eval={"sets": sets})
    with served(tmp_path) as access:
        page = open_page(context, address_of(access), "#/run/a")
        newest = page.get_by_role("region", name="Info: energy").locator(".newest")
        expect(newest).to_have_text("energy calm 3, energy windy 4 at step 1,000")
        success = page.get_by_role("region", name="Success (share of the episodes)").locator(".newest")
        expect(success).to_have_text("in evaluations calm 1, in evaluations windy 0.5 at step 1,000")
        expect(page.get_by_role("region", name="Info")).to_have_count(1)
        page.close()


def test_zooming_into_one_chart_zooms_all_and_asks_for_more_detail(context: BrowserContext, tmp_path: Path) -> None:
    updates = [update(0, 0, step, float(step % 7)) for step in range(100, 20_000, 10)]
    write_run(tmp_path / "a", {0: [1.0, 2.0]}, events=updates)
    write_run(tmp_path / "b", {0: [1.0, 2.0]}, td3={"gamma": 0.9})
    with served(tmp_path) as access:
        page = open_page(context, address_of(access), "#/run/a")
        chart = page.get_by_role("region", name="Values and targets")
        left, right = drag_over(page, chart)
        assert 4000 < left < 6000 and 9000 < right < 11_000
        first, last = page.get_by_label("From"), page.get_by_label("to", exact=True)
        assert 4000 < int(first.input_value()) < 6000 and 9000 < int(last.input_value()) < 11_000
        page.get_by_role("button", name="Show all").click()
        expect(first).to_have_value("")
        first.fill("1000")
        last.fill("2000")
        with page.expect_request(re.compile(r"from=1000&to=2000")):
            last.press("Enter")
        page.get_by_role("link", name="Configuration").click()
        page.get_by_role("link", name="Curves").click()
        expect(first).to_have_value("1000")
        for part in ("#/run/b", "#/run/a", "#/compare?run=a&run=b"):  # another run is not zoomed
            page.evaluate("part => { location.hash = part; }", part)
            expect(page.get_by_role("region", name="Return of evaluations").locator(".newest")).to_contain_text("2")
            expect(first).to_have_value("")
        page.close()


def test_very_large_and_negative_values_are_drawn_and_have_no_logarithmic_axis(
    context: BrowserContext, tmp_path: Path
) -> None:
    """Plotly writes powers of ten with styles of its own, which the page does not allow: an error in the console."""
    updates = [update(0, 0, step, -1e7 * step) for step in range(100, 2000, 100)]
    write_run(tmp_path / "a", {0: [-1e9, -2e7, -3e5]}, events=updates)
    with served(tmp_path) as access:
        page = open_page(context, address_of(access), "#/run/a")
        chart = page.get_by_role("region", name="Return of evaluations")
        expect(chart.locator(".ytick").first).to_be_visible()
        chart.get_by_role("button", name="log").click()
        expect(chart).to_contain_text("not all above 0, so there is no logarithmic axis")
        expect(chart.locator(".ytick").first).to_contain_text("e+")
        page.close()


def test_runs_are_found_sorted_and_compared_with_the_keyboard(context: BrowserContext, tmp_path: Path) -> None:
    write_run(tmp_path / "low", {0: [1.0, 2.0], 1: [2.0, 3.0]}, env="Pendulum-v1")
    alarms = [Alarm(step=step, kind="dead-units", text="", advice="") for step in (1, 2)]
    high = write_run(tmp_path / "high", {0: [5.0, 6.0]}, env="Hopper-v5", td3={"gamma": 0.9}, events=alarms)
    (high / "journal.jsonl").write_text("".join(f"{to_line(alarm)}\n" for alarm in alarms))
    write_run(tmp_path / "other", {0: [3.0]}, env="Hopper-v5")
    with served(tmp_path) as access:
        page = open_page(context, address_of(access))
        names = page.locator("td.name a")
        page.get_by_role("button", name="Run", exact=True).press("Enter")
        expect(names).to_have_text(["high", "low", "other"])
        expect(page.locator("td.alarms")).to_have_text(["2 alarms: dead units (2)", "–", "–"])
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
        page.get_by_role("link", name="2 alarms: dead units (2)").press("Enter")
        expect(page.locator("h1")).to_contain_text("high")
        page.close()


def write_video(path: Path, step: int) -> None:
    """Writes a video of a second to a run, complete or not at all."""
    (path / "videos").mkdir(exist_ok=True)
    unfinished = path / "unfinished.mp4"
    writer = imageio_ffmpeg.write_frames(str(unfinished), (64, 64), fps=10)
    writer.send(None)
    for shade in range(10):
        writer.send(np.full((64, 64, 3), 20 * shade, np.uint8))
    writer.close()
    unfinished.rename(path / "videos" / f"seed-0-step-{step}.mp4")


def wait_until_it_plays(page: Page) -> None:
    until = time.monotonic() + SECONDS / 1000
    while not page.evaluate("document.querySelector('video').currentTime > 0.1"):
        assert time.monotonic() < until
        page.wait_for_timeout(50)


def test_videos_play_and_the_slider_chooses_among_them(context: BrowserContext, tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", {0: [1.0]})
    for step in (1000, 2000):
        write_video(path, step)
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
    ("part", "content"),  # and what comes last of it
    [
        ("#/", "td.name a"),
        ("#/run/a", ".chart .legendtext"),
        ("#/run/a/steps", "article"),
        ("#/run/a/config", "th:text-is('run.name')"),
        ("#/run/a/journal", "td"),
        ("#/compare?run=a&run=b", ".chart .legendtext"),
    ],
)
def test_nothing_is_wider_than_a_phone(
    context: BrowserContext, tmp_path: Path, scheme: str, part: str, content: str
) -> None:
    for name in ("a", "b"):
        gamma = 0.9 if name == "a" else 0.99  # otherwise they are one curve
        write_run(tmp_path / name, {0: [1.0, 2.0]}, events=[update(0, 0, 1000, 1.0)], td3={"gamma": gamma})
    with served(tmp_path) as access:
        page = open_page(context, address_of(access), part)
        page.set_viewport_size({"width": 390, "height": 844})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        expect(page.get_by_text("Pendulum-v1").first).to_be_attached()
        expect(page.locator(content).first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] < 128")
        assert dark == (scheme == "dark")
        page.close()


def test_a_comparison_can_be_read_on_a_phone(context: BrowserContext, tmp_path: Path) -> None:
    names = [f"a-rather-long-name-of-run-{number}" for number in range(6)]
    for gamma, name in enumerate(names):
        write_run(tmp_path / name, {0: [1.0, 2.0]}, td3={"gamma": gamma / 10})
    with served(tmp_path) as access:
        asked = "&".join(f"run={name}" for name in names)
        page = open_page(context, address_of(access))
        page.set_viewport_size({"width": 390, "height": 844})
        page.evaluate("part => { location.hash = part; }", f"#/compare?{asked}")
        chart = page.get_by_role("region", name="Return of evaluations")
        expect(chart.locator(".legendtext")).to_have_count(6)
        box = chart.locator(".nsewdrag").bounding_box()
        assert box is not None and box["height"] > 120, "the legend leaves room for the curves"
        boxes = "[...document.querySelectorAll('.pinned .scroll')].map(box => box.scrollWidth > box.clientWidth)"
        assert page.evaluate(boxes) == [True, True], "tables scroll in boxes of their own"
        assert page.evaluate("document.querySelector('.badge').clientHeight") < 30, "words are not broken"
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.close()


LONG = "HalfCheetah-v5-plus-layer-norm-critics-actor-lr-0.0003-batch-512-second-try"


@pytest.mark.parametrize("width", [1000, 1280, 1600])
def test_charts_leave_no_hole(context: BrowserContext, tmp_path: Path, width: int) -> None:
    write_long_run(tmp_path / "a", 2_000)
    with served(tmp_path) as access:
        page = open_page(context, address_of(access), "#/run/a")
        page.set_viewport_size({"width": width, "height": 900})
        expect(page.locator(".chart .main-svg").first).to_be_visible()
        groups = page.evaluate(
            """[...document.querySelectorAll('.group:not([hidden]) .charts')].map(group => [
                 group.getBoundingClientRect().right,
                 [...group.querySelectorAll('.chart:not([hidden])')].map(chart => chart.getBoundingClientRect())
                   .map(({top, right}) => [Math.round(top), right])])"""
        )
        counts = [len(charts) for _, charts in groups]
        assert 4 in counts and any(count % 3 for count in counts), "as many as leave holes in three columns"
        for edge, charts in groups:
            last_of_rows = dict(charts)  # by where they are
            assert all(abs(right - edge) < 2 for right in last_of_rows.values()), groups
        page.close()


@pytest.mark.parametrize("width", [390, 900, 1280])
def test_long_names_have_one_line_in_lists_and_two_at_most_elsewhere(
    context: BrowserContext, tmp_path: Path, width: int
) -> None:
    alarm = Alarm(step=1, kind="evaluation-collapsed", text="", advice="")
    for end, gamma in (("a", 0.9), ("b", 0.99)):
        env = f"a.long.module.name:{LONG}"
        write_run(tmp_path / f"{LONG}-{end}", {0: [1.0, 2.0]}, td3={"gamma": gamma}, env=env, events=[alarm])
    line = "all => Math.max(...[...document.querySelectorAll(all)].map(one => one.getBoundingClientRect().height))"
    with served(tmp_path) as access:
        page = open_page(context, address_of(access))
        page.set_viewport_size({"width": width, "height": 900})
        link = page.get_by_role("link", name=f"{LONG}-a")
        expect(link).to_be_visible()
        assert page.evaluate(line, "td.name a") < 30 and page.evaluate(line, "td.env span") < 30
        assert page.evaluate(line, "td.alarms span") < 75, "nor are words of others broken"
        link.click()
        expect(page.locator("h1")).to_contain_text(f"{LONG}-a")
        assert page.evaluate(line, "h1 .two-lines") < 75
        page.evaluate("part => { location.hash = part; }", f"#/compare?run={LONG}-a&run={LONG}-b&search=second-try")
        expect(page.locator(".chart .legendtext").first).to_have_text(re.compile(r"^HalfCheetah.*second-try-a$"))
        for selector in (".picks label", ".overview th a", ".pinned thead th"):
            assert page.evaluate(line, selector) < 40, selector
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.close()


def test_runs_to_compare_are_searched(context: BrowserContext, tmp_path: Path) -> None:
    for name, env in (("apple", "Hopper-v5"), ("pear", "Hopper-v5"), ("plum", "Ant-v5")):
        write_run(tmp_path / name, {0: [1.0, 2.0]}, env=env)
    (tmp_path / "plum" / "notes.json").write_text('{"tags": ["baseline"], "note": ""}')
    with served(tmp_path) as access:
        page = open_page(context, address_of(access), "#/compare")
        picks = page.locator(".picks label")
        expect(picks).to_have_count(3)
        page.keyboard.press("/")
        page.keyboard.type("HOPPER p")
        expect(picks).to_have_count(2)
        page.get_by_role("searchbox").fill("baseline")
        expect(picks).to_have_text(["plumAnt-v5"])
        page.get_by_role("searchbox").fill("hopper pear")
        picks.first.get_by_role("checkbox").check()
        expect(page.get_by_text("Runs (1 chosen)")).to_be_visible()
        expect(page.get_by_role("searchbox")).to_have_value("hopper pear")
        expect(picks).to_have_text(["pearHopper-v5"])
        page.get_by_role("searchbox").fill("nothing has this")
        expect(page.get_by_text("No run has these words.")).to_be_visible()
        page.close()


def test_each_run_in_the_list_has_a_small_curve(context: BrowserContext, tmp_path: Path) -> None:
    path = write_run(tmp_path / "rises", {0: [0.0, 5.0, 10.0]})
    write_run(tmp_path / "one", {0: [1.0]})
    with served(tmp_path) as access:
        page = open_page(context, address_of(access))
        curve = page.get_by_role("row", name="rises").locator(".sparkline polyline")
        expect(curve).to_have_attribute("points", "0.0,20.0 50.0,10.0 100.0,0.0")
        expect(page.get_by_role("img", name="evaluations from 0 to 10")).to_be_visible()
        expect(page.locator(".sparkline")).to_have_count(1)
        with (path / "events.jsonl").open("a") as log:
            log.write(to_line(evaluation(0, 0, 3000, 20.0)) + "\n")
        expect(curve).to_have_attribute("points", "0.0,20.0 33.3,15.0 66.7,10.0 100.0,0.0")
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
    taken = TraceSummary(step=1000, time=1e9, member=0, seed=0, updates=900, values=values)
    write_run(tmp_path / "a", {0: [1.0]}, events=[taken])
    with served(tmp_path) as access:
        page = open_page(context, address_of(access), "#/run/a/steps")
        cards = page.get_by_role("article")
        expect(cards).to_have_count(15)
        expect(page.get_by_text("Update 900, at step 1,000")).to_be_visible()
        expect(cards.nth(9).get_by_role("row", name=re.compile("^q "))).to_have_text("q12.50.512, 12.5, 132 × 8")
        page.close()
