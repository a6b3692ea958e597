"""Measures a page in a browser: opening it, sorting and searching its table, by the browser's own clock."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from hookcli import registry
from hookcli.table import STATS_COLUMNS, Report, Row, TensorStats, columns_named
from hookcli.table.grouping import View

ROWS = 10_000
# From a click or a key to the first frame that shows its effect.
_ACT = """async (act) => {
  const started = performance.now();
  const search = document.querySelector(".search");
  if (act === "sort") document.querySelector(".table-head button[data-key=l2]").click();
  else {
    search.value = act;
    search.dispatchEvent(new Event("input"));
  }
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - started;
}"""
_OPENED = """new Promise((done) => {
  const look = () => document.querySelector(".table-row") ? done(performance.now()) : requestAnimationFrame(look);
  look();
})"""


def page() -> str:
    """A page of a table of many rows."""
    rows = [
        Row(
            {
                "fqn": f"blocks.{i // 100}.layer{i % 100}",
                "type": ("Linear", "ReLU")[i % 2],
                "call": 0,
                "shape": [8, 16],
            },
            TensorStats(128, i % 7 / 7, 1.0 + i % 11, -1.0, 2.0, i * 7919 % ROWS),
        )
        for i in range(ROWS)
    ]
    report = Report("activations", "net", (*columns_named("fqn", "type", "call", "shape"), *STATS_COLUMNS), rows)
    text: str = registry.load("reporters", "html")().render([report], View())
    return text


def measured(browser: Any, file: Path) -> dict[str, float]:
    """Milliseconds from opening the file to its first rows, and from acts to their frames."""
    tab = browser.new_page()
    tab.goto(file.as_uri(), wait_until="commit")
    found = {"opened": tab.evaluate(_OPENED)}
    tab.wait_for_timeout(200)
    found |= {"sorted": tab.evaluate(_ACT, "sort"), "searched": tab.evaluate(_ACT, "layer77 type=ReLU")}
    tab.close()
    return found


def rounds(number: int, chromium: str) -> dict[str, float]:
    """The page's rows and bytes, and medians in milliseconds."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "page.html"
        file.write_text(page())
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        samples: Sequence[dict[str, float]] = [measured(browser, file) for _ in range(number)]
        browser.close()
        figures = {name: median(one[name] for one in samples) for name in samples[0]}
        return {"rows": ROWS, "bytes": file.stat().st_size, **figures}


if __name__ == "__main__":
    print(json.dumps(rounds(int(sys.argv[1]), sys.argv[2])))
