"""Two models in lockstep: figures are those of two runs that kept everything."""

from __future__ import annotations

import copy
import threading
from typing import Any
from weakref import WeakSet

import pytest
import torch
import torchvision
from engine.lockstep.compared import error, net, rows, x
from support import Nested, Shared, untouched
from torch import Tensor, nn

from hookcli.diff.tolerance import Tolerance
from hookcli.engine.lockstep import Side, compare
from hookcli.engine.step import Step


def kept(model: nn.Module, inputs: Tensor, backward: bool = False) -> dict[tuple[str, int], Tensor]:
    """Every output of a run, cloned, by name and call, in the order in which the calls ended."""
    found: dict[tuple[str, int], Tensor] = {}
    handles = []
    for fqn, module in model.named_modules():

        def hook(module: nn.Module, args: Any, output: Tensor, fqn: str = fqn) -> None:
            found[fqn, sum(name == fqn for name, _ in found)] = output.detach().clone()

        handles.append(module.register_forward_hook(hook))
    torch.manual_seed(0)
    with torch.set_grad_enabled(backward):
        output = model(inputs)
    if backward:
        output.sum().backward()
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("train", [False, True])
def test_figures_are_those_of_two_runs_that_kept_everything(dtype: torch.dtype, train: bool) -> None:
    """Batch normalization, in place ReLU and dropout, with the same random numbers on both sides."""
    a, b = net().train(train), net(seed=3).train(train).to(dtype)
    report = compare(Side(a, x()), Side(b, x().to(dtype)))
    ours, theirs = kept(copy.deepcopy(a), x()), kept(copy.deepcopy(b), x().to(dtype))
    assert rows(report).keys() == ours.keys() == theirs.keys()
    for key, row in rows(report).items():
        assert row["rel_l2"] == pytest.approx(error(ours[key], theirs[key]), rel=1e-4), key
        assert row["max_abs"] == pytest.approx((ours[key].double() - theirs[key].double()).abs().max().item(), rel=1e-4)
        assert row["shape"] == list(ours[key].shape)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_a_model_equals_itself_and_nothing_is_left(backward: bool, train: bool) -> None:
    a, b = net().train(train), net().train(train)
    with untouched(a), untouched(b):
        report = compare(Side(a, x()), Side(b, x()), tolerance=Tolerance(0, 0), step=Step(backward=backward))
    assert report.totals["beyond"] == 0 and report.totals["verdict"] == "Identical, bit for bit"
    assert all(row["max_abs"] == 0 for row in report.rows)
    assert not any(thread.name == "hookcli-b" for thread in threading.enumerate())


@pytest.mark.sweep
def test_a_single_weight_is_found_in_its_module() -> None:
    a = torchvision.models.resnet18(weights=None).eval()
    b = copy.deepcopy(a)
    with torch.no_grad():
        b.layer2[1].conv2.weight[5, 3, 1, 1] += 0.05
    image = torch.randn(1, 3, 64, 64)
    report = compare(Side(a, image), Side(b, image))
    beyond = {row.fqn for row in report.rows if row.get("beyond")}
    assert "First difference: layer2.1.conv2" in report.totals["verdict"]
    assert report.findings[0].severity == "error" and "layer2.1.conv2" in beyond
    assert not any(fqn.startswith(("layer1", "layer2.0", "conv1", "layer2.1.conv1")) for fqn in beyond)


@pytest.mark.sweep
def test_resnet50_in_bfloat16_names_the_first_module_past_a_hundredth() -> None:
    torch.manual_seed(0)
    a = torchvision.models.resnet50(weights=None).eval()
    b = copy.deepcopy(a).bfloat16()
    image = torch.randn(1, 3, 64, 64)
    report = compare(Side(a, image), Side(b, image.bfloat16()), tolerance=Tolerance(rtol=1e-2))
    ours, theirs = kept(a, image), kept(b, image.bfloat16())
    past = [fqn for (fqn, call), tensor in ours.items() if error(tensor, theirs[fqn, call]) > 1e-2]
    assert past, "the reference itself passes a hundredth"
    assert f"First difference: {past[0]}, " in report.totals["verdict"]
    assert report.totals["beyond"] == len(past)


