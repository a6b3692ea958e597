"""Edits of each kind against figures, and hooks, by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hooks.edited import OPS, OWN, grads_of
from small_models import small
from support import Hand, assert_stats, float64_stats, hooks_on, swept
from torch import Tensor, nn

from hookcli import capture, watch


@pytest.fixture(autouse=True)
def own_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "math_of_tests.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("edit", "output", "x", "first", "out"),
    [
        (None, 12, [6, 6], [[1, 2], [1, 2]], [[1, 3]]),
        ("relu:output=scale(10)", 120, [60, 60], [[10, 20], [10, 20]], [[10, 30]]),
        ("out:input=scale(10)", 120, [60, 60], [[10, 20], [10, 20]], [[10, 30]]),
        ("relu:input=zero", 0, [0, 0], [[0, 0], [0, 0]], [[0, 0]]),
        ("out:output=square", 144, [144, 144], [[24, 48], [24, 48]], [[24, 72]]),
        ("relu:grad_output=scale(10)", 12, [60, 60], [[10, 20], [10, 20]], [[1, 3]]),
        ("relu:grad_input=zero", 12, [0, 0], [[0, 0], [0, 0]], [[1, 3]]),
        ("out:grad_output=scale(2)", 12, [12, 12], [[2, 4], [2, 4]], [[2, 6]]),
        ("out.weight:grad=scale(2)", 12, [6, 6], [[1, 2], [1, 2]], [[2, 6]]),
        ("first.weight:grad=ones", 12, [6, 6], [[1, 1], [1, 1]], [[1, 3]]),
    ],
)
def test_by_hand(
    edit: str | None, output: float, x: list[float], first: list[list[float]], out: list[list[float]]
) -> None:
    """x = [1, 2]: first gives [1, 3], out 12. Gradients: out.weight [1, 3]; relu and first [3, 3], so x 2 * 3 = 6 each.

    The gradient of first.weight is written as a multiple of 3 where it has not been replaced.
    """
    model = Hand().double()
    given = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    edits = [edit] if edit else []
    found = grads_of(copy.deepcopy(model), given, edits)
    assert found["x"].tolist() == [x] and found["out.weight"].tolist() == out
    factor = 1 if edit == "first.weight:grad=ones" else 3
    assert (found["first.weight"] / factor).tolist() == first
    with watch(model, edits=edits):
        assert model(given).item() == output
    assert model(given).item() == 12


@pytest.mark.parametrize("how", ["whole tensors", "statistics"])
def test_doubling_a_gradient_of_1_2_3_gives_2_4_6(how: str) -> None:
    model = nn.Linear(3, 1, bias=False)
    x = torch.tensor([[1.0, 2.0, 3.0]])
    if how == "whole tensors":
        assert grads_of(model, x, ["weight:grad=scale(2)"])["weight"].tolist() == [[2, 4, 6]]
        return
    [row] = capture(model, x, ["grads"], edits=["weight:grad=scale(2)"])[0].rows
    assert row["edited"] == "scale(2)" and model.weight.grad is None
    assert_stats(row.stats, float64_stats(torch.tensor([2.0, 4.0, 6.0])))


ORDERS = (["scale(2)", "square"], ["square", "scale(2)"], ["clamp(-1,1)", "scale(3)"], ["scale(3)", "clamp(-1,1)"])


@pytest.mark.parametrize("what", ["input", "output", "grad_output", "grad_input", "grad"])
@pytest.mark.parametrize("ops", ORDERS, ids=" then ".join)
def test_several_on_one_tensor_apply_in_the_order_given(what: str, ops: list[str]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    place = "2.weight" if what == "grad" else "1"
    found = grads_of(copy.deepcopy(model), x, [f"{place}:{what}={op}" for op in ops])
    other = grads_of(copy.deepcopy(model), x, [f"{place}:{what}={op}" for op in reversed(ops)])
    functions = [OPS.get(op, lambda t: 3 * t) for op in ops]
    for function in functions:
        register(model, place, what, function)
    leaf = x.clone().requires_grad_()
    model(leaf).sum().backward()
    expected = {"x": leaf.grad, **{n: p.grad for n, p in model.named_parameters()}}
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    assert any(not torch.equal(found[key], other[key]) for key in found)


def register(model: nn.Module, place: str, what: str, function: Callable[[Tensor], Tensor]) -> None:
    """The edit as a person would write it, with one of PyTorch's own hooks."""
    if what == "grad":
        model.get_parameter(place).register_hook(function)
        return
    module = model.get_submodule(place)
    if what == "input":
        module.register_forward_pre_hook(lambda m, args: (function(args[0]), *args[1:]))
    elif what == "output":
        module.register_forward_hook(lambda m, args, output: function(output))
    elif what == "grad_output":
        module.register_full_backward_pre_hook(lambda m, grads: tuple(map(function, grads)))
    else:
        module.register_full_backward_hook(lambda m, ins, outs: tuple(map(function, ins)))


