"""Pages are opened in a real browser. Without one these tests are skipped, unless it is required, as in CI.

One worker runs them all, in one browser, which ends with the last of them: until then Playwright's event loop is this
thread's, and tests elsewhere have loops of their own.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")  # the first starts fastest
_FLAG = "window.ran"  # what the scripts of hostile names set


def _missing() -> str | None:
    """Return the reason why there is no browser to test with, if so."""
    if find_spec("playwright") is None:
        return "needs Playwright (pip install playwright)"
    return None if any(map(shutil.which, _NAMES)) else f"needs one of {', '.join(_NAMES)}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = _missing() if os.environ.get("HOOKCLI_TEST_BROWSER") != "required" else None
    mark = pytest.mark.skip(reason=missing) if missing else pytest.mark.xdist_group("browser")
    for item in items:
        if "tests/browser" in item.path.as_posix():
            item.add_marker(mark)


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    place = next(filter(None, map(shutil.which, _NAMES)), None)
    assert place, _missing()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=place, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visits:
    """Opens pages from files, as users do, and notes what a page must not do: requests, errors, dialogs.

    All are opened in one tab, since a new one costs more than most pages; a second one runs no scripts.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._tabs: dict[bool, Page] = {}
        self._opened: list[Page] = []
        self._address = ""
        self._troubles: list[str] = []
        self.folder = Path()

    def __call__(
        self, page: str | Path, *, policy: bool = True, width: int = 1280, dark: bool = False, scripts: bool = True
    ) -> Page:
        """Open a page, given as its text or its file; without `policy` its Content-Security-Policy is taken out."""
        self._leave()
        text = page.read_text() if isinstance(page, Path) else page
        if not policy:
            text, removed = re.subn(r"<meta http-equiv=.?Content-Security-Policy[^>]*>", "", text)
            assert removed == 1
        file = self.folder / f"page{len(self._opened)}.html"
        file.write_text(text)
        self._address = file.as_uri()
        tab = self._tabs.get(scripts) or self._new_tab(scripts)
        self._opened.append(tab)
        tab.set_viewport_size({"width": width, "height": 700})
        tab.emulate_media(media="null", color_scheme="dark" if dark else "light")
        tab.goto(self._address)
        if scripts and '<div id="app">' in text:
            tab.locator("#app > *").first.wait_for(state="attached")  # the data are unpacked after the page has loaded
        return tab

    def _new_tab(self, scripts: bool) -> Page:
        page = self._tabs[scripts] = self._browser.new_context(java_script_enabled=scripts).new_page()
        note = self._troubles.append

        def requested(url: str) -> None:
            if url.partition("#")[0] != self._address and not url.startswith(("blob:", "data:")):
                note(f"requests {url[:200]}")

        page.set_default_timeout(20_000)  # a busy machine
        page.on("console", lambda said: note(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: note(f"raises {error}"))
        page.on("request", lambda request: requested(request.url))
        page.on("dialog", lambda dialog: (note(f"shows {dialog.message}"), dialog.dismiss()))
        page.on("popup", lambda other: note(f"opens {other.url}"))
        return page

    def _leave(self) -> None:
        """Ask the page opened last whether it ran what a name says, and forget its choice of a theme."""
        if self._opened and self._opened[-1].evaluate(f"localStorage.clear(), {_FLAG} !== undefined"):
            self._troubles.append("runs what a name says")

    def end(self) -> None:
        """End a test. Fails if one of its pages did what a page must not do."""
        self._leave()
        self._opened.clear()
        troubles = self._troubles.copy()
        self._troubles.clear()
        assert not troubles


@pytest.fixture(scope="package")
def visits(chromium: Browser) -> Visits:
    return Visits(chromium)


@pytest.fixture
def visit(visits: Visits, tmp_path: Path) -> Iterator[Visits]:
    visits.folder = tmp_path
    yield visits
    visits.end()
