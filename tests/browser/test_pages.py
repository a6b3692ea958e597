"""Every kind of page as a reader uses it: in a browser, with mouse and keyboard, against the JSON that it holds."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import NET
from records import HEADER, end, recorded_step, save
from support import swept

from hookcli.cli import main
from hookcli.system.escaping import visible

INPUT = ("--input", "2x3x4x4", "--quiet")
NORM = "torch.nn:LayerNorm --arg normalized_shape=4"
Visit = Callable[..., Any]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a page of each kind, and with the document that --format json writes of each."""
    folder = tmp_path_factory.mktemp("pages")
    before = Path.cwd()
    os.chdir(folder)
    (folder / "net.py").write_text(NET)
    for name, off in (("a", 0.0), ("b", 1.0)):
        save(folder / f"{name}.run.jsonl", [HEADER, *(recorded_step(n, std=1.0 + off * n) for n in range(4)), end()])
    documents = {
        "model": ("report", "net.py:Net", *INPUT),
        "table": ("activations", "net.py:Net", *INPUT),
        "two": ("report", "net.py:Net", "net.py:Net --seed 1", *INPUT),
        "records": ("report", "a.run.jsonl", "b.run.jsonl", "--quiet"),
        "diff": ("diff", "net.py:Net", "net.py:Net --seed 1", *INPUT),
        "settings": ("diff", f"{NORM} --arg eps=1e-5", f"{NORM} --arg eps=1e-6", *INPUT),
    }
    for name, argv in documents.items():
        assert main([*argv, "--output", f"{name}.json"]) in (0, 1)  # hookcli diff found differences
        assert main(["report", f"{name}.json", "--quiet", "--output", f"{name}.html"]) == 0
    assert main(["report", "a.run.jsonl", "--quiet", "--output", "record.html"]) == 0
    os.chdir(before)
    return folder


