"""The search of a page and that of `hookcli explore` find the same: one language, in JavaScript and in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hookcli
from hookcli.capabilities.explore.places import Joined
from hookcli.capabilities.explore.search import search
from hookcli.reporters.html import HtmlReporter
from hookcli.table.grouping import View

EXAMPLES = (
    *(
        "conv",
        "conv -bn",
        "-conv -fc",
        '"batchnorm2d"',
        '"conv fc"',
        "CONV",
        "type=Conv2d",
        "type=conv2d",
        "type!=conv2d",
    ),
    *(
        "macs>1k",
        "macs>1K",
        "macs>=0.002M",
        "params<100",
        "params=0",
        "params!=0",
        "params>1Ki",
        "kept>1KiB",
        "calls=2",
    ),
    *("act.zeros>30%", "zeros>0", "act.std>=1 conv", "std>1", "mean<0", "grad.l2=nan", "grad.l2!=nan", "grad.nan=0"),
    *("max=inf", "min=-inf", "macs=-", "grad.l2=-", "grad.l2!=-", "nothing>1", "params>many", "2x4x8x8", "fqn=conv"),
    *("module=bn", "output=2x10", "macs>", ">1", "--bn", "act.median>0", "params>.5k", "params>5e2", "params>1kb"),
    *(
        "relu macs=0",
        "(model)",
        "bn conv",
        "input_shape=2x3x8x8",
        "source!=x",
        "-type=Conv2d",
        "macs_share>50%",
        "'conv'",
    ),
)
"""Searches with words, exclusions, all comparisons, units, names of columns and titles, and mistakes."""


class Net(nn.Module):
    """Calls its activation twice, returns a NaN from one layer, and leaves one out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
        self.body = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
        self.fc, self.unused = nn.Linear(256, 10), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.bn(self.conv(x)))
        out: torch.Tensor = self.fc(self.relu(self.body(x)).flatten(1))
        return out * torch.tensor([1.0] * 9 + [float("nan")])


@pytest.mark.sweep
def test_the_page_and_the_terminal_find_the_same(visit: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    reports = hookcli.report(Net(), torch.randn(2, 3, 8, 8), ops="functions").reports
    page, joined = visit(HtmlReporter().render(reports, View())), Joined(reports)
    page.get_by_role("tab", name="Modules").click()
    page.get_by_role("button", name="List").click()
    shown = """async (text) => {
        const input = document.querySelector("#view-modules .search");
        input.value = text;
        input.dispatchEvent(new Event("input"));
        await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        return [...document.querySelectorAll("#view-modules .table-row")].map((row) => row.dataset.fqn).sort();
    }"""
    found = {text: page.evaluate(shown, text) for text in EXAMPLES}
    ours = {
        text: sorted(fqn for fqn, place in joined.places.items() if search(joined, text)(place)) for text in EXAMPLES
    }
    assert {text: (ours[text], found[text]) for text in EXAMPLES if ours[text] != found[text]} == {}
    kinds = {len(names) for names in found.values()}
    assert len(kinds) > 6 and 0 in kinds
