"""Charts over depth, distributions and details, as a reader finds them: by keys, by clicks, and in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from support import swept
from torch import Tensor, nn

import hookcli
from hookcli import registry
from hookcli.engine.setting import Setting
from hookcli.probes.activations import ActivationsProbe
from hookcli.probes.grads import GradsProbe
from hookcli.probes.parameters import ParametersProbe
from hookcli.probes.shapes import ShapesProbe
from hookcli.sources.base import InputSpec, Recipe
from hookcli.table import Report, Row
from hookcli.table.columns.statistics import QUANTILES
from hookcli.table.formatting import number, size
from hookcli.table.grouping import View

Visit = Callable[..., Any]
FIRST = ".chart-plot >> nth=0"


class Net(nn.Module):
    """A container that returns what its last part does, a module called twice, and values that are not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.twice = nn.Linear(16, 16)
        self.root = nn.Identity()
        self.lost = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        self.root((x - x.mean()).sqrt())
        self.lost(x * torch.nan)
        return self.twice(self.twice(x))


@pytest.fixture(scope="module")
def reports() -> Sequence[Report]:
    torch.manual_seed(0)
    probes = [ShapesProbe(), ActivationsProbe(hist=True), GradsProbe("outputs", hist=True), GradsProbe(hist=True)]
    return hookcli.capture(Net(), torch.randn(32, 8), [*probes, ParametersProbe()])


@pytest.fixture
def depth(visit: Visit, reports: Sequence[Report]) -> Any:
    page = visit(registry.load("reporters", "html")().render(reports, View()))
    page.get_by_role("tab", name="Through depth").click()
    return page


def rows(reports: Sequence[Report], probe: str = "activations") -> dict[tuple[str, int], Row]:
    report = next(report for report in reports if report.probe == probe)
    return {(row.fqn, row.get("call") or 0): row for row in report.rows}


def said(page: Any, chart: int = 0) -> str:
    text: str = page.locator(".chart-plot").nth(chart).get_attribute("aria-valuetext")
    return text


def along(page: Any) -> Iterator[str]:
    """Read out each point, from the first to the last, by the keys."""
    page.locator(FIRST).focus()
    page.keyboard.press("Home")
    before = None
    while (text := said(page)) != before:
        yield text
        before = text
        page.keyboard.press("ArrowRight")


@pytest.mark.sweep
def test_keys_read_every_output_in_the_order_in_which_it_was_made(depth: Any, reports: Sequence[Report]) -> None:
    found = rows(reports)
    # Neither body nor the model: they return what their last part does.
    order = [("body.0", 0), ("body.1", 0), ("root", 0), ("lost", 0), ("twice", 0), ("twice", 1)]
    texts = list(along(depth))
    assert len(texts) == len(order)
    for text, (fqn, call) in zip(texts, order, strict=True):
        row = found[fqn, call]
        assert text.startswith(f"{fqn} call {call}, " if call else f"{fqn}, ")
        figures = {name: number(row[name]) for name in ("min", "max", "mean")} | {"rms": number(row.stats.rms)}
        figures = dict.fromkeys(figures, "NaN") if fqn == "lost" else figures
        assert all(f"{name} {figure}" in text for name, figure in figures.items()), text


@pytest.mark.sweep
def test_both_charts_follow_one_cursor_and_enter_selects(depth: Any, reports: Sequence[Report]) -> None:
    depth.locator(FIRST).focus()
    for key in ("End", "ArrowLeft"):
        depth.keyboard.press(key)
    gradient = rows(reports, "grads")["twice", 0]
    assert said(depth, 1).startswith(f"twice, L2 of output {number(gradient['l2'])}")
    depth.keyboard.press("Enter")
    assert depth.locator(".detail-name").inner_text() == "twice"
    assert depth.locator(".detail select").input_value() == "call 1"
    for key in ("ArrowRight", "Enter"):
        depth.keyboard.press(key)
    assert depth.locator(".detail select").input_value() == "call 2"


