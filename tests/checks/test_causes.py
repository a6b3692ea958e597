"""What is named: the first place, the cause, and one finding for each."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from checks.broken import Counts, Fn, Parts, biased, tower, wide
from support import untouched
from torch import Tensor, nn

from hookcli import check
from hookcli.checks.selection import known_checks
from hookcli.table.formatting import figure, number


def named(outputs: int) -> nn.Module:
    return Fn(lambda y: {"out": y, "aux": y.sum(1)} if outputs == 2 else {"out": y})


def test_the_first_of_what_is_not_finite_is_named_with_those_after_it() -> None:
    model = nn.Sequential(Fn(), Fn(torch.log), Fn(), Fn())
    [finding] = check(model, torch.randn(8, 4), select="HK003").findings
    assert finding.fqn == "1" and finding.message.endswith("and in 2 modules after it")


def test_a_crash_keeps_what_was_seen_and_does_not_blame_what_never_came() -> None:
    model = nn.Sequential(Fn(torch.log), nn.Linear(5, 2), nn.Linear(2, 2))
    report = check(model, torch.randn(8, 4))
    assert {f.check: f.fqn for f in report.findings} == {"HK001": "1", "HK003": "0"}
    assert "1 (Linear) failed on input 8x4" in report.findings[0].message
    left = {s.fqn.split()[0] for s in report.skipped}
    assert report.meta["checks"] == ["HK001", "HK003"] and report.meta["complete"] is False
    assert left == {kind.id for kind in known_checks() if not kind.asked_by} - {"HK001", "HK003"}
    assert {s.reason for s in report.skipped} == {"not judged: the run crashed"}


def test_a_crash_in_backward() -> None:
    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            raise ValueError("no derivative")

    report = check(nn.Sequential(Fn(Breaks.apply), nn.Linear(4, 2)), torch.randn(8, 4))
    assert [f.check for f in report.findings] == ["HK001"] and "no derivative" in report.findings[0].message


def test_an_output_that_leads_nowhere_is_no_crash() -> None:
    report = check(Fn(lambda y: y.detach()), torch.randn(8, 4))
    assert [(f.check, f.fqn, f.message) for f in report.findings] == [
        ("HK008", "", "no gradient reached layer.weight, layer.bias")
    ]


def test_a_frozen_model_is_judged_without_gradients() -> None:
    report = check(Fn().requires_grad_(False), torch.randn(8, 4))
    reasons = {s.reason for s in report.skipped}
    assert report.findings == [] and reasons == {"not judged: nothing requires a gradient"}


def test_bfloat16_has_the_range_of_float32() -> None:
    model = Fn(lambda y: y * 0 + 2e4).to(torch.bfloat16)
    assert check(model, torch.randn(4, 4, dtype=torch.bfloat16), select="HK016").findings == []


@pytest.mark.parametrize("what", ["named", "counted", "path"])
def test_expectations_of_nested_outputs(what: str) -> None:
    model, x = named(2), torch.randn(16, 4)
    assert check(model, x, expect_output=["out=*x4:float32", "aux=16"], select="HK021").findings == []
    assert check(model, x, expect_output=["16x4", "*"], select="HK021").findings == []
    wrong = {
        "named": (["out=*x4:float16"], "returned out=16x4:float32, expected out=*x4:float16"),
        "counted": (["*x4"], "returned out=16x4:float32, aux=16:float32, expected *x4"),
        "path": (["logits=*x4"], "returned no tensor 'logits'; available: out, aux"),
    }
    expected, message = wrong[what]
    [finding] = check(model, x, expect_output=expected, select="HK021").findings
    assert finding.message == message


def test_stochastic_depth_is_no_lost_gradient() -> None:
    from torchvision.ops import StochasticDepth

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.drop = nn.Linear(4, 4), StochasticDepth(1.0, "row")

        def forward(self, x: Tensor) -> Tensor:
            return x + self.drop(self.layer(x))

    model = nn.Sequential(nn.Linear(4, 4), Block(), nn.Linear(4, 2))
    assert check(model, torch.randn(8, 4), select="HK009").findings == []


def test_the_module_that_mixes_the_batch_is_named_and_state_is_put_back() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), Fn(lambda y: y - y.mean(0)), nn.Linear(4, 2))
    model[1].eval()  # frozen, as one does when fine-tuning
    x = torch.randn(4, 4)
    with untouched(model):
        [finding] = check(model, x, select="HK020").findings
    assert finding.fqn == "2" and finding.value is not None and finding.value > 1e-3


def test_a_batch_that_has_no_items_is_said() -> None:
    reasons = [s.reason for s in check(Fn(), torch.randn(1, 4), select="HK020").skipped]
    assert reasons == ["not judged: the inputs have no common dimension 0 of two or more; use --batch-size 2"]


def test_a_list_of_images_is_no_batch_whose_size_could_tell() -> None:
    images = [torch.ones(3, 4), torch.ones(3, 4)]
    [skipped] = check(Fn(before=torch.stack), (images,), select="HK020").skipped
    assert "container of tensors" in skipped.reason and "--batch-size" not in skipped.reason


def test_half_batches_that_give_other_shapes_or_state_that_passes_on() -> None:
    [finding] = check(Counts("eval", buffer=False), torch.randn(4, 4), select="split-batch").findings
    assert finding.value is not None and finding.value > 0.3
    model = Fn(lambda y: y.repeat(1, len(y)))
    [finding] = check(model, torch.randn(5, 4), select="HK026").findings
    assert "halves give 2x8 and 3x12 where the whole gives 5x20" in finding.message


def test_a_frozen_layer_may_be_left_out() -> None:
    model = Parts(call_drop=True)
    model.extra.requires_grad_(False)
    assert check(model, torch.randn(16, 4), select="HK006").findings == []


def test_one_cause_is_one_finding() -> None:
    """Of what got no gradient the outermost module, of zeros that nearest to the loss, of repeated layers the first."""
    model = nn.Sequential(Fn(), Parts(), nn.Sequential(Parts(), Parts(True)))
    model[2][0].layer.requires_grad_(False)
    found = check(model, torch.randn(16, 4), select=["HK007", "HK008"]).findings
    assert [(f.check, f.fqn, f.message, f.value) for f in found] == [
        ("HK008", "1.extra", "no gradient reached weight, bias", 2),
        ("HK008", "2.0", "no gradient reached extra.weight, extra.bias", 2),
        ("HK007", "1.drop", "Dropout was never called, nor were 2 others of that name", 3),
    ]
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    nn.init.zeros_(model[2].weight)
    [zero] = check(model, torch.randn(16, 4), select="HK009").findings
    assert (zero.fqn, zero.value) == ("1", 4)
    said, why = "the gradient of bias, weight is all zero", "2.weight is zero, so that zero flows back"
    assert zero.message == f"{said}, and of 2 other parameters: {why}"


def test_a_weight_whose_input_is_zero_is_told_from_one_that_nothing_flows_back_to() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Fn(before=lambda x: torch.relu(x - 100)))
    [zero] = check(model, torch.randn(16, 4), select="HK009").findings
    said = "the gradient of weight is all zero (the bias's is not: the layer's input is zero, or a mask or hook "
    assert (zero.fqn, zero.message) == ("1.layer", f"{said}makes it so), and of 2 other parameters")
    model = nn.Sequential(nn.Linear(4, 4), Fn(lambda x: torch.relu(x - 100)), nn.Linear(4, 4))
    [zero] = check(model, torch.randn(16, 4), select="HK009").findings
    said = "the gradient of weight is all zero (the layer's input is zero)"
    assert (zero.fqn, zero.message) == ("2", f"{said}, and of 4 other parameters")


@pytest.mark.parametrize(("id", "gain"), [("HK014", 0.2), ("HK015", 5.0)])
def test_the_block_where_a_threshold_is_crossed_is_named_with_its_own_figure(id: str, gain: float) -> None:  # noqa: A002
    """Each layer multiplies the standard deviation by its gain, being orthogonal."""
    torch.manual_seed(0)
    model = tower(nn.Identity(), 12, gain)
    [finding] = check(model, wide(), select=id, thresholds={id: gain**4}).findings
    assert finding.fqn in ("8", "10") and finding.value == pytest.approx(gain ** (int(finding.fqn) / 2), rel=0.2)
    assert f" is {number(finding.value)} " in finding.message and " it in " in finding.message


def test_the_first_module_that_overflows_is_named_not_the_largest() -> None:
    torch.manual_seed(0)  # the layer that receives 2e4 stays below the limit
    layers = [
        Fn(lambda y: y * 0 + 1),
        nn.Sequential(nn.Identity(), Fn(lambda y: y * 0 + 2e4)),
        Fn(lambda y: y * 0 + 5e4),
    ]
    report = check(nn.Sequential(*layers), torch.randn(16, 4), select="HK016")
    [finding] = report.findings
    assert (finding.fqn, finding.value) == ("1.1", 2e4)
    assert (
        finding.message
        == "its output reaches 20000; up to 50000 in 2, 4 places in all; the largest float16 number is 65504"
    )
    assert figure(finding.value) in finding.message, "as in the column of figures"


def test_a_model_that_writes_into_its_input_is_judged_on_the_same_each_time() -> None:
    x = torch.randn(16, 4)
    before = x.clone()
    model = Fn(before=lambda given: given.mul_(3).add_(1))
    assert [found.check for found in check(model, x, repeat=3, split_batch=True).findings] == ["HK036"]
    assert torch.equal(x, before)


def test_a_checkpoint_of_nan_is_one_finding() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with torch.no_grad():
        for tensor in (*model.parameters(), model[1].running_var):
            tensor.fill_(math.nan)
    [finding] = check(model, torch.randn(8, 4), select="HK005").findings
    assert (finding.fqn, finding.value) == ("0.weight", 16)
    assert finding.message == "16 of 16 values are NaN, and in 4 tensors after it"
    [later] = check(model, torch.randn(8, 4), select="HK004").findings
    assert later.message.endswith(" values of its gradient are NaN, and in 2 parameters after it")


def test_a_dropout_is_no_excuse_for_what_was_dead_before_it() -> None:
    torch.manual_seed(0)
    dead = biased(nn.ReLU(), 8)
    model = nn.Sequential(nn.Sequential(dead[0], dead[1], nn.Dropout(0.1)), dead[2])
    [finding] = check(model, torch.randn(16, 4), select="HK009").findings
    assert finding.fqn == "1" and "and of 2 other parameters" in finding.message
    with torch.no_grad():
        dead[0].bias.zero_()
    assert check(model, torch.randn(16, 4), select="HK009").findings == []


def test_the_limit_in_half_precision_is_shown_and_hangs_on_no_other_check() -> None:
    torch.manual_seed(0)
    model = Fn(lambda y: y + 3 * y.mean(0)).bfloat16()
    x = torch.randn(8, 4, dtype=torch.bfloat16)
    alone, beside = (check(model, x, select=checks).findings for checks in (["HK020"], ["HK020", "HK005"]))
    assert alone == beside and alone[0].threshold == 16 * 2**-7
    slight = Fn(lambda y: y + 0.1 * y.mean(0)).bfloat16()
    assert check(slight, x, select="HK020").findings == check(slight, x, select=["HK020", "HK005"]).findings == []
