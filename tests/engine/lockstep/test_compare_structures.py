"""Two models of other structures, failures, and what the process has once."""

from __future__ import annotations

import copy
import math
import threading
from functools import partial

import pytest
import torch
from engine.lockstep.compared import net, rows, x
from support import untouched
from torch import Tensor, nn

from hookcli.diff.tolerance import Tolerance
from hookcli.engine.lockstep import Side, compare
from hookcli.engine.step import Step
from hookcli.errors import ModelError, UsageError
from hookcli.reporters.table import TableReporter
from hookcli.table import strict
from hookcli.table.grouping import View, group_rows

# Structures that differ.


def test_renamed_added_and_removed_modules() -> None:
    class Old(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout())
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x))

    class New(nn.Module):
        def __init__(self, old: Old) -> None:
            super().__init__()
            self.trunk = nn.Sequential(old.body[0], nn.GELU(), nn.ReLU())
            self.head = old.head

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.trunk[2](self.trunk[0](x)))

    old = Old().eval()
    report = compare(Side(old, torch.randn(2, 4)), Side(New(old).eval(), torch.randn(2, 4)), tolerance=Tolerance(0, 0))
    found = {row.fqn: row for row in report.rows}
    assert found["body.0"]["change"] == "renamed: trunk.0" and found["body.1"]["change"] == "renamed: trunk.2"
    assert found["body.2"]["change"] == "removed" and not found["body.2"].get("beyond")
    assert found["head"].get("change") is None and found[""]["change"] == "Old → New"
    assert report.totals["removed"] == 1 and "body.2" in report.totals["structure"]
    assert {f.message for f in report.findings if f.severity == "note"} >= {"body.2 (Dropout) is in A only"}


def test_another_order_of_calls_is_no_difference() -> None:
    class Twins(nn.Module):
        def __init__(self, first: str) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.left, self.right, self.first = nn.Linear(4, 4), nn.Linear(4, 4), first

        def forward(self, x: Tensor) -> Tensor:
            if self.first == "left":
                left, right = self.left(x), self.right(x)
            else:
                right, left = self.right(x), self.left(x)
            left.zero_()  # a copy of what was returned is compared, not this
            return left + right

    report = compare(Side(Twins("left"), torch.randn(2, 4)), Side(Twins("right"), torch.randn(2, 4)))
    assert report.totals["compared"] == 3


def test_a_call_that_one_side_leaves_out_and_another_shape() -> None:
    class Repeats(nn.Module):
        def __init__(self, times: int, width: int) -> None:
            super().__init__()
            self.mix, self.head = nn.Linear(4, 4), nn.Linear(4, width)
            self.times = times

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(self.times):
                x = self.mix(x)
            return self.head(x)

    for times in ((3, 2), (2, 3)):
        report = compare(Side(Repeats(times[0], 2), torch.randn(1, 4)), Side(Repeats(times[1], 3), torch.randn(1, 4)))
        lone = [row for row in report.rows if row.fqn == "mix" and row["call"] == 2]
        assert lone[0]["beyond"] and lone[0]["differs"] == f"called in {'AB'[times[1] > times[0]]} only"
        head = next(row for row in report.rows if row.fqn == "head")
        assert head["differs"] == "shape 1x2 → 1x3" and head["beyond"]


# What goes wrong.


class Fails(nn.Module):
    def __init__(self, error: BaseException | None) -> None:
        super().__init__()
        self.first, self.second, self.error = nn.Linear(4, 4), nn.ReLU(), error

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.error:
            raise self.error
        return self.second(x)


@pytest.mark.parametrize("side", ["A", "B"])
def test_a_crash_names_its_side_and_leaves_what_was_compared(side: str) -> None:
    models = [Fails(ValueError("lost") if name == side else None) for name in "AB"]
    with (
        untouched(models[0]),
        untouched(models[1]),
        pytest.raises(ModelError, match=rf"^{side}: the model \(Fails\)") as info,
    ):
        compare(*(Side(model, torch.ones(1, 4)) for model in models))
    (report,) = info.value.reports
    assert list(rows(report)) == [("first", 0)] and report.meta["complete"] is False


@pytest.mark.parametrize("side", ["A", "B"])
def test_an_interrupt_passes_with_what_was_compared(side: str) -> None:
    models = [Fails(KeyboardInterrupt() if name == side else None) for name in "AB"]
    with pytest.raises(KeyboardInterrupt) as info:
        compare(*(Side(model, torch.ones(1, 4)) for model in models))
    assert list(rows(info.value.reports[0])) == [("first", 0)]  # type: ignore[attr-defined]
    assert not any(thread.name == "hookcli-b" for thread in threading.enumerate())


def test_a_model_against_itself_is_compared_with_a_copy() -> None:
    model = net().train()
    with untouched(model):
        report = compare(Side(model, x()), Side(model, x()), step=Step(backward=True), tolerance=Tolerance(0, 0))
    assert report.totals["compared"] > 10 and report.totals["beyond"] == 0


