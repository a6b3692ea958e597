"""The page of a record in a browser: charts, the map of modules by steps and the table show one step together."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from records import HEADER, activation, bad, end, ran, recorded_step, save

from hookcli.record.file.record_lines import UNSEARCHED, ModelSettings, StepLosses
from hookcli.table import Report, Row, TensorStats
from hookcli.table.columns import columns_named
from hookcli.table.columns.statistics import HIST_COLUMNS
from hookcli.tensors.histograms import histogram

if TYPE_CHECKING:
    from playwright.sync_api import Page

HOSTILE = "</script><script>window.ran=1</script><img src=x onerror=window.ran=1>"


@pytest.fixture
def record(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, cli: Any) -> Callable[..., Any]:
    """Writes the page of a record with these lines, and returns its file."""
    monkeypatch.chdir(tmp_path)

    def write(*lines: Any) -> Any:
        save(tmp_path / "a.run.jsonl", lines)
        assert cli("report", "a.run.jsonl").code == 0
        return tmp_path / "a.html"

    return write


def pick(page: Page, name: str) -> str:
    return page.locator(name).first.inner_text()


@pytest.mark.sweep
def test_one_step_everywhere(visit: Callable[..., Page], record: Callable[..., Any]) -> None:
    spoiled = activation("body.1", "ReLU", TensorStats(128, 0.4, 1.0, 0.0, 2.0, 8.0, nan=12, inf=1))
    steps = [recorded_step(number, std=1.0 + number) for number in range(0, 300, 100)]
    steps[1] = replace(steps[1], reports=(replace(steps[1].reports[0], rows=[spoiled]), *steps[1].reports[1:]))
    other = recorded_step(0, model="Other", phase="no_grad", forward=3)
    page = visit(record(HEADER, steps[0], steps[1], bad(100), steps[2], other, end([ran(), ran("Other")])))
    page.wait_for_selector(".step-table .table-row")
    assert pick(page, ".step-name") == "step 200 · 3 of 3" and "train.py --epochs 3" in pick(page, ".facts")
    assert "13 " not in pick(page, ".first-bad p") and "12 NaN and 1 Inf in the output of body.1" in pick(
        page, ".first-bad p"
    )
    assert [label.inner_text().split()[0] for label in page.locator(".heat-name").all()] == [
        "(model)",
        "body",
        "0",
        "1",
        "head",
    ]
    page.click(".first-bad button")
    assert pick(page, ".step-name") == "step 100 · 2 of 3"
    assert pick(page, ".heat-readout").endswith("not finite") and "body.1 ReLU" in pick(page, ".heat-readout")
    chosen = page.locator(".step-table .table-row.selected")
    assert chosen.get_attribute("data-fqn") == "body.1" and "1.000" in chosen.inner_text()
    over_steps = page.locator(".step-row-chart")
    assert "Std of the output: body.1" in over_steps.inner_text() and "Reset zoom" not in over_steps.inner_text()
    page.locator(".heat-scroller").press("ArrowLeft")
    assert pick(page, ".step-name") == "step 0 · 1 of 3"
    assert "(the page has no details of step 0)" in pick(page, ".detail-step")
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")  # the parts scroll, not the page
    page.locator(".heat-scroller").press("ArrowDown")
    assert (
        "head Linear" in pick(page, ".heat-readout")
        and page.locator(".step-table .selected").get_attribute("data-fqn") == "head"
    )
    page.select_option(".heat-statistic", "weight")
    page.locator(".heat-readout", has_text="L2 of the weights 120.0").wait_for()
    page.locator(".heat-label", has_text="body").first.click()
    page.locator(".heat-scroller").press(" ")
    assert "L2 of the weights 50.00" in pick(page, ".heat-readout")  # of 30 and 40
    page.click("text=Other, no grad")
    page.locator(".step-name", has_text="forward 3").wait_for()
    page.select_option(".heat-statistic", "std")
    page.locator(".heat-legend", has_text="1.000").wait_for()
    with page.expect_download() as saved:
        page.click("#save-json")
    assert {report["probe"] for report in json.loads(saved.value.path().read_text())["reports"]} >= {
        "activations",
        "grads",
    }


@pytest.mark.sweep
def test_after_a_loss_that_is_nan_the_pane_shows_the_step_of_the_page(
    visit: Callable[..., Page], record: Callable[..., Any]
) -> None:
    nan = TensorStats(128, math.nan, math.nan, math.nan, math.nan, math.nan, nan=128)
    steps = [recorded_step(number) for number in range(4)]
    for number in (2, 3):
        rows = [activation("body.1", "ReLU", nan)]
        steps[number] = replace(steps[number], reports=(replace(steps[number].reports[0], rows=rows),))
    lost = replace(bad(1), cause=UNSEARCHED, fqn="", reports=())
    page = visit(record(HEADER, steps[0], lost, *steps[2:], end([ran()])))
    page.wait_for_selector(".step-table .table-row")
    assert pick(page, ".step-name") == "step 3 · 3 of 3" and pick(page, ".detail-step").startswith("Step 3 of")
    page.get_by_role("button", name="at step 2").click()  # step 1, whose loss it was, is not recorded
    assert pick(page, ".step-name") == "step 2 · 2 of 3" and pick(page, ".detail-step").startswith("Step 2 of")


def test_a_module_s_distribution_over_steps(visit: Callable[..., Page], record: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    values = [torch.randn(1000) * (1 + number) for number in range(3)]
    steps = []
    for number, tensor in enumerate(values):
        stats = TensorStats(1000, *(float(x) for x in (tensor.mean(), tensor.std(), tensor.min(), tensor.max())), 1.0)
        hist = replace(stats, hist=histogram(tensor))
        columns = (*recorded_step().reports[0].columns, *HIST_COLUMNS)
        report = Report("activations", "Net", columns, [activation("head", "Linear", hist)])
        steps.append(replace(recorded_step(number), reports=(report,)))
    page = visit(record(HEADER, *steps, end()), width=1440)
    page.locator(".heat-label", has_text="head").click()
    fan = page.locator(".step-row-chart .chart").nth(1)
    assert fan.locator(".chart-title").inner_text() == "Distribution of the output: head"
    said = fan.locator(".chart-summary").inner_text()
    for share, tensor in ((0.01, values[0]), (0.99, values[2])):  # of the first and of the last step
        exact = float(tensor.quantile(share))
        found = re.search(rf"\b{share:.0%} from (\S+) at step 0 to (\S+) at step 2", said)
        assert found
        first, last = found.groups()
        assert float(first if share < 0.5 else last) == pytest.approx(exact, rel=0.2)  # to within a bin


@pytest.mark.sweep
def test_the_settings_of_modules_and_charts_over_time(visit: Callable[..., Page], record: Callable[..., Any]) -> None:
    attributes = {"kernel_size": [3, 3], "eps": 1e-05, "bias": None}
    rows = [Row({"fqn": "head", "type": "Linear", "attributes": attributes, "source": "net.py:12"})]
    columns = columns_named("fqn", "type", "attributes", "source")
    settings = ModelSettings("Net", [Report("settings", "Net", columns, rows)])
    steps = [recorded_step(number, at=30.0 + number) for number in (0, 60, 120)]
    page = visit(record(HEADER, steps[0], settings, *steps[1:], StepLosses("Net", 0, [1.0] * 121), end()), width=1440)
    page.locator(".heat-label", has_text="head").click()
    pane = page.get_by_role("complementary", name="Selected module").inner_text()
    assert "kernel_size 3, 3 · eps 1e-05 · bias None · forward at net.py:12" in pane
    page.click("button:has-text('Time')")
    loss = page.locator(".chart-plot").first
    loss.focus()
    page.keyboard.press("Home")
    page.mouse.move(0, 0)
    assert loss.get_attribute("aria-valuemax") == "120"
    page.locator(".chart-plot").nth(2).focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    assert pick(page, ".step-name").startswith("step 120")


@pytest.mark.sweep
def test_hostile_names_and_narrow_or_dark_windows(visit: Callable[..., Page], record: Callable[..., Any]) -> None:
    rows = [
        activation(name, HOSTILE, TensorStats(8, 0.0, 1.0, 0.0, 1.0, 2.0, nan=1)) for name in ("", HOSTILE, "x" * 9_000)
    ]
    report = Report("activations", HOSTILE, (), rows)
    step = replace(recorded_step(0, model=HOSTILE), reports=(report,), notes=[HOSTILE], losses=[float("nan")])
    file = record(
        replace(HEADER, name=HOSTILE, argv=[HOSTILE]),
        step,
        replace(step, step=1),
        replace(bad(0), cause=HOSTILE),
        end(),
    )
    for how in ({"width": 420, "dark": True}, {"policy": False}):
        page = visit(file, **how)
        page.wait_for_selector(".step-table .table-row")
        assert HOSTILE in pick(page, ".first-bad p")
        wide = (
            "[...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1)"
        )
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), page.evaluate(
            f"{wide}.map((e) => `${{e.tagName}}.${{e.className}}`).slice(0, 12)"
        )


@pytest.mark.sweep
def test_a_record_without_a_whole_step_opens_and_says_so(
    visit: Callable[..., Page], record: Callable[..., Any]
) -> None:
    page = visit(record(HEADER, end([])))
    assert "No whole step was recorded" in page.locator("main").inner_text()
    assert "no step was recorded" in pick(page, ".record-notes")
    page = visit(record(HEADER, replace(recorded_step(0), losses=[float("nan")]), end()))
    page.wait_for_selector(".step-table .table-row")
    assert pick(page, ".step-name") == "step 0 · 1 of 1"


@pytest.mark.sweep
def test_a_page_of_several_runs(visit: Callable[..., Page], tmp_path: Any, monkeypatch: Any, cli: Any) -> None:
    """One legend hides a run in all charts; means replace the points of figures, and not those of settings."""
    monkeypatch.chdir(tmp_path)
    losses = {"a": [4.0, 3.0, 2.0, 1.0], "b": [4.0, 2.0, 1.0, 0.5], "<img>": [4.0, 8.0, float("nan"), 8.0]}
    for name, values in losses.items():
        begin = 20 * (name == "b")
        steps = [recorded_step(step, losses=[values[step]], at=begin + 18.0 * step) for step in (0, 3)]
        save(tmp_path / f"{name}.run.jsonl", [HEADER, *steps, StepLosses("Net", 0, values), end()])
    assert cli("report", *(f"{name}.run.jsonl" for name in losses), "-o", "runs.html").code == 0
    page = visit(tmp_path / "runs.html")
    assert pick(page, ".verdict.error").startswith(
        "B has the lowest loss: 0.5000 at step 3, 2 times lower than A's 1.000"
    )
    cells = [
        [cell.inner_text() for cell in row.locator("th, td").all()] for row in page.locator(".runs-table tr").all()
    ]
    assert [row[:5] for row in cells[1:3]] == [["A", "a", "4", "1.000", "1.000"], ["B", "b", "4", "0.5000", "0.5000"]]
    page.set_viewport_size({"width": 390, "height": 844})  # each run is a card, whose figures have their titles
    (table,) = page.locator(".runs-scroll").all()
    assert table.evaluate("e => e.scrollWidth <= e.clientWidth") and page.locator(".runs-table thead").is_hidden()
    ends = table.locator("tbody :is(th, td):not(:empty)").evaluate_all(
        "all => all.map((e) => [e.getBoundingClientRect().right, getComputedStyle(e, '::before').content])"
    )
    assert all(right <= 390 for right, _ in ends) and {'"Run"', '"Last loss"', '"Loss not finite"'} <= {
        t for _, t in ends
    }
    page.set_viewport_size({"width": 1280, "height": 700})
    titles = [title.inner_text() for title in page.locator(".chart-title").all()]
    assert titles[:2] == ["Loss", "L2 of the parameters' gradients"]
    plot = page.locator(".chart-plot").first
    assert plot.get_attribute("aria-valuemax") == "3"  # every step, recorded or not
    plot.focus()
    for key in ("Home", "ArrowRight"):
        page.keyboard.press(key)
    assert plot.get_attribute("aria-valuetext") == "step 1, A 3.000, B 2.000, C 8.000"
    page.click(".runs-bar [data-value=time]")
    plot.focus()
    for key in ("Home", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert plot.get_attribute("aria-valuetext") == "20 s, A 3.000, B 4.000, C 8.000"  # the step before, of A and C
    page.click(".runs-bar [data-value=step]")
    page.click("text=5 steps")
    plot.focus()
    for key in ("Home", "ArrowRight"):
        page.keyboard.press(key)
    assert plot.get_attribute("aria-valuetext") == "step 1, A 3.500, B 3.000, C 6.000"
    page.click(".runs-bar button:has-text('A: a.run.jsonl')")
    hidden = page.locator(".runs-charts .chart-legend button:has-text('A')[aria-pressed=false]").count()
    assert hidden == len(titles) >= 3
