"""Where a fault begins: the module to blame, its cause, and attention's dropout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli import check
from hookcli.checks.base import Check
from hookcli.checks.judgement import judge
from hookcli.checks.measurements import Measurements
from hookcli.table import Finding

# Where values that are not finite begin.


class Stages(nn.Module):
    def __init__(self, break_: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.pre = nn.Linear(8, 8)
        self.net = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 4))
        self.break_ = break_

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.break_(self.pre(x)))


def test_the_code_between_two_modules_is_blamed_and_not_the_one_that_received() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Stages(lambda y: y), Stages(lambda y: (y * 0).log()))
    model[1].pre, model[1].net[1] = nn.Linear(4, 8), nn.Linear(8, 4)
    [finding] = check(model, torch.randn(4, 8), select="HK003").findings
    assert (finding.fqn, finding.value) == ("1", 32)
    said = "begins between 1.pre and 1.net, which received it: 32 of 32 values of the output of 1.net.0.0 are NaN"
    assert finding.message == f"{said}, and in 2 modules after it"


def test_a_module_that_makes_them_itself_is_blamed_though_it_was_given_a_mask() -> None:
    class Attends(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return (x + mask).softmax(-1)

    class Masks(nn.Module):
        def __init__(self, masked: int) -> None:
            super().__init__()
            self.first, self.attends, self.masked = nn.Linear(4, 4), Attends(), masked

        def forward(self, x: Tensor) -> Tensor:
            mask = torch.zeros(4, 4)
            mask[0, : self.masked] = -torch.inf
            return self.attends(self.first(x), mask)

    [finding] = check(Masks(4), torch.randn(4, 4), select="HK003").findings
    assert finding.fqn == "attends" and finding.message == "4 of 16 values of its output are NaN"
    assert check(Masks(3), torch.randn(4, 4), select="HK003").findings == []


def test_a_module_that_makes_a_mask_is_not_blamed() -> None:
    class Ahead(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)

    class Attends(nn.Module):
        def __init__(self, weight: float) -> None:
            super().__init__()
            self.ahead, self.first = Ahead(), nn.Linear(4, 4)
            nn.init.constant_(self.first.weight, weight)

        def forward(self, x: Tensor) -> Tensor:
            mask = self.ahead(x)
            return (self.first(x) + mask).softmax(-1)

    assert check(Attends(1.0), torch.randn(4, 4), select="HK003").findings == []
    [finding] = check(Attends(torch.nan), torch.randn(4, 4), select="HK003").findings
    assert finding.fqn == "first"


def test_what_came_with_the_input_is_said_after_it() -> None:
    x = torch.randn(4, 8)
    x[0, 0] = torch.nan
    found = check(Stages(lambda y: y), x, select=["HK002", "HK003"]).findings
    assert [(f.check, f.fqn) for f in found] == [("HK002", ""), ("HK003", "pre")]
    assert found[1].message.endswith("; the model's input already has such values")


# Causes and consequences.


@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize("batch", [2, 4, 16])
def test_a_dead_relu_is_named_before_what_follows_from_it(batch: int, functional: bool) -> None:
    class Dies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.relu = nn.Linear(8, 16), nn.Linear(16, 4), nn.ReLU()
            nn.init.constant_(self.first.bias, -100)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            return self.second(torch.relu(y) if functional else self.relu(y))

    torch.manual_seed(0)
    found = check(Dies(), torch.randn(batch, 8), select=["HK009", "HK010"]).findings
    assert [f.check for f in found] == ["HK010", "HK009"]
    assert (found[0].fqn, found[0].value) == ("second" if functional else "relu", 1.0)


def test_a_view_of_what_a_part_returned_is_the_parts() -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm1d(8)
            nn.init.zeros_(self.bn.weight)  # a residual branch that begins as nothing, on purpose

        def forward(self, x: Tensor) -> Tensor:
            return self.bn(x.flatten(0, 1)).reshape_as(x)

    model = nn.Sequential(nn.Linear(8, 8), Norm(), nn.Linear(8, 8))
    assert check(model, torch.randn(4, 10, 8), select="HK010").findings == []


def test_findings_follow_those_of_their_causes_whatever_the_order() -> None:
    class Says(Check):
        means = advice = ""
        needs = ()
        values = False

        def judge(self, measured: Measurements) -> list[Finding]:
            return [self.finding("", "")]

    def made(name: str, *follows: str, severity: str = "warning") -> Check:
        return type(name, (Says,), {"id": name, "name": name, "follows": follows, "severity": severity})()

    checks = [
        made("A", "B", "C"),
        made("B", "C"),
        made("C", "A"),
        made("D", severity="info"),
        made("E", severity="error"),
    ]
    found = judge(checks, Measurements())
    assert [f.check for f in found.findings] == ["E", "C", "B", "A", "D"] and found.checks == ["A", "B", "C", "D", "E"]


# Fused attention does the work of a dropout that is never called.


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.dropout, self.softmax = nn.Linear(8, 24), nn.Dropout(0.1), nn.Softmax(-1)
        self.p = self.dropout.p

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(*self.qkv(x).chunk(3, -1))


class ReadsP(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.training:
            return F.scaled_dot_product_attention(q, k, v, None, self.dropout.p)
        return self.dropout(self.softmax(q @ k.mT)) @ v


class OtherBranch(Attention):
    """As nanoGPT has it."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if hasattr(F, "scaled_dot_product_attention"):
            return F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0)
        return self.dropout(self.softmax(q @ k.mT)) @ v


class ByFunction(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        drop = self.dropout
        return F.dropout(self.softmax(q @ k.mT), drop.p, self.training) @ v


class Extends(ReadsP):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super().attend(q, k, v) * 2


class Forgets(ReadsP):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.softmax(F.scaled_dot_product_attention(q, k, v))


class ForgetsInBranch(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.dim():
            return self.softmax(F.scaled_dot_product_attention(q, k, v))
        return self.dropout(self.softmax(q @ k.mT)) @ v


@pytest.mark.parametrize("kind", [ReadsP, OtherBranch, ByFunction, Extends])
def test_a_dropout_whose_work_is_done_without_it(kind: type[nn.Module]) -> None:
    assert check(kind(), torch.randn(4, 5, 8), select="HK007").findings == []
    assert check(nn.Sequential(kind(), nn.Linear(8, 2)), torch.randn(4, 5, 8), select="HK007").findings == []


@pytest.mark.parametrize("kind", [Forgets, ForgetsInBranch])
def test_a_dropout_that_fused_attention_is_not_told_of(kind: type[nn.Module]) -> None:
    [finding] = check(kind(), torch.randn(4, 5, 8), select="HK007").findings
    assert finding.fqn == "dropout"