def document(pages: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((pages / f"{name}.json").read_text())["reports"]
    return found


def rows(page: Any) -> Any:
    """The rows of the table in sight."""
    return page.locator(".panel:not([hidden]) .table-row")


def said(page: Any) -> str:
    """Return the toolbar's count of rows."""
    return str(page.locator(".panel:not([hidden]) .tools output").inner_text())


def names(page: Any) -> list[str]:
    return [row.get_attribute("data-fqn") for row in rows(page).all()]


@pytest.mark.sweep
def test_the_page_of_a_model_has_what_its_document_has(visit: Visit, pages: Path) -> None:
    page = visit(pages / "model.html")
    reports = document(pages, "model")
    shapes = next(report for report in reports if report["probe"] == "shapes")
    parameters = next(report for report in reports if report["probe"] == "parameters")
    fqns = [row["fqn"] for row in shapes["rows"]]
    assert names(page) == fqns == ["", "conv", "act", "fc"] and said(page) == "4 rows"
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save JSON").click()
    assert Path(saved.value.path()).read_text().rstrip("\n") == (pages / "model.json").read_text().rstrip("\n")
    page.get_by_role("tab", name="Parameters").click()
    assert said(page) == f"{len(parameters['rows'])} rows"
    for tab in page.get_by_role("tab").all():
        tab.click()
        assert page.locator(".panel:not([hidden])").inner_text().strip()


def test_a_table_sorts_folds_searches_and_selects(visit: Visit, pages: Path) -> None:
    page = visit(pages / "model.html")
    page.get_by_role("columnheader", name="Params").get_by_role("button").or_(
        page.get_by_role("button", name="Params", exact=True)
    ).first.click()
    sizes = {"": 1514, "conv": 224, "act": 0, "fc": 1290}
    assert {frozenset(names(page))} == {frozenset(sizes)} and names(page) in (
        sorted(sizes, key=lambda n: sizes[n]),
        sorted(sizes, key=lambda n: -sizes[n]),
    )
    search = page.get_by_role("searchbox", name="Search rows")
    search.fill("type=ReLU")
    page.locator(".panel:not([hidden]) .tools output", has_text="1 of").wait_for()
    search.press("Escape")
    page.locator(".panel:not([hidden]) .tools output", has_text=re.compile("^4 rows$")).wait_for()
    rows(page).filter(has_text="conv").click()
    detail = page.get_by_role("complementary", name="Selected module")
    assert (
        "conv" in detail.inner_text() and "2x3x4x4" in detail.inner_text() and detail.locator("figure svg").count() >= 2
    )
    row = page.locator("[aria-selected='true'].table-row")
    assert row.get_attribute("data-fqn") == "conv"


def test_the_keyboard_alone_reaches_everything(visit: Visit, pages: Path) -> None:
    page = visit(pages / "model.html")
    page.keyboard.press("/")
    page.keyboard.type("fc")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "treegrid"
    assert "fc" in page.get_by_role("complementary", name="Selected module").inner_text()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")  # folds the model
    folded = page.locator(".panel:not([hidden]) [aria-expanded=false]").first
    folded.wait_for()
    page.keyboard.press("ArrowRight")
    folded.wait_for(state="detached")
    page.get_by_role("tab").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab").nth(1).get_attribute("aria-selected") == "true"


@pytest.mark.sweep
def test_themes_and_print(visit: Visit, pages: Path) -> None:
    page = visit(pages / "model.html", dark=True)
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Light", exact=True).click()
    light = page.evaluate(ground)
    page.get_by_role("button", name="Dark", exact=True).click()
    assert page.evaluate(ground) == dark != light
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert {"conv", "act", "fc"} <= set(names(page)) and not page.get_by_role("button", name="Save JSON").is_visible()


@pytest.mark.parametrize("name", ["model", swept("table"), swept("two"), swept("records"), swept("record")])
def test_no_kind_of_page_is_hard_to_read_for_a_screen_reader(visit: Visit, pages: Path, name: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = visit(pages / f"{name}.html")
    tabs = page.get_by_role("tab").all()
    for tab in (tabs[0], tabs[-1]) if tabs and tabs[0].is_visible() else ():
        tab.click()
    found = axe.run(page, options={"resultTypes": ["violations"], "rules": {"region": {"enabled": False}}})
    assert found.violations_count == 0, found.generate_report()


def test_the_page_of_one_report(visit: Visit, pages: Path) -> None:
    page = visit(pages / "table.html", width=420)
    (report,) = document(pages, "table")
    assert names(page) == [row["fqn"] for row in report["rows"]]
    assert page.evaluate("document.documentElement.scrollWidth") <= 420


@pytest.mark.sweep
def test_a_comparison_shows_the_first_divergence_and_both_sides(visit: Visit, pages: Path) -> None:
    page = visit(pages / "two.html")
    diff, *others = document(pages, "two")
    assert visible(diff["totals"]["verdict"]) in page.locator("#verdict").inner_text()
    tabs = {tab.inner_text() for tab in page.get_by_role("tab").all()}
    kinds = {"Outputs": "output", "Gradients of outputs": "grad_output", "Gradients of parameters": "grad"}
    for title, kind in kinds.items():
        total = sum(row["kind"] == kind for row in diff["rows"])
        assert f"{title}\n{total}" in {text.replace("  ", "\n") for text in tabs} or f"{title}{total}" in tabs
    outputs = [row["fqn"] for row in diff["rows"] if row["kind"] == "output"]
    assert (
        names(page) == outputs and page.locator("[aria-selected='true'].table-row").get_attribute("data-fqn") == "conv"
    )
    detail = page.get_by_role("complementary", name="Selected module")
    own = [
        row for report in others if report["probe"] == "activations" for row in report["rows"] if row["fqn"] == "conv"
    ]
    assert len(own) == 2
    for row in own:
        assert f"{row['l2']:.4g}"[:5] in detail.inner_text()
    assert "beyond tolerance" in detail.inner_text() and detail.locator("figure svg").count() >= 4
    page.get_by_role("tab", name="Picture", exact=True).click()  # one, since both are wired alike
    excess = [row["times"] for row in diff["rows"] if row["kind"] == "output" and "." not in row["fqn"] and row["fqn"]]
    assert page.get_by_label("Colour").input_value() == "excess"
    assert page.locator(".picture-legend").inner_text().endswith(f"{max(excess):.4g}")
    page.get_by_role("tab", name="Through depth").click()
    assert page.locator(".panel:not([hidden]) canvas").count() == 6
    page.locator(".panel:not([hidden]) .chart-plot").first.focus()
    for key, fqn in (("Home", "conv"), ("End", "(model)")):  # a container comes after its parts
        page.keyboard.press(key)
        assert page.locator(".chart-plot").first.get_attribute("aria-valuetext").startswith(fqn)
    page.get_by_role("tab", name="A alone").click()
    assert names(page) == ["", "conv", "act", "fc"]


def test_settings_that_differ_are_the_verdict_and_no_good_one(visit: Visit, pages: Path) -> None:
    page = visit(pages / "settings.html")
    first = page.locator("#verdict p").first
    assert first.inner_text().startswith("(model) (LayerNorm): changed eps (1e-05 → 1e-06); outputs within tolerance")
    assert "error" in first.get_attribute("class").split() and page.locator(".diff-first").count() == 0
    assert first.evaluate("e => parseFloat(getComputedStyle(e).fontSize)") >= 15


def test_records_side_by_side(visit: Visit, pages: Path) -> None:
    page = visit(pages / "records.html")
    over, place, _ = document(pages, "records")
    told = page.locator("#verdict").inner_text()
    assert told.startswith(f"Net: {over['totals']['verdict']}") and over["totals"]["grew"] in told
    verdict = page.locator("#verdict .verdict").first  # on losses; which run is better is not an error
    assert "error" not in verdict.get_attribute("class").split() and verdict.locator(".lamp").count() == 0
    first = page.locator(".diff-first").inner_text()
    assert page.locator(".diff-first").count() == 1 and place["findings"][0]["fqn"] in first
    assert over["totals"]["first"].split(": ")[-1] in first.replace("\n", " ") and "of step 1" in first
    panel = page.locator(".panel:not([hidden])")  # the curves
    assert panel.locator(".chart-title").first.inner_text() == "Loss" and page.locator("canvas").count() >= 4
    page.get_by_role("tab", name="Steps").click()
    assert said(page) == f"{len(over['rows'])} rows"
    page = visit(pages / "diff.html")  # the same view, of what `hookcli diff` alone wrote
    assert page.get_by_role("tab", name="Outputs").is_visible() and page.get_by_role("tab", name="A alone").count() == 0
