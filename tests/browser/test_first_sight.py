"""What a reader of a page sees before the first click, at the widths of a laptop and of a phone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from records import HEADER, end, recorded_step, save
from torch import nn

import hookcli
from hookcli.cli import main
from hookcli.record.file.record_lines import StepLosses
from hookcli.reporters.html import HtmlReporter
from hookcli.table import Report, Row
from hookcli.table.columns.recorded import GROUPS
from hookcli.table.grouping import View

Visit = Callable[..., Any]
NORM = "torch.nn:LayerNorm --arg normalized_shape=4"
PLACE = "transformer.6"
ROWS = ".panel:not([hidden]) .table-row"
NOT_SHORTENED = """all => all.every((e) => {
  e.textContent = "blocks.10";
  const text = document.createRange();
  text.selectNodeContents(e);
  return text.getBoundingClientRect().width <= e.getBoundingClientRect().width + 0.001;
})"""


class Block(nn.Module):
    def __init__(self, n_head: int, *, bad: bool) -> None:
        super().__init__()
        self.n_head, self.bad = n_head, bad
        self.ln_1, self.attn, self.mlp = nn.LayerNorm(16, eps=1e-3), nn.Linear(16, 16), nn.Linear(16, 16)
        self.out = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mlp(self.attn(self.ln_1(x)).relu())
        return self.out(x.log() if self.bad else x)


@pytest.fixture(scope="module")
def broken() -> Sequence[Report]:
    """The reports of a deep model whose seventh block returns NaN."""
    torch.manual_seed(0)
    transformer = nn.Sequential(*(Block(4, bad=number == 6) for number in range(12)))
    model = nn.ModuleDict({"transformer": transformer})
    model.forward = transformer.forward  # type: ignore[method-assign]
    return hookcli.report(model, torch.randn(4, 8, 16), name="gpt").reports


def in_sight(place: Any) -> bool:
    """True if all of an element comes to be seen: neither the window nor a part that scrolls cuts it.

    The page lays its columns out anew as it learns its width, which takes a busy machine a while.
    """
    seen = """async (e) => {
      const seen = await new Promise((done) => new IntersectionObserver(([one]) => done(one)).observe(e));
      const cell = e.clientWidth ? e : e.parentElement;
      return seen.intersectionRatio > 0.99 && cell.scrollWidth <= cell.clientWidth + 1;
    }"""
    for _ in range(50):
        if place.evaluate(seen):
            return True
        place.page.wait_for_timeout(100)
    return False


def test_two_runs_open_on_the_losses_of_every_step_below_their_cause(visit: Visit, tmp_path: Path) -> None:
    for name, lr in (("a", 0.001), ("b", 0.03)):
        steps = [replace(recorded_step(n, std=1.0 + lr), losses=[1 / (n + 1) ** lr]) for n in (0, 30)]
        groups = Report("optimizer", "Net", GROUPS, [Row({"optimizer": "Adam", "group": 0, "lr": lr})])
        steps = [replace(step, reports=(*step.reports, groups)) for step in steps]
        losses = StepLosses("Net", 0, [1 / (n + 1) ** lr for n in range(40)])
        save(tmp_path / f"{name}.run.jsonl", [HEADER, *steps, losses, end()])
    assert (
        main(["report", *(str(tmp_path / f"{x}.run.jsonl") for x in "ab"), "--output", str(tmp_path / "t.html")]) == 0
    )
    page = visit(tmp_path / "t.html", width=1440)
    cause = page.get_by_text("learning rate 0.001 → 0.03")
    assert cause.evaluate("e => parseFloat(getComputedStyle(e).fontSize)") >= 15
    page.set_viewport_size({"width": 1440, "height": 900})
    loss = page.locator(".chart").first
    assert loss.locator(".chart-title").inner_text() == "Loss" and in_sight(loss.locator("canvas"))
    assert loss.locator(".chart-legend button").count() == 2
    assert loss.locator(".chart-plot").get_attribute("aria-valuemax") == "39"
    assert "recorded" not in loss.locator(".chart-legend").inner_text()
    other = page.locator(".chart").nth(1)
    assert "recorded: step 0 to step 30" in other.locator(".chart-legend").inner_text()
    assert at_the_end(page, other) == pytest.approx(30 / 39, abs=0.01)  # one axis for all
    assert at_the_end(page, loss) == pytest.approx(1, abs=0.01)


def at_the_end(page: Any, chart: Any) -> float:
    """The place of a chart's last point, as a share of its width."""
    chart.locator(".chart-plot").focus()
    page.keyboard.press("End")
    left, width = (chart.locator(one).bounding_box() for one in (".u-cursor-x", ".u-over"))
    share: float = (left["x"] - width["x"] + left["width"]) / width["width"]
    return share


@pytest.mark.sweep
def test_changed_settings_are_seen_at_once(visit: Visit, tmp_path: Path) -> None:
    file = str(tmp_path / "d.html")
    sides = (f"{NORM} --arg eps=1e-5", f"{NORM} --arg eps=1e-6")
    assert main(["diff", *sides, "--input", "2x3x4", "--quiet", "--output", file]) == 1
    page = visit(Path(file), width=1440)
    assert in_sight(page.locator(ROWS).first.get_by_text("eps 1e-05 → 1e-06"))  # the remark, with the pane open
    assert "eps 1e-05 → 1e-06" in page.get_by_role("complementary", name="Selected module").inner_text()


