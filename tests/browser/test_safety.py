"""Names and texts of others are text on every page: nothing in them runs, loads or becomes markup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hostile import hostile_reports

from hookcli import registry
from hookcli.report.grouping import View
from hookcli.system.escaping import visible

_TEMPTED = "img, iframe, object, embed, base, form, [onload], [onerror], [onmouseover], [onfocus], a[href]"


@pytest.fixture(scope="module")
def hostile() -> str:
    text: str = registry.load("reporters", "html")().render(hostile_reports(), View())
    return text


@pytest.mark.parametrize("policy", [True, False], ids=["with its policy", "by escaping alone"])
def test_no_name_runs_loads_or_is_markup(visit: Callable[..., Any], hostile: str, policy: bool) -> None:
    page = visit(hostile, policy=policy)
    scripts = page.locator("script").count()
    for tab in page.get_by_role("tab").all():
        tab.click()
        grid = page.get_by_role("treegrid").and_(page.locator(":visible")).first
        if grid.count():
            grid.focus()
            for _ in range(12):
                page.keyboard.press("ArrowDown")
                page.keyboard.press("Enter")
    assert page.locator(_TEMPTED).count() == 0
    assert page.locator("script").count() == scripts
    assert page.evaluate("Object.prototype.polluted === undefined && ({}).constructor === Object")


def test_without_scripts_the_tables_are_text(visit: Callable[..., Any], hostile: str) -> None:
    page = visit(hostile, java_script_enabled=False)
    assert page.locator(_TEMPTED).count() == 0
    cells = page.locator("noscript td").all_text_contents()
    assert {"<script>window.ran=1</script>", visible("\u202egnp.eman\u2066\u200f"), "__proto__"} <= set(cells)