@pytest.mark.sweep
def test_a_row_of_the_table_is_marked_in_the_charts_and_described(depth: Any, reports: Sequence[Report]) -> None:
    depth.get_by_role("tab", name="Activations").click()
    depth.locator("[data-fqn='body.0']:visible").first.click()
    detail = depth.locator(".detail").inner_text()
    row = rows(reports)["body.0", 0]
    quantiles = [f"{share:.0%} {number(row[key])}" for key, share in QUANTILES.items()]
    assert all(text in detail for text in (*quantiles, "32x8", "weight", "bias")), detail
    depth.get_by_role("tab", name="Through depth").click()
    assert depth.locator(".chart-point").all_inner_texts() == ["body.0", "body.0"]


@pytest.mark.sweep
def test_bars_hold_all_elements(depth: Any, reports: Sequence[Report]) -> None:
    depth.locator(FIRST).focus()
    for key in ("Home", "ArrowRight", "Enter"):  # a ReLU
        depth.keyboard.press(key)
    titles = depth.locator(".hist").first.locator("title").all_text_contents()
    counts = [int(title.split(": ")[1].split(" ")[0].replace(",", "")) for title in titles]
    row = rows(reports)["body.1", 0]
    assert sum(counts) == row["numel"] and any(title.startswith(f"0: {row['zeros']} (") for title in titles)


def drawn_heights(page: Any) -> list[float]:
    """The heights of a distribution's bars, from left to right."""
    bars = page.locator(".hist").first.locator(".hist-bar:not(.hist-zero)").all()
    places = [(float(bar.get_attribute("x")), float(bar.get_attribute("height"))) for bar in bars]
    return [height for _, height in sorted(places)]


def drawn_bars(page: Any) -> list[tuple[float, float, int]]:
    """Where each bar of a distribution begins and ends, and its number of elements; without that of zeros."""
    titles = page.locator(".hist").first.locator("title").all_text_contents()
    parts = [title.replace(",", "").replace(":", " ").split() for title in titles]
    return [(float(part[0]), float(part[2]), int(part[3])) for part in parts if part[1] == "to"]


@pytest.mark.parametrize("mean", [*map(swept, (0.0, 0.7, 10.0, -10.0))])
def test_normal_logits_are_one_hump_over_linear_values(visit: Visit, mean: float) -> None:
    """The bars are those of numpy, of one width, wherever the mean is."""
    torch.manual_seed(0)
    values = torch.randn(400, 100) + mean
    reports = hookcli.capture(nn.Identity(), values, [ActivationsProbe(hist=True)])
    page = visit(registry.load("reporters", "html")().render(reports, View()))
    page.locator(".table-row").first.click()
    figure = page.locator(".hist").first
    bars = drawn_bars(page)
    edges = [*(low for low, _, _ in bars), bars[-1][1]]
    assert 24 <= len(bars) <= 42 and {high - low for low, high, _ in bars} == {0.25}
    assert [count for *_, count in bars] == np.histogram(values.double().numpy(), edges)[0].tolist()
    heights, most = drawn_heights(page), max(count for *_, count in bars)
    assert heights == pytest.approx([96 * count / most if count else 0 for *_, count in bars], abs=1)
    *ticks, top = figure.locator("svg text").all_text_contents()
    assert {f"{2 * int(mean // 2) + n}" for n in (-2, 0, 2)} <= set(ticks) and top == f"{most:,} elements"
    assert "value, linear; height: number of elements\n" in figure.inner_text()
    figure.get_by_role("button", name="linear").click()
    assert "for each power of two; height: number of elements" in figure.inner_text()
    heights = drawn_heights(page)
    if abs(mean) < 1:
        assert min(heights[3:-3]) < max(heights[:4]) / 4  # two humps, which the axis explains


def test_a_report_of_an_older_hookcli_has_linear_bars_too(visit: Visit) -> None:
    """From counts by powers of two, spread evenly."""
    torch.manual_seed(0)
    (report,) = hookcli.capture(nn.Identity(), torch.randn(4000), [ActivationsProbe(hist=True)])
    data = report.to_dict()
    for row in data["rows"]:
        row["hist"] = {key: value for key, value in row["hist"].items() if not key.startswith("linear")}
    page = visit(registry.load("reporters", "html")().render([Report.from_dict(data)], View()))
    page.locator(".table-row").first.click()
    bars = drawn_bars(page)
    assert sum(count for *_, count in bars) == pytest.approx(4000, abs=60)
    assert len({count for low, high, count in bars if low >= 1 and high <= 2}) == 1  # of a power of two


