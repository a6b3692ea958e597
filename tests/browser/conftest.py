"""Pages are opened in a real browser. Without one these tests are skipped, unless it is required, as in CI.

One worker runs them all. Each file of tests starts the browser once: Playwright's event loop is this thread's until it
is stopped, and tests of other files have loops of their own.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    place = next(filter(None, map(shutil.which, _NAMES)), None)
    assert place, _missing()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=place, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visits:
    """Opens pages from files, as users do, and notes what a page must not do: requests, errors, dialogs."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._browser = browser
        self._folder = folder
        self._contexts: list[Any] = []
        self.pages: list[Page] = []
        self.troubles: list[str] = []

    def __call__(self, page: str | Path, *, policy: bool = True, width: int = 1280, **how: Any) -> Page:
        """Open a page, given as its text or its file; without `policy` its Content-Security-Policy is taken out.

        `how` are options of Playwright's `new_context`: `color_scheme`, `java_script_enabled` ...
        """
        text = page.read_text() if isinstance(page, Path) else page
        if not policy:
            text, removed = re.subn(r"<meta http-equiv=.?Content-Security-Policy[^>]*>", "", text)
            assert removed == 1
        file = self._folder / f"page{len(self.pages)}.html"
        file.write_text(text)
        context = self._browser.new_context(viewport={"width": width, "height": 900}, **how)
        opened = context.new_page()
        self._listen(opened, file.as_uri())
        opened.goto(file.as_uri())
        self._contexts.append(context)
        self.pages.append(opened)
        return opened

    def _listen(self, page: Page, address: str) -> None:
        note = self.troubles.append

        def requested(url: str) -> None:
            if url.partition("#")[0] != address and not url.startswith(("blob:", "data:")):
                note(f"requests {url[:200]}")

        page.set_default_timeout(20_000)  # a busy machine
        page.on("console", lambda said: note(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: note(f"raises {error}"))
        page.on("request", lambda request: requested(request.url))
        page.on("dialog", lambda dialog: (note(f"shows {dialog.message}"), dialog.dismiss()))
        page.on("popup", lambda other: note(f"opens {other.url}"))

    def close(self) -> None:
        """Close all pages. Fails if one of them did what a page must not do."""
        for page in self.pages:
            if page.evaluate(f"{_FLAG} !== undefined"):
                self.troubles.append("runs what a name says")
        for context in self._contexts:
            context.close()
        assert not self.troubles


@pytest.fixture
def visit(chromium: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    visits = Visits(chromium, tmp_path)
    yield visits
    visits.close()
