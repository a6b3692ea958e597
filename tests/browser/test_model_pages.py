"""The page of a model's run, of several models, and in a notebook, in a real browser."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import usual_checks
from torch import nn

import hookcli
from hookcli.reporters.html import HtmlReporter
from hookcli.table import Bar, Column, Kind, Merge, Report, Row, Skipped, columns_named, document
from hookcli.table.grouping import View
from hookcli.table.report import Reason


class Net(nn.Module):
    def __init__(self, *, forgets: bool = False) -> None:
        super().__init__()
        self.fc, self.act, self.head = nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)
        if forgets:
            self.unused = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.act(self.fc(x)))
        return out


@pytest.fixture(scope="module")
def sound() -> Sequence[Report]:
    torch.manual_seed(0)
    return hookcli.report(Net(), torch.randn(32, 8), name="sound").reports


@pytest.fixture(scope="module")
def faulty() -> Sequence[Report]:
    return hookcli.report(Net(forgets=True), torch.randn(32, 8), name="faulty").reports


def modules(page: Any) -> list[str]:
    """The names in the table of modules."""
    found: list[str] = page.locator("#view-modules [role=row] > :first-child").all_inner_texts()
    return [name_in(text) for text in found[1:]]


def name_in(cell: str) -> str:
    """The name in a cell, whose text has no space after the arrow that folds a row until it is laid out."""
    return cell.strip("▾▸ \n").split()[-1]


@pytest.mark.sweep
def test_a_page_of_a_run_joins_its_reports(visit: Callable[..., Any], sound: Sequence[Report]) -> None:
    page = visit(HtmlReporter().render(sound, View()))
    assert page.inner_text("h1") == "sound" and f"All {usual_checks()} checks passed" in page.inner_text("#verdict")
    assert modules(page) == ["(model)", "fc", "act", "head"]
    page.get_by_role("tab", name="Parameters").click()
    assert page.locator("#view-parameters [role=row]").count() == 1 + 4
    with page.expect_download() as saved:
        page.click("#save-json")
    assert json.loads(Path(saved.value.path()).read_text()) == document(sound)


@pytest.mark.sweep
def test_the_columns_of_another_probe_are_on_the_page(visit: Callable[..., Any], sound: Sequence[Report]) -> None:
    columns = (
        *columns_named("fqn", "type", "call"),
        Column("surprise", "Surprise", "bits", Kind.FIGURE, merge=Merge.SUM, bar=Bar.LOG),
        Column("spill", "Spilled", "bytes", Kind.BYTES, merge=Merge.MOST, bar=Bar.LOG),
        Column("seen", "Seen by"),
    )
    calls = [("fc", 0, 1.5, 1024), ("fc", 1, 2.0, 4096), ("act", 0, 0.25, 2048), ("head", 0, 8.0, 512)]
    rows = [Row({"fqn": fqn, "call": n, "surprise": bits, "spill": size, "seen": fqn}) for fqn, n, bits, size in calls]
    page = visit(HtmlReporter().render([*sound, Report("surprise", "sound", columns, rows)], View()))
    heads = page.locator("#view-modules [role=columnheader]")
    assert heads.evaluate_all("all => all.map((one) => one.getAttribute('aria-label'))")[-3:] == [
        "surprise Surprise (bits)",
        "surprise Spilled (bytes)",
        "surprise Seen by",
    ]

    def cells() -> dict[str, list[str]]:
        found = page.locator("#view-modules .table-body [role=row]").all()
        texts = [row.locator("> *").all_inner_texts() for row in found]
        return {name_in(text[0]): text[-3:] for text in texts}

    assert cells()["fc"] == ["3.500", "4 KiB", "fc"] and cells()["act"] == ["0.2500", "2 KiB", "act"]
    drawn = page.locator("#view-modules [role=row]", has_text="fc").first.locator("> *")
    assert "tick" in str(drawn.nth(-3).get_attribute("class")) and "bar" in str(drawn.nth(-2).get_attribute("class"))
    assert drawn.nth(-2).evaluate("(cell) => cell.style.getPropertyValue('--share')") == "1.0000"
    heads.get_by_role("button", name="Surprise").click()
    assert modules(page) == ["(model)", "head", "fc", "act"]  # from the largest
    page.fill(".search", "surprise>3 spill>=4KiB")
    assert page.locator("#view-modules .table-body [role=row]:not(.aside)").count() == 1


@pytest.mark.sweep
def test_what_was_not_measured_is_said_once(visit: Callable[..., Any], sound: Sequence[Report]) -> None:
    check = Skipped("HK002 input-not-finite", "not judged: the run crashed", kind=Reason.NOT_JUDGED)
    failed = [
        replace(one, skipped=(check, Skipped("act", "no call")), meta={**one.meta, "complete": False}) for one in sound
    ]
    page = visit(HtmlReporter().render(failed, View()))
    assert "in the forward until it failed" in page.inner_text(".tiles")
    page.get_by_role("tab", name="Not measured").click()
    assert page.get_by_role("tab", name="Not measured").inner_text().endswith("2")
    assert page.locator("#view-skipped button").all_inner_texts() == ["act"]  # a check is not a module
    page.click("#view-skipped button")
    detail = page.get_by_role("complementary", name="Selected module").inner_text()
    assert detail.count("no call") == 1 and "not judged" not in detail


@pytest.mark.sweep
def test_several_models_are_shown_one_at_a_time(
    visit: Callable[..., Any], sound: Sequence[Report], faulty: Sequence[Report]
) -> None:
    page = visit(HtmlReporter().render([*sound, *faulty], View()))
    bar = page.get_by_role("navigation", name="Models").get_by_role("button")
    assert bar.all_inner_texts() == ["sound\npassed", "faulty\n1 error, 1 warning"]
    assert page.inner_text("h1") == "faulty" and modules(page) == ["(model)", "fc", "act", "head", "unused"]
    page.locator("[role=row]", has_text="head").first.click()
    assert "head" in page.inner_text("#detail")
    bar.first.click()
    assert page.inner_text("h1") == "sound" and modules(page) == ["(model)", "fc", "act", "head"]
    assert "head" in page.inner_text("#detail")  # the same module of the other model
    bar.last.click()
    page.locator("[role=row]", has_text="unused").first.click()
    bar.first.click()
    assert modules(page) == ["(model)", "fc", "act", "head"] and "unused" not in page.inner_text("#detail")


@pytest.mark.sweep
def test_a_notebook_shows_the_page_in_a_frame_that_cannot_reach_it(
    visit: Callable[..., Any], sound: Sequence[Report]
) -> None:
    page = visit("<!doctype html><title>Notebook</title><div id=cell></div><div id=other></div>", policy=True)
    for place, shown in (("cell", hookcli.ReportPage(sound)), ("other", sound[1].table(columns="fqn, params"))):
        page.evaluate(
            "([place, html]) => { document.getElementById(place).innerHTML = html }", [place, shown._repr_html_()]
        )
    whole, table = (page.frame_locator(f"#{place} iframe") for place in ("cell", "other"))
    whole.locator("#view-modules [role=row]", has_text="head").click()
    assert "head" in whole.locator("#detail").inner_text()
    heads = table.locator("[role=columnheader]").all_inner_texts()
    assert [text.split()[0] for text in heads] == ["Layer", "Params"]
    assert page.locator(".hookcli-plain:visible").count() == 0
    frame = page.frames[1]
    assert frame.evaluate("() => { try { return parent.document.title } catch (error) { return error.name } }") == (
        "SecurityError"
    )
    # A notebook that is not trusted takes frames and styles away.
    page.evaluate("document.querySelectorAll('iframe, style').forEach((each) => each.remove())")
    assert "head" in page.locator("#other .hookcli-plain").inner_text()


@pytest.mark.sweep
def test_a_notebook_shows_a_list_of_reports_as_one_page(visit: Callable[..., Any]) -> None:
    model = Net()
    nn.init.constant_(model.fc.bias, -100.0)
    shown = hookcli.capture(model, torch.randn(32, 8), probes=["shapes", "activations", "grads"])
    page = visit("<!doctype html><title>Notebook</title><div id=cell></div>", policy=True, width=760)
    page.evaluate("html => { document.getElementById('cell').innerHTML = html }", shown._repr_html_())  # type: ignore[attr-defined]
    assert page.locator("iframe").count() == 1
    frame = page.frame_locator("iframe")
    tabs = [tab.inner_text().strip(" \n0123456789") for tab in frame.get_by_role("tab").all()]
    assert tabs == ["Shapes", "Activations", "Grads", "Through depth"]
    assert frame.locator("h1").inner_text() == "Net: shapes, activations, grads"
    assert frame.locator("#verdict").inner_text().count("act: all zero") == 1
    assert frame.locator(".panel:not([hidden]) .table-row.selected").get_attribute("data-fqn") == "act"
    for tab in frame.get_by_role("tab").all():
        tab.click()
        assert page.frames[1].evaluate("document.documentElement.scrollWidth <= innerWidth")
        cut = "all => all.filter((one) => one.scrollWidth > one.clientWidth).length"
        assert frame.locator(".panel:not([hidden]) .table-row > .number").evaluate_all(cut) == 0


@pytest.mark.parametrize("probes", [["shapes", "activations", "grads"], ["grads", "activations"]])
def test_a_list_of_reports_opens_where_a_nan_begins(visit: Callable[..., Any], probes: list[str]) -> None:
    """Not at the model, which hands it on."""
    model = Net()
    nn.init.constant_(model.fc.bias, float("nan"))
    shown = hookcli.capture(model, torch.randn(32, 8), probes=probes)
    page = visit(HtmlReporter().render(shown, View()))
    verdict = page.locator("#verdict").inner_text()
    chosen = page.locator(".detail-name").inner_text()
    assert chosen != "(model)" and verdict.startswith(chosen), (chosen, verdict)


@pytest.mark.sweep
def test_a_notebook_shows_a_record_as_a_page(visit: Callable[..., Any], tmp_path: Path) -> None:
    model = Net()
    with hookcli.watch(model, every=1, output=tmp_path / "a.run.jsonl") as recording:
        for _ in range(3):
            model(torch.randn(8, 8)).sum().backward()
    page = visit("<!doctype html><title>Notebook</title><div id=cell></div>", policy=True, width=1008)
    page.evaluate("html => { document.getElementById('cell').innerHTML = html }", recording._repr_html_())
    frame = page.frame_locator("iframe")
    frame.locator(".step-table .table-row").first.wait_for()
    assert frame.locator(".step-name").inner_text() == "step 2 · 3 of 3"
    assert "forward at" in frame.locator("#detail").inner_text()
    wide = "all => all.map((one) => one.getBoundingClientRect().width)"
    first, second, *_ = frame.locator(".step-charts > .chart").evaluate_all(wide)
    assert first == second and 250 < first < 350  # beside each other
    assert page.frames[1].evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert "fc" in page.locator(".hookcli-plain").inner_html()  # where the notebook is not trusted


class Blocks(nn.Module):
    def __init__(self, dead: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(20))
        nn.init.constant_(self.blocks[dead][0].bias, -50.0)  # type: ignore[index, arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.mark.sweep
def test_a_folded_row_carries_the_worst_fault_inside(visit: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    model, x = Blocks(13), torch.randn(32, 8)
    (activations,) = hookcli.capture(model, x, ["activations"])
    for reports in ([activations], hookcli.report(model, x).reports):
        page = visit(HtmlReporter().render(reports, View()))
        assert page.locator(".table-row.selected").get_attribute("data-fqn") == "blocks.13.1"  # where it opens
        page.locator(".table-row[data-fqn='blocks.13']").click()
        page.keyboard.press("ArrowLeft")
        (text,) = page.locator(".fault-inside").all_inner_texts()
        assert text.startswith("▲ blocks.13.1 all zero"), text  # the ReLU, before what follows from it
        assert page.locator(".table-row", has=page.locator(".fault-inside")).get_attribute("data-fqn") == "blocks.13"
        page.keyboard.press("ArrowRight")  # unfolded, the rows themselves say it
        assert page.locator(".fault-inside").count() == 0
