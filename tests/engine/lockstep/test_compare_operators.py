"""Operators of two models in lockstep: paired by function and order, compared as modules' outputs are."""

from __future__ import annotations

import copy
import inspect
from functools import partial

import pytest
import torch
from engine.lockstep.compared import error
from support import untouched
from torch import Tensor, nn
from torch.nn import functional

from hookcli.diff.tolerance import Tolerance
from hookcli.engine.lockstep import Side, compare
from hookcli.engine.step import Step
from hookcli.table import Report, Row


class Net(nn.Module):
    """A layer, and functions around it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.layer(x))
        y = y + x
        y = self.scaled(y)
        return (y + 1).softmax(-1)

    def scaled(self, y: Tensor) -> Tensor:
        return y * 2


class Other(Net):
    """The same, but for a rectification in place, a shift that comes first and cancels, and another factor."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer((x + 1) - 1)
        y = functional.relu_(y) + x
        return (self.scaled(y) + 1).softmax(-1)

    def scaled(self, y: Tensor) -> Tensor:
        return y * 2.5


def nets(other: type[Net] = Other) -> tuple[Net, Net]:
    a, b = Net(), other()
    b.load_state_dict(a.state_dict())
    return a, b


X = torch.linspace(-2, 2, 12).reshape(3, 4)


def outputs(report: Report) -> dict[str, Row]:
    return {row.fqn: row for row in report.rows if row["kind"] == "output" and row.get("change") != "added"}


def line_of(function: object, text: str) -> str:
    lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    return str(first + next(number for number, line in enumerate(lines) if text in line))


def test_the_first_operator_that_differs_is_named_with_both_lines() -> None:
    a, b = nets()
    with untouched(a), untouched(b):
        report = compare(Side(a, X), Side(b, X), ops="functions")
    found = outputs(report)
    lines = line_of(Net.scaled, "y * 2"), line_of(Other.scaled, "y * 2.5")
    said = report.totals["verdict"]
    assert said.startswith("First difference: :mul_1 (") and said.endswith(
        ", relative error 0.25 (2 operators only in B)"
    )
    assert found[":mul_1"]["source"].endswith(f".py:{lines[1]}") and f".py:{lines[0]} → " in found[":mul_1"]["source"]
    assert found[":relu_1"]["change"] == "renamed: :relu__1" and not found[":relu_1"].get("beyond")
    assert found[":add_1"]["change"] == "renamed: :add_2" and found[":add_2"]["change"] == "renamed: :add_3"
    with torch.no_grad():
        y = functional.relu(a.layer(X)) + X
        assert found[":mul_1"]["rel_l2"] == pytest.approx(0.25, rel=1e-5)
        assert found[":add_2"]["rel_l2"] == pytest.approx(error(y * 2 + 1, y * 2.5 + 1), rel=1e-4)
        assert found[":add_2"]["growth"] == pytest.approx(found[":add_2"]["rel_l2"] / found[":mul_1"]["rel_l2"])
    assert [row.fqn for row in report.rows if row.get("change") == "added"] == [":add_1", ":sub_1"]


def test_gradients_of_operators() -> None:
    a, b = nets()
    step = Step(backward=True, loss=lambda y: (y[:, 0] ** 2).sum())
    report = compare(Side(a, X), Side(b, X), ops="functions", step=step)
    found = {row.fqn: row for row in report.rows if row["kind"] == "grad_output"}
    grads = []
    for net, factor in ((a, 2), (b, 2.5)):
        y = (functional.relu(net.layer(X)) + X).detach().requires_grad_()
        ((y * factor + 1).softmax(-1)[:, 0] ** 2).sum().backward()
        grads.append(y.grad)
    assert found[":add_1"]["rel_l2"] == pytest.approx(error(*grads), rel=1e-4)


@pytest.mark.parametrize("backward", [False, True])
def test_a_model_equals_itself(backward: bool) -> None:
    a, b = Net(), Net()
    b.load_state_dict(a.state_dict())
    step = Step(backward=backward)
    report = compare(Side(a, X), Side(b, X), tolerance=Tolerance(0, 0), step=step, ops="functions")
    assert report.totals["verdict"] == "Identical, bit for bit"
    names = [":relu_1", ":add_1", ":mul_1", ":add_2", ":softmax_1"]
    assert [row.fqn for row in report.rows if row["kind"] == "output"] == ["", "layer", *names]
    assert report.meta["ops"] == "functions" and "source" in [column.name for column in report.columns]