# On models as people have them.


def compare_with_hooks(name: str, edits: list[tuple[str, str, str]]) -> None:
    torch.manual_seed(0)
    model = small(name).double().eval()
    twin, x = copy.deepcopy(model), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    plain = grads_of(copy.deepcopy(model), x)
    found = grads_of(model, x, [f"{place}:{what}={op}" for place, what, op in edits])
    assert sum(hooks_on(model).values()) == 0
    for place, what, op in edits:
        register(twin, place, what, OPS[op])
    leaf = x.clone().requires_grad_()
    twin(leaf).sum().backward()
    expected = {"x": leaf.grad, **{n: p.grad for n, p in twin.named_parameters()}}
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert any(not torch.equal(found[key], plain[key]) for key in found)


@pytest.mark.sweep
def test_forward_and_parameter_edits_on_a_resnet_equal_hooks_by_hand() -> None:
    compare_with_hooks(
        "resnet18",
        [
            ("layer1.0.conv2", "output", "scale(2)"),
            ("layer2.1", "input", "clamp(-1,1)"),
            ("layer3", "output", "square"),
            ("fc.weight", "grad", "scale(2)"),
            ("fc.weight", "grad", "square"),
            ("conv1.weight", "grad", "clamp(-1,1)"),
        ],
    )


def test_gradient_edits_on_a_swin_equal_full_backward_hooks_by_hand() -> None:
    compare_with_hooks(
        "swin_t",
        [
            ("features.1.0.attn", "grad_output", "scale(2)"),
            ("features.3.1.mlp", "grad_input", "clamp(-1,1)"),
            ("features.5.0.norm2", "grad_output", "square"),
            ("head", "grad_input", "scale(2)"),
        ],
    )


class GuidedRelu(torch.autograd.Function):
    """Springenberg et al. (2014), "Striving for Simplicity": no negative gradient passes backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.where((x > 0) & (grads[0] > 0), grads[0], 0)


class Guided(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = GuidedRelu.apply(x)
        return result


def guided(model: nn.Module) -> nn.Module:
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.ReLU):
                setattr(parent, name, Guided())
    return model


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "inplace"),
    [("resnet18", True), *map(swept, ("resnet18", "vgg11"), (False, True)), swept("quantized_resnet18", False)],
)
def test_guided_backpropagation_equals_one_by_hand(name: str, inplace: bool) -> None:
    torch.manual_seed(0)
    model = small(name).eval()
    relus = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.ReLU)]
    assert relus
    for _, relu in relus:
        relu.inplace = inplace
    x = torch.randn(2, 3, 64, 64)
    edits = [f"{fqn}:grad_input=clamp(min=0)" for fqn, _ in relus]
    if name == "resnet18":
        edits = ["*relu*:grad_input=clamp(min=0)"]
    plain = grads_of(copy.deepcopy(model), x)
    found = grads_of(copy.deepcopy(model), x, edits)
    expected = grads_of(guided(copy.deepcopy(model)), x)
    for key, value in expected.items():
        assert torch.equal(found[key], value), key
    assert not torch.allclose(plain["x"], expected["x"])
