"""A real browser for the tests of pages: Debian's Chromium through playwright. Tests that import this need both."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("the tests of the pages need Chromium (apt install chromium)", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api", reason="the tests of the pages need playwright")
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect  # noqa: E402

__all__ = ["SECONDS", "Browser", "BrowserContext", "Locator", "Page", "_browser", "expect"]

SECONDS = 60_000  # milliseconds to wait for what has no limit of its own: the machine may be busy


@pytest.fixture(scope="module", name="browser")
def _browser() -> Iterator[Browser]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()