def test_a_side_that_fails_in_an_operator_shows_what_ran_until_then() -> None:
    class Broken(Net):
        def scaled(self, y: Tensor) -> Tensor:
            return y @ y

    a, b = nets(Broken)
    with pytest.raises(Exception, match="B: ") as caught:
        compare(Side(a, X), Side(b, X), ops="functions")
    (report,) = caught.value.reports
    assert [row.fqn for row in report.rows] == ["layer", ":relu_1", ":add_1"] and not report.totals["beyond"]


def test_an_operator_after_a_container_does_not_stand_among_its_parts() -> None:
    class Headed(nn.Module):
        def __init__(self, shift: float) -> None:
            super().__init__()
            self.parts, self.head = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4)
            self.shift = shift

        def forward(self, x: Tensor) -> Tensor:
            y = self.parts(x)
            return self.head(y - self.shift if self.shift else y)

    a, b = Headed(0), Headed(0.5)
    b.load_state_dict(a.state_dict())
    for ops in ("functions", None):
        verdict = compare(Side(a, X), Side(b, X), ops=ops).totals["verdict"]
        assert verdict.startswith("First difference: before head, only in B: :sub_1 ("), verdict


def test_an_operator_that_one_side_alone_has_is_named_as_the_cause() -> None:
    class Before(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x / 2)

    class After(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 3

    class Within(Net):
        def scaled(self, y: Tensor) -> Tensor:
            return super().scaled(y).sigmoid()

    for other, place, cause in (
        (Before, "before layer", f"only in B: :div_1 ({{}}:{line_of(Before.forward, 'x / 2')})"),
        (Within, "before :add_2", f"only in B: :sigmoid_1 ({{}}:{line_of(Within.scaled, 'sigmoid')})"),
        (After, "at the end of (model)", f"only in B: :mul_2 ({{}}:{line_of(After.forward, '* 3')})"),
    ):
        for ops in ("functions", None):
            a, b = nets(other)
            report = compare(Side(a, X), Side(b, X), ops=ops)
            said, fault = report.totals["verdict"], report.findings[0]
            assert said.startswith(f"First difference: {place}") and cause.partition("{}")[2] in said, said
            assert cause.partition("{}")[0] in said and fault.severity == "error" and fault.fqn in cause


def test_a_part_that_received_the_same_is_the_first_difference_whatever_ran_before_it() -> None:
    class Logs(Net):
        def forward(self, x: Tensor) -> Tensor:
            x.mean()
            return super().forward(x)

    a, b = nets(Logs)
    with torch.no_grad():
        b.layer.weight[0, 0] += 1
    said = compare(Side(a, X), Side(b, X), ops="functions").totals["verdict"]
    assert said.startswith("First difference: layer (weight differs), ")


def test_selected_by_names_of_a() -> None:
    a, b = nets()
    report = compare(Side(a, X), Side(b, X), ops="functions", select=lambda fqn, part: fqn.startswith(":add"))
    assert [row.fqn for row in report.rows] == [":add_1", ":add_2"]


def test_compiled_parts_are_left_alone() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = Net(), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.last(self.inner(x)) * 3
            return y

    a = Outer()
    b = copy.deepcopy(a)
    compiled = {"inner": partial(torch.compile, backend="eager")}
    report = compare(Side(a, X), Side(b, X, compile=compiled), ops="functions")
    assert [row.fqn for row in report.rows] == ["", "inner", "last", ":mul_1"]
    assert not report.totals["beyond"] and [item.fqn for item in report.skipped] == ["inner.layer"]


FP4 = torch.float4_e2m1fn_x2  # PyTorch copies and sums none


class Packs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x > 0).to(torch.uint8).view(FP4)


class Unpacks(nn.Module):
    def forward(self, packed: Tensor) -> Tensor:
        return packed.view(torch.uint8).float()


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pack, self.unpack, self.head = Packs(), Unpacks(), nn.Linear(4, 2)
        self.table = nn.Buffer(torch.arange(4, dtype=torch.uint8).view(FP4))

    def forward(self, x: Tensor) -> Tensor:
        self.pack(x)
        return self.head(self.unpack((x < 0).to(torch.uint8).view(FP4)))


def test_values_that_can_t_be_compared_are_named() -> None:
    model = Packed()
    report = compare(Side(model, torch.randn(2, 4)), Side(copy.deepcopy(model), torch.randn(2, 4)))
    reason = "can't be compared (float4_e2m1fn_x2, NotImplementedError)"
    assert {(item.fqn, item.path): item.reason for item in report.skipped} == {
        ("pack", ""): reason,
        ("unpack", ""): f"its input {reason}",
        ("table", ""): reason,
    }
    assert {row.fqn for row in report.rows} == {"", "unpack", "head"}