def test_growth_is_over_the_error_of_what_a_module_received() -> None:
    a = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)))
    b = copy.deepcopy(a)
    with torch.no_grad():
        b[0].weight.mul_(1.1)
    x = torch.randn(3, 4)
    report = compare(Side(a, x), Side(b, x))
    found = {row.fqn: row for row in report.rows}
    assert found["0"]["growth"] is None and found[""]["growth"] is None  # the model's input has no error of its own
    assert found["1"]["growth"] == pytest.approx(found["1"]["rel_l2"] / found["0"]["rel_l2"])
    assert found["2"]["growth"] == pytest.approx(found["2"]["rel_l2"] / found["1"]["rel_l2"])
    assert found["2.1"]["growth"] == pytest.approx(found["2.1"]["rel_l2"] / found["2.0"]["rel_l2"])


def test_gradients() -> None:
    a, b = net().train(), net(seed=3).train()
    report = compare(Side(a, x()), Side(b, x()), step=Step(backward=True, loss="sum"))
    ours, theirs = copy.deepcopy(a), copy.deepcopy(b)
    kept(ours, x(), backward=True), kept(theirs, x(), backward=True)
    grads = {row.fqn: row for row in report.rows if row["kind"] == "grad"}
    assert grads.keys() == dict(ours.named_parameters()).keys()
    for (fqn, p), (_, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        assert grads[fqn]["error_l2"] == pytest.approx((p.grad - q.grad).norm().item(), rel=1e-3, abs=1e-6), fqn
    # The last layer's gradients arrive first: the engine goes from the loss to the input.
    assert [row["index"] for row in grads.values()] == sorted(row["index"] for row in grads.values())
    assert {*[*grads][:2]} == {"3.weight", "3.bias"} and {*[*grads][-2:]} == {"0.conv.weight", "0.conv.bias"}
    outputs = {row.fqn: row for row in report.rows if row["kind"] == "grad_output"}
    assert outputs[""]["max_abs"] == 0  # of a sum: ones
    assert outputs["2"]["rel_l2"] == pytest.approx(error(*(torch.ones(2, 5) @ m[3].weight.detach() for m in (a, b))))


def test_nested_outputs_tied_weights_and_several_calls() -> None:
    for what in ("dict", "tuple", "named", "dataclass"):
        a = Nested(what)
        b = copy.deepcopy(a)
        with torch.no_grad():
            b.body.bias += 1
        report = compare(Side(a, torch.ones(1, 3)), Side(b, torch.ones(1, 3)))
        outputs = [row for row in report.rows if row["kind"] == "output"]
        assert [row["max_abs"] for row in outputs] == pytest.approx([1.0] * len(outputs))
        assert len(outputs) == {"dict": 2, "tuple": 3, "named": 2, "dataclass": 2}[what] + 1
    shared = Shared()
    ids = torch.tensor([[1, 2]])
    assert compare(Side(shared, ids), Side(copy.deepcopy(shared), ids), step=Step(backward=True)).totals["beyond"] == 0


def test_only_what_is_compared_is_held() -> None:
    """Twenty layers of the same size: at no time are more than a few outputs of a side alive."""
    made: WeakSet[Tensor] = WeakSet()
    most = 0

    class Layer(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            nonlocal most
            most = max(most, len(made))
            y = super().forward(x)
            made.add(y)
            return y

    a, b = (nn.Sequential(*(Layer(8, 8) for _ in range(20))).eval() for _ in range(2))
    compare(Side(a, torch.randn(1, 8)), Side(b, torch.randn(1, 8)))
    assert 0 < most <= 6
