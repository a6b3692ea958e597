"""Names and texts of others are text on every page: nothing in them runs, loads or becomes markup."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import MARKUP, hostile_reports
from records import HEADER, end, recorded_step, save
from support import swept
from torch import nn

import hookcli
from hookcli import registry
from hookcli.cli import main
from hookcli.reporters.html.page import page as page_of
from hookcli.system.escaping import visible
from hookcli.table import document
from hookcli.table.grouping import View

Visit = Callable[..., Any]
_TEMPTED = "img, iframe, object, embed, base, form, [onload], [onerror], [onmouseover], [onfocus], a[href]"


@pytest.fixture(scope="module")
def hostile() -> dict[str, str]:
    reporter = registry.load("reporters", "html")()
    return {kind: reporter.render(reports, View()) for kind, reports in hostile_reports().items()}


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kind", "policy"), [("reports", False), swept("model", True), swept("diff", False), swept("model", False)]
)
def test_no_name_runs_loads_or_is_markup(visit: Visit, hostile: dict[str, str], kind: str, policy: bool) -> None:
    """By escaping alone; and with its policy, which would tell of what escaping let through."""
    page = visit(hostile[kind], policy=policy)
    page.get_by_role("tab").nth(3).wait_for()
    walked(page)


@pytest.mark.sweep
def test_a_record_of_another(visit: Visit, tmp_path: Path) -> None:
    steps = [recorded_step(n, model=name) for n, name in enumerate((*MARKUP[:10], "__proto__", "constructor"))]
    reports = hostile_reports()["reports"][:3]
    steps += [recorded_step(100 + n, model="Net") for n in range(2)]
    steps += [replace(recorded_step(102 + n, model=MARKUP[1]), reports=reports, notes=MARKUP) for n in range(2)]
    header = replace(HEADER, name=MARKUP[0], argv=list(MARKUP), versions={MARKUP[1]: MARKUP[5]})
    file = save(tmp_path / "x.run.jsonl", [header, *steps, end(error=MARKUP[0], notes=list(MARKUP))])
    assert main(["report", str(file), "--quiet", "--output", str(tmp_path / "x.html")]) == 0
    walked(visit(tmp_path / "x.html", policy=False))


def walked(page: Any) -> None:
    """Show all tabs of a page and choose rows by keyboard; fail if any text became markup."""
    scripts = page.locator("script").count()
    for tab in page.get_by_role("tab").all():
        tab.click()
        grid = page.locator(".panel:not([hidden]) .table")
        if grid.count():
            grid.first.focus()
            for key in ("ArrowDown", "End"):
                page.keyboard.press(key)
    assert page.locator(_TEMPTED).count() == 0 and page.locator(".failure[role=alert]").count() == 0
    assert page.locator("script").count() == scripts
    assert page.evaluate("Object.prototype.polluted === undefined && ({}).constructor === Object")


def test_without_scripts_the_tables_are_text(visit: Visit, hostile: dict[str, str]) -> None:
    page = visit(hostile["reports"], scripts=False)
    assert page.locator(_TEMPTED).count() == 0
    cells = page.locator("noscript td").all_text_contents()
    assert {"<script>window.ran=1</script>", visible("\u202egnp.eman\u2066\u200f"), "__proto__"} <= set(cells)


def test_a_view_that_cannot_be_shown_says_so_beside_the_others(chromium: Any, tmp_path: Path) -> None:
    """A page whose data was edited by hand. It logs an error to the console, so `visit` would fail."""
    reports = document(hookcli.capture(nn.Sequential(nn.ReLU()), torch.ones(2, 2), ["shapes", "flow"]))["reports"]
    reports[1]["rows"][1]["inputs"] = True
    file = tmp_path / "edited.html"
    file.write_text(page_of({"schema": 1, "kind": "model", "title": "Net", "reports": reports}))
    page = chromium.new_page()
    page.goto(file.as_uri())
    page.get_by_role("tab", name="Picture").click()
    page.get_by_text("This view can't be shown: TypeError").wait_for()
    page.get_by_role("tab", name="Modules").click()
    assert page.locator(".panel:not([hidden]) .table").is_visible()
    page.close()