@pytest.mark.sweep
def test_a_remark_has_room_before_the_figures_of_both_sides(visit: Visit, tmp_path: Path) -> None:
    """At a laptop's width all of a long remark is in sight, and figures of A and B leave together."""
    file = str(tmp_path / "d.html")
    sides = ("torch.nn:GELU", "torch.nn:GELU --arg approximate=tanh")
    assert main(["report", *sides, "--input", "2x3x4", "--quiet", "--output", file]) == 0
    page = visit(Path(file), width=1440)
    for width in (1440, 1340, 1240, 1140):
        page.set_viewport_size({"width": width, "height": 700})
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        heads = page.locator(".panel:not([hidden]) [role=columnheader] button").all_inner_texts()
        names = {name[:-2] for name in heads if name.endswith((" A", " B"))}
        assert all({f"{name} A", f"{name} B"} <= {*heads} for name in names)
        assert in_sight(page.locator(ROWS).first.get_by_text("approximate none → tanh"))


@pytest.mark.sweep
def test_a_laptop_shows_every_figure_and_the_gradients_beside_the_pane(visit: Visit, broken: Sequence[Report]) -> None:
    page = visit(HtmlReporter().render(broken, View()), width=1440)
    heads = page.locator("#view-modules [role=columnheader]")
    labels = heads.evaluate_all("all => all.map((one) => one.getAttribute('aria-label'))")
    assert any(label.startswith("Gradients L2") for label in labels)
    assert any(label.startswith("Activations NaN") for label in labels)
    assert all(in_sight(head) for head in (heads.first, heads.last))
    cut = "all => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.innerText)"
    assert page.locator(f"{ROWS} > .number").evaluate_all(cut) == []
    chosen = page.locator(f"{ROWS}.selected")
    detail = page.get_by_role("complementary", name="Selected module")
    (nan,) = (
        row["nan"] for report in broken if report.probe == "activations" for row in report.rows if row.fqn == PLACE
    )
    assert in_sight(chosen.locator("> .name")) and chosen.locator(".bad").first.inner_text() == str(nan)
    assert chosen.get_attribute("data-fqn") == PLACE and PLACE in detail.inner_text()
    page.locator(f"{ROWS}[data-fqn='transformer.0']").click()
    assert "n_head 4" in detail.inner_text()
    line = Block.forward.__code__.co_firstlineno
    assert f"test_first_sight.py:{line}" in detail.inner_text()
    page.locator(f"{ROWS}[data-fqn='transformer.0'] .fold").click()
    page.locator(f"{ROWS}[data-fqn='transformer.0.ln_1']").click()
    assert "eps 0.001" in detail.inner_text()
    assert detail.evaluate(
        "e => [...e.querySelectorAll('.detail-scroll')].every((t) => t.scrollWidth <= t.clientWidth)"
    )


@pytest.mark.sweep
def test_a_phone_shows_the_offender_and_its_nan_above_a_sheet(visit: Visit, broken: Sequence[Report]) -> None:
    page = visit(HtmlReporter().render(broken, View()), width=390)
    page.set_viewport_size({"width": 390, "height": 844})
    facts = page.locator(".facts")
    assert facts.evaluate("e => e.clientHeight <= 2 * 1.5 * 13 && e.scrollHeight > e.clientHeight")
    page.get_by_role("button", name="All facts").click()
    assert facts.evaluate("e => e.scrollHeight <= e.clientHeight + 1")
    page.get_by_role("button", name="Fewer facts").click()
    heads = page.locator("#view-modules [role=columnheader]").evaluate_all(
        "all => all.map((one) => [one.getAttribute('aria-label'), one.getBoundingClientRect().right])"
    )
    assert any(label.startswith("Activations NaN") for label, _ in heads) and all(right <= 391 for _, right in heads)
    named = page.locator(f"{ROWS} .name:has(.fault-inside) .text")
    assert named.count() > 2 and named.evaluate_all(NOT_SHORTENED)
    chosen = page.locator(f"{ROWS}.selected .bad").first
    handle = page.get_by_role("button", name="Details of the chosen module")
    assert in_sight(chosen) and chosen.bounding_box()["y"] < handle.bounding_box()["y"] - 20
    detail = page.locator(".detail")
    assert not detail.is_visible() and handle.bounding_box()["y"] > 780
    page.locator(f"{ROWS}[data-fqn='transformer.5']").first.click()
    assert detail.is_visible() and handle.bounding_box()["y"] >= 844 * 0.39
    handle.click()
    assert not detail.is_visible()


class Dead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)
        nn.init.constant_(self.first.bias, -50.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.act(self.first(x)))


@pytest.mark.sweep
def test_a_phone_shows_what_is_all_zero_below_a_whole_heading(visit: Visit) -> None:
    reports = hookcli.report(nn.Sequential(*(Dead() for _ in range(3))), torch.randn(4, 8)).reports
    page = visit(HtmlReporter().render(reports, View()), width=390)
    dead = page.locator(f"{ROWS}[data-fqn='0.act']")
    assert in_sight(dead.get_by_text("100%").first) and in_sight(dead.locator("> .name"))
    groups = page.locator("#view-modules .table-head .group").filter(has_text="s")
    assert groups.count() == 2 and all(groups.evaluate_all("all => all.map((e) => e.scrollWidth <= e.clientWidth)"))