def test_nan_on_one_side_is_beyond_any_tolerance() -> None:
    a, b = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))
    with torch.no_grad():
        b[0].bias[0] = math.nan
    report = compare(Side(a, torch.ones(1, 2)), Side(b, torch.ones(1, 2)), tolerance=Tolerance(1e9, 1e9))
    row = next(row for row in report.rows if row.fqn == "0")
    assert row["differs"] == "1 of 2 elements are NaN or Inf on one side only" and row["nonfinite"] == 1
    figures = ("max_abs", "mean_abs", "error_l2", "rel_l2", "cosine")
    for shown in (row, next(r for r in group_rows(report, 1).rows if r.fqn == "0")):
        assert all(math.isnan(shown[key]) for key in figures) and shown["growth"] is None
    saved = strict(report.to_dict())["rows"]
    assert next(r for r in saved if r["fqn"] == "0")["cosine"] == "NaN"
    text = next(line for line in TableReporter().render([report], View()).splitlines() if line.startswith("0 "))
    assert text.split()[:8] == ["0", "Linear", "1x2", "-", "-", "-", "-", "inf"]


# What the process has once.


def test_fused_attention_against_plain() -> None:
    """The switch is the process's, the choice each side's; what the fused path hides on one side counts as equal."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    tokens = torch.randn(2, 3, 8)
    with untouched(model):
        report = compare(Side(model, tokens), Side(copy.deepcopy(model), tokens, fastpath=False))
    found = {row.fqn: row for row in report.rows if "rel_l2" in row.values}
    assert {"", "layers.0", "layers.1"} <= found.keys() and found[""]["rel_l2"] < 1e-5
    assert not any(row.get("beyond") for row in found.values())


class Padded(nn.Module):
    """Hands nested tensors from layer to layer in eval mode: PyTorch's fused path leaves out what is padding."""

    def __init__(self, padding: list[int], layers: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.register_buffer("mask", torch.arange(3) >= torch.tensor([[3 - n] for n in padding]))

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x, src_key_padding_mask=self.mask)


def test_nested_tensors() -> None:
    a, b, inputs = Padded([0, 1]).eval(), Padded([0, 1]).eval(), torch.randn(2, 3, 8)
    assert compare(Side(a, inputs), Side(copy.deepcopy(b), inputs)).totals["beyond"] == 0
    with torch.no_grad():
        b.encoder.layers[1].linear2.bias[0] += 1
    found = rows(compare(Side(a, inputs), Side(b, inputs)))
    assert found["encoder.layers.0", 0]["max_abs"] == 0 and found["encoder.layers.0", 0]["shape"] == [2, -1, 8]
    assert found["encoder.layers.1", 0]["max_abs"] > 0.1


def test_nested_tensors_that_are_cut_up_otherwise() -> None:
    inputs = torch.randn(2, 3, 8)
    found = rows(compare(Side(Padded([0, 1]).eval(), inputs), Side(Padded([1, 0]).eval(), inputs)))
    assert found["encoder.layers.0", 0]["differs"] == "item 0: shape 3x8 → 2x8" and found["encoder", 0]["beyond"]


def test_nested_tensors_of_one_side_alone() -> None:
    inputs = torch.randn(2, 3, 8)
    report = compare(Side(Padded([0, 1], 1).eval(), inputs), Side(Padded([0, 1], 2).eval(), inputs))
    assert rows(report)["encoder.layers.1", 0]["change"] == "added"


def test_edits_of_one_side() -> None:
    a, b = net(), net()
    report = compare(Side(a, x()), Side(b, x(), edits=["1.conv:output=scale(2)"]))
    assert "First difference: 1.conv" in report.totals["verdict"]
    assert report.meta["b"]["edits"] == ["1.conv:output=scale(2)"]
    with pytest.raises(UsageError, match="there are no gradients here"):
        compare(Side(a, x()), Side(b, x(), edits=["2:grad_output=scale(2)"]))


@pytest.mark.sweep
def test_compiled_parts_are_seen_inside() -> None:
    a, b = net(), net()
    with untouched(b):
        report = compare(Side(a, x()), Side(b, x(), compile={"0": partial(torch.compile, backend="aot_eager")}))
    names = {row.fqn for row in report.rows}
    assert names == {row.fqn for row in compare(Side(a, x()), Side(net(), x())).rows} and not report.skipped
    assert "forward" not in vars(b[0]) and report.totals["beyond"] == 0


def test_select_is_by_the_names_of_a() -> None:
    report = compare(Side(net(), x()), Side(net(), x()), select=lambda fqn, module: fqn.endswith("conv"))
    assert [row.fqn for row in report.rows] == ["0.conv", "1.conv"]


def test_grad_mode_and_random_state_are_each_sides_own() -> None:
    """A side that draws more than the other does not disturb it."""

    class Draws(nn.Module):
        def __init__(self, times: int) -> None:
            super().__init__()
            self.first, self.noise, self.times = nn.Identity(), nn.Dropout(0.5), times

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                x = self.first(x)
            x = self.noise(x)
            torch.rand(self.times)
            assert torch.is_grad_enabled() is False
            return self.first(x)

    a, b = Draws(1).train(), Draws(100).train()
    assert compare(Side(a, torch.ones(8, 8)), Side(b, torch.ones(8, 8))).totals["beyond"] == 0
