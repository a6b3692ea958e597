"""Faults planted in a healthy model are found first, and its twin has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support import untouched
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli import check
from hookcli.checks.judgement import fails
from hookcli.table import Report


class Net(nn.Module):
    """A small convolutional classifier; `fault` names what is wrong with it."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv, self.relu = nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()
        self.drop, self.fc, self.head = nn.Dropout(0.1), nn.Linear(16, 16), nn.Linear(16, 4)
        if fault == "unused layer":
            self.extra = nn.Linear(16, 16)
        if fault == "plain list":
            self.more = [nn.Linear(16, 16)]
        if fault == "plain tensor":
            self.shift = torch.zeros(16, requires_grad=True)

    def features(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm(self.stem(x)))
        y = self.relu(self.conv(y)).mean((2, 3))
        if self.fault == "detached":
            y = y.detach()
        if self.fault == "masked":
            y = y * 0
        if self.fault == "mixes the batch":
            y = y - y.mean(0)
        return y

    def forward(self, x: Tensor) -> Tensor:
        y = self.features(x)
        if self.fault != "forgotten dropout":
            y = self.drop(y)
        if self.fault == "dropout in eval":
            y = F.dropout(y, 0.1)
        y = self.fc(y)
        if self.fault == "log of zero":
            y = torch.log(torch.relu(y))
        if self.fault == "root of zero":
            y = y + (y * 0).sqrt()
        if self.fault == "plain list":
            y = self.more[0](y)
        if self.fault == "plain tensor":
            y = y + self.shift
        if self.fault == "layer made in forward":
            y = nn.Linear(16, 16)(y)
        return self.head(y)


def net(fault: str, change: Callable[[Net], Any] = lambda model: None) -> Callable[[], Net]:
    def make() -> Net:
        torch.manual_seed(0)
        model = Net(fault)
        with torch.no_grad():
            change(model)
        return model

    return make


@dataclass
class Fault:
    """The model, and what is found first: check, severity, place."""

    make: Callable[[], Net]
    first: tuple[str, str, str]


PLANTED = {
    "unused layer": Fault(net("unused layer"), ("HK006", "warning", "extra")),
    "forgotten dropout": Fault(net("forgotten dropout"), ("HK007", "warning", "drop")),
    "detached": Fault(net("detached"), ("HK008", "error", "stem")),
    "masked": Fault(net("masked"), ("HK009", "warning", "fc")),
    "mixes the batch": Fault(net("mixes the batch"), ("HK020", "error", "drop")),
    "dropout in eval": Fault(net("dropout in eval"), ("HK028", "warning", "")),
    "log of zero": Fault(net("log of zero"), ("HK003", "error", "")),
    "root of zero": Fault(net("root of zero"), ("HK004", "error", "fc.bias")),
    "dead": Fault(net("", lambda m: m.norm.bias.fill_(-100)), ("HK010", "warning", "relu")),
    "nan weight": Fault(net("", lambda m: m.fc.weight[0, 0].fill_(torch.nan)), ("HK005", "error", "fc.weight")),
    "hook left": Fault(net("", lambda m: m.fc.register_forward_hook(lambda *a: None)), ("HK019", "warning", "fc")),
    "norm in eval": Fault(net("", lambda m: m.norm.eval()), ("HK031", "warning", "norm")),
    "dropout left in eval": Fault(net("", lambda m: m.drop.eval()), ("HK031", "warning", "drop")),
    "all parts in eval": Fault(net("", lambda m: [p.eval() for p in m.children()]), ("HK031", "warning", "norm")),
    "frozen amid": Fault(net("", lambda m: m.conv.requires_grad_(False)), ("HK032", "info", "conv")),
    "plain list": Fault(net("plain list"), ("HK030", "warning", "")),
    "plain tensor": Fault(net("plain tensor"), ("HK030", "warning", "")),
    "layer made in forward": Fault(net("layer made in forward"), ("HK030", "warning", "")),
}  # fmt: skip


def judged(model: nn.Module, batch: int = 4, **settings: Any) -> Report:
    torch.manual_seed(1)
    x = torch.randn(batch, 3, 8, 8)
    with untouched(model):
        return check(model, x, **settings)


@pytest.mark.parametrize("name", PLANTED)
def test_each_is_found_first(name: str) -> None:
    report = judged(PLANTED[name].make())
    first = report.findings[0]
    assert (first.check, first.severity, first.fqn) == PLANTED[name].first
    assert fails([report], "error") == any(found.severity == "error" for found in report.findings)


@pytest.mark.parametrize("batch", [2, 4, 16])
def test_its_twin_has_nothing(batch: int) -> None:
    assert judged(net("")(), batch).findings == []


HEALTHY: dict[str, Callable[[Net], Any]] = {
    "fine-tuned from the stem on": lambda m: [m.stem.requires_grad_(False), m.norm.requires_grad_(False)],
    "norm frozen as a whole": lambda m: m.norm.eval().requires_grad_(False),
    "head alone": lambda m: [p.eval().requires_grad_(False) for p in (m.stem, m.norm, m.conv, m.fc)],
    "frozen and in eval mode": lambda m: m.conv.eval().requires_grad_(False),
    "norm without statistics": lambda m: setattr(m, "norm", nn.BatchNorm2d(8, track_running_stats=False).eval()),
    "no dropout": lambda m: setattr(m, "drop", nn.Dropout(0.0).eval()),
    "in eval mode": lambda m: m.eval(),
    "known twice": lambda m: setattr(m, "layers", [m.conv, m.fc]),
    "hidden on purpose": lambda m: m.__dict__.update(teacher=nn.Linear(16, 16)),
    "hidden and frozen": lambda m: setattr(m, "teachers", [nn.Linear(16, 16).requires_grad_(False)]),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_near_misses_have_nothing(name: str) -> None:
    batch_statistics = {"norm without statistics": "HK020"}
    assert judged(net("", HEALTHY[name])(), ignore=batch_statistics.get(name, ())).findings == []


def test_information_is_no_failure() -> None:
    report = judged(PLANTED["frozen amid"].make())
    assert [f.severity for f in report.findings] == ["info"]
    assert not fails([report], "warning") and report.totals["infos"] == 1
    assert report.totals["errors"] == report.totals["warnings"] == 0


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Dropout()),
         "Sequential stays in eval mode while the model trains; so do 2 in it (BatchNorm1d, Dropout)"),
        (nn.InstanceNorm1d(1, track_running_stats=True),
         "InstanceNorm1d stays in eval mode while the model trains, as do 2 more of its type"),
        (nn.GRU(4, 4, 2, dropout=0.1), "GRU stays in eval mode while the model trains, as do 2 more of its type"),
    ],
    ids=["container", "instance norm", "dropout inside"],
)  # fmt: skip
def test_parts_in_eval_mode_are_one_finding_each_or_for_their_type(layer: nn.Module, said: str) -> None:
    import copy

    class Last(nn.Module):
        def forward(self, x: Any) -> Tensor:
            return x[0] if isinstance(x, tuple) else x

    containers = isinstance(layer, nn.Sequential)
    model = nn.Sequential(nn.Linear(4, 4))
    for _ in range(1 if containers else 3):
        model.extend([copy.deepcopy(layer).eval(), Last()])
    x = torch.randn(16, 4) if containers else torch.randn(16, 1, 4)
    report = check(model, x, select="HK031")
    assert [(f.fqn, f.message) for f in report.findings] == [("1", said)]