def test_labels_of_powers_keep_apart(visit: Visit) -> None:
    torch.manual_seed(0)
    values = torch.randn(4000).sign() * 10.0 ** (torch.randn(4000) * 7)
    reports = hookcli.capture(nn.Identity(), values, [ActivationsProbe(hist=True)])
    page = visit(registry.load("reporters", "html")().render(reports, View()))
    page.locator(".table-row").first.click()
    labels = page.locator(".hist").first.locator("svg text[text-anchor]")
    ends = "all => all.map((one) => one.getBoundingClientRect()).map(({ left, right }) => [left, right])"
    spans = sorted(labels.evaluate_all(ends))
    assert len(spans) > 4 and all(right + 3 < left for (_, right), (left, _) in pairwise(spans))


@pytest.mark.sweep
def test_what_is_not_finite_is_marked_and_listed(depth: Any, reports: Sequence[Report]) -> None:
    row = rows(reports)["root", 0]
    assert row["nan"]
    depth.locator(FIRST).focus()
    for key in ("Home", "ArrowRight", "ArrowRight", "Enter"):
        depth.keyboard.press(key)
    assert f"{row['nan']} NaN (" in depth.locator(".hist-bad").first.inner_text()
    first = depth.locator(".chart").first
    assert "NaN or infinite" in first.locator(".chart-legend").inner_text()
    assert "; 1 NaN or infinite." in first.locator(".chart-summary").inner_text()
    columns = depth.locator(".detail-grid tr").filter(has_text="NaN").first.inner_text()
    assert f"{row['nan']:,}" in columns
    figure = depth.locator(".detail-grid tr").filter(has_text="NaN").first.locator("td").first
    red = "e => getComputedStyle(e).color"
    assert figure.evaluate(red) == depth.locator(".hist-bad").first.evaluate(red) != depth.locator("h1").evaluate(red)


@pytest.mark.sweep
def test_lines_hide_and_axes_change_and_the_theme_too(depth: Any) -> None:
    first = depth.locator(".chart").first
    entry = first.get_by_role("button", name="mean")
    entry.click()
    assert first.get_by_role("button", name="mean").get_attribute("aria-pressed") == "false"
    kind = first.locator(".chart-tools button:visible")
    before = kind.inner_text()
    kind.focus()
    depth.keyboard.press("Enter")
    assert kind.inner_text() != before and kind.evaluate("e => e === document.activeElement")
    depth.get_by_role("button", name="Dark").click()
    assert first.get_by_role("button", name="mean").get_attribute("aria-pressed") == "false"
    assert first.locator("canvas").count() == 1


@pytest.mark.sweep
def test_charts_fit_a_narrow_page(visit: Visit, reports: Sequence[Report]) -> None:
    page = visit(registry.load("reporters", "html")().render(reports, View()), width=420)
    page.get_by_role("tab", name="Through depth").click()
    assert page.locator(".chart").first.evaluate("e => e.scrollWidth <= e.clientWidth + 1")
    assert page.locator(".chart canvas").first.evaluate("e => e.clientWidth > 200")
    page.set_viewport_size({"width": 900, "height": 800})
    grown = "e => new Promise(done => new ResizeObserver(() => e.clientWidth > 420 && done(true)).observe(e))"
    assert page.locator(".chart canvas").first.evaluate(grown)


@pytest.mark.sweep
def test_the_memory_of_a_step_is_read_from_operator_to_operator(visit: Visit) -> None:
    request, plan = (pytest.importorskip(f"hookcli.capabilities.memory.{name}") for name in ("request", "plan"))
    recipe = Recipe("net", partial(nn.Linear, 8, 4), (InputSpec((2, 8)),))
    made = request.MemoryRequest(recipe, Setting(train=True), plan.MemoryPlan("sgd"))
    reports = made.reports(["memory", "timeline"])
    page = visit(registry.load("reporters", "html")().render(reports, View()))
    page.get_by_role("tab", name="Over the step").click()
    texts = list(along(page))
    assert len(texts) > 3
    for text, row in zip(texts, reports[1].rows, strict=True):
        assert text.startswith(f"{row['phase']} {row.fqn} {row['operator']}".replace("  ", " "))
        assert f"Parameters {size(row['param_bytes'])}" in text
