"""The forward picture in a real browser: boxes, folds, selection, colours and keys, against the rows that it draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from hookcli import capture
from hookcli.reporters.html.page import page as page_of
from hookcli.table import document

if TYPE_CHECKING:
    from playwright.sync_api import Page

Visit = Callable[..., "Page"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Any:
        return self.norm(self.a(x)) + x


class Net(nn.Module):
    """Blocks with skip connections, one of which runs twice, and 100 layers in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.row = nn.Sequential(*(nn.Tanh() for _ in range(100)))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        for block in (*self.blocks, self.blocks[0]):
            x = block(x)
        return self.head(self.row(x))


@pytest.fixture(scope="module")
def text() -> str:
    net, x = Net(), torch.randn(3, 4)
    reports = [*capture(net, x, ["shapes", "flow"]), *capture(net, x, ["activations"])]
    return page_of(
        {"schema": 1, "kind": "model", "title": "Net", "reports": document(reports)["reports"], "explain": {}}
    )


@pytest.fixture
def page(visit: Visit, text: str) -> Page:
    opened = visit(text)
    opened.click("#tab-picture")
    return opened


def names(page: Page) -> list[str]:
    found: list[str] = page.locator(".flow [role=treeitem] title").all_text_contents()
    return [name.split(", output")[0] for name in found]


def box(page: Page, fqn: str) -> Any:
    return page.locator(f".flow [data-fqn='{fqn}']").first


def lines(page: Page) -> int:
    return page.locator(".flow .flow-line").count()


def test_boxes_fold_and_keep_their_skip_connections(page: Page) -> None:
    page.click("button[title='Fold all']")
    folded = [
        *("input", "stem, Linear", "blocks.0, Block", "blocks.1, Block", "blocks.0, Block"),
        *("row, Sequential", "head, Linear", "output"),
    ]
    assert sorted(names(page)) == sorted(folded)
    assert lines(page) == 7
    box(page, "blocks.1").locator("[data-fold]").click()
    # Inside: from the block before to `a` and to the addition, a to norm to add, and out.
    assert lines(page) == 7 + 5
    assert {"blocks.1.a, Linear", "blocks.1.norm, LayerNorm", "blocks.1, add"} < {*names(page)}
    box(page, "blocks.1").locator("[data-fold]").click()
    assert lines(page) == 7


@pytest.mark.sweep
def test_very_many_parts_are_shown_in_runs(page: Page) -> None:
    page.click("button[title='Fold all']")
    box(page, "row").locator("[data-fold]").click()
    assert page.locator(".flow .flow-run").count() == 3
    page.click("button[title='Unfold all']")
    calls = page.locator(".flow .flow-module:not(.flow-open)").count()
    assert calls == 2 + 3 * 2 + 100
    assert page.inner_text(".picture-told").endswith("113 calls")  # and the additions, the input and the output


def test_a_click_selects_the_row_and_a_row_selects_its_box(page: Page) -> None:
    box(page, "stem").click()
    assert "flow-selected" in str(box(page, "stem").get_attribute("class"))
    assert "stem" in page.inner_text("#detail")
    page.click("button[title='Fold all']")
    page.click("#tab-modules")
    page.locator("#view-modules .search").fill("norm")
    page.locator("#view-modules [role=row]", has_text="norm").first.click()
    page.click("#tab-picture")
    assert "flow-holds" in str(box(page, "blocks.0").get_attribute("class"))


@pytest.mark.sweep
def test_keys_move_unfold_select_and_zoom(page: Page) -> None:
    page.click("button[title='Fold all']")
    canvas = page.locator(".picture-canvas")
    canvas.focus()
    for key in ("Home", "ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    active = canvas.get_attribute("aria-activedescendant")
    opened = page.locator(f"[id='{active}']")
    assert opened.get_attribute("aria-expanded") == "true" and opened.get_attribute("data-fqn") == "blocks.0"
    page.keyboard.press("ArrowLeft")
    assert page.locator(f"[id='{active}']").get_attribute("aria-expanded") == "false"
    page.keyboard.press("Enter")
    assert "blocks.0" in page.inner_text("#detail")
    width = page.locator(".flow").bounding_box()
    page.keyboard.press("+")
    wider = page.locator(".flow").bounding_box()
    assert width and wider and wider["width"] > width["width"]


@pytest.mark.sweep
def test_colours_have_a_legend_with_the_figures(page: Page) -> None:
    page.click("button[title='Fold all']")
    page.select_option(".picture-by", "params")
    fill = "element => element.querySelector('rect').style.fill"
    assert box(page, "blocks.0").evaluate(fill) != box(page, "head").evaluate(fill) != ""
    assert page.inner_text(".picture-legend").split() == ["0", "28"]
    page.select_option(".picture-by", "")
    assert box(page, "head").evaluate(fill) == ""


@pytest.mark.sweep
def test_a_function_of_the_picture_is_the_operator_of_the_table(visit: Visit) -> None:
    reports = capture(Block(), torch.randn(3, 4), ["shapes", "flow"], ops="functions")
    content = {"schema": 1, "kind": "model", "title": "Block", "reports": document(reports)["reports"], "explain": {}}
    page = visit(page_of(content))
    page.click("#tab-picture")
    page.locator(".flow-function").click()
    assert page.locator(".flow-function").get_attribute("data-fqn") == ":add_1"
    assert page.locator(".detail-name").inner_text() == ":add_1"
    assert "test_picture.py:" in page.locator(".detail-grid").first.inner_text()
    page.click("#tab-modules")
    assert page.locator(".table-row.selected").get_attribute("data-fqn") == ":add_1"
    page.locator("input[type=search]").fill("type=add")
    assert "1" in page.locator(".table-row:not(.aside)").first.inner_text()
