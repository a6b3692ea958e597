"""Hooks change nothing: outputs, gradients, buffers and random state are the same bit for bit; and they see the truth.

Two references for gradients, which share nothing with the way that hookcli takes them: of inputs, a zero is added to
each of them and the zero's gradient read, which is the module's part; of outputs and of what modules hand on, autograd
is asked for the gradient of the very tensor (`torch.autograd.grad` at its gradient edge).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support import assert_stats, equal, float64_stats, hooks_on
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from hookcli.probes.activations import ActivationsProbe
from hookcli.probes.grads import GradsProbe
from hookcli.probes.inputs import InputsProbe
from hookcli.record.watch import watch
from hookcli.tensors import tree

WIDTH = 6


class Residual(nn.Module):
    """In-place addition of the input, and in-place activation, as torchvision's blocks have them."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*layers)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)
        out += x
        return self.act(out)


class Branches(nn.Module):
    """Two consumers of one tensor; returns a child's output that it also uses itself."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.keep = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        first = self.a(x)
        second = self.b(torch.stack([first, x]).sum(0))
        return self.keep(second) + first * 0.5


class Reshaped(nn.Module):
    """Returns a view, on which an in-place operation follows."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        y = self.flat(x * 1.0)
        y.mul_(2)
        return y


class Twice(nn.Module):
    """One module called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(torch.tanh(self.mix(x)))


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "relu": lambda: nn.ReLU(inplace=True),
    "relu6": lambda: nn.ReLU6(),
    "norm": lambda: nn.BatchNorm1d(WIDTH),
    "dropout": lambda: nn.Dropout(0.5),
    "dropout_": lambda: nn.Dropout(0.5, inplace=True),
    "identity": nn.Identity,
    "residual": lambda: Residual(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)),
    "branches": Branches,
    "reshaped": Reshaped,
    "twice": Twice,
    "instance": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2), nn.Flatten(), nn.SiLU(inplace=True)
    ),
}


def run(model: nn.Module, x: Tensor, *, grad: bool, edges: dict[Any, Any] | None = None) -> dict[str, Any]:
    """Run with a fixed seed, and everything that could show a difference. `edges` become gradients at these edges."""
    torch.manual_seed(1)
    x = x.clone().requires_grad_(grad)
    with torch.set_grad_enabled(grad):
        out = model(x * 1.0)
        tensors = [t for _, t in tree.leaves(out) if t.is_floating_point()]
        if grad:
            loss = sum((t * t).sum() for t in tensors)
            if edges:
                found = torch.autograd.grad(loss, list(edges.values()), retain_graph=True, allow_unused=True)
                edges |= dict(zip(edges, found, strict=True))
            loss.backward()
    return {
        "output": [t.detach().clone() for t in tensors],
        "grads": [p.grad for p in model.parameters()],
        "input": x.grad,
        "buffers": [b.clone() for b in model.buffers()],
        "rng": torch.get_rng_state(),
    }


PROBES: dict[str, tuple[Callable[[], Any], bool]] = {
    "activations": (ActivationsProbe, False),
    "inputs": (InputsProbe, False),
    "parameters": (lambda: GradsProbe("parameters"), True),
    "outputs": (lambda: GradsProbe("outputs"), True),
    "inputs' grads": (lambda: GradsProbe("inputs"), True),
}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    names=st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=6),
    probe=st.sampled_from(sorted(PROBES)),
    train=st.booleans(),
    seed=st.integers(0, 100),
)
def test_hooks_change_nothing(names: list[str], probe: str, train: bool, seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *(LAYERS[name]() for name in names)).train(train)
    x = torch.randn(4, WIDTH)
    make, grad = PROBES[probe]
    try:
        expected = run(copy.deepcopy(model), x, grad=grad)
    except RuntimeError as error:  # two in-place activations in a row can't be differentiated, hooks or not
        assume("modified by an inplace operation" not in str(error))
        raise
    with watch(model, [make()]) as seen:
        found = run(model, x, grad=grad)
    assert equal(expected, found)
    assert sum(hooks_on(model).values()) == 0
    assert seen.reports()[0].rows


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    names=st.lists(st.sampled_from(sorted(set(LAYERS) - {"relu", "dropout_"})), min_size=1, max_size=5),
    of=st.sampled_from(["outputs", "inputs"]),
    seed=st.integers(0, 100),
)
def test_gradients_of_outputs_and_inputs_are_right(names: list[str], of: str, seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *(LAYERS[name]() for name in names))
    assert_grads_match(model, torch.randn(4, WIDTH), of)


def assert_grads_match(model: nn.Module, x: Tensor, of: str, rel: float = 1e-5) -> int:
    """hookcli's figures against the references; returns how many were compared."""
    totals = whole_gradients(copy.deepcopy(model), x, of)
    parts = zeros_gradients(copy.deepcopy(model), x, of) if of == "inputs" else totals
    with watch(model, [GradsProbe(of)]) as seen:  # type: ignore[arg-type]
        run(model, x, grad=True)
    report = seen.reports()[0]
    rows = {(row.fqn, row["call"], row["path"]): row for row in report.rows}
    reasons = {(item.fqn, item.path): item.reason for item in report.skipped}
    for fqn, _, path in parts.keys() - rows.keys():
        assert re.search(r"(is|or) a view .* (changed|changes) in place", reasons[fqn, path])
    assert not rows.keys() - parts.keys()
    for key, row in rows.items():
        found, expected = row.stats, float64_stats((totals if row.get("handed_on") else parts)[key])
        # In float32 a gradient that is the sum of large terms is only as good as those: compare on its own scale.
        assert found is not None and found.numel == expected.numel
        scale = max(abs(expected.min), abs(expected.max))
        for name in ("mean", "std", "min", "max"):
            assert abs(getattr(found, name) - getattr(expected, name)) <= rel * scale, (key, name, found, expected)
        assert found.l2 == pytest.approx(expected.l2, rel=rel)
    return len(rows)


def whole_gradients(model: nn.Module, x: Tensor, of: str) -> dict[tuple[str, int, str], Tensor]:
    """The gradient of each tensor that a module returned or received, over all of its uses."""
    edges: dict[tuple[str, int, str], Any] = {}
    calls: dict[str, int] = {}

    def note(fqn: str, found: Any) -> None:
        call = calls[fqn] = calls.get(fqn, -1) + 1
        edges.update({(fqn, call, path): get_gradient_edge(t) for path, t in found if t.requires_grad})

    for fqn, module in model.named_modules():
        if of == "outputs":
            module.register_forward_hook(lambda m, a, o, f=fqn: note(f, tree.leaves(o)))
        else:
            module.register_forward_pre_hook(lambda m, a, k, f=fqn: note(f, tree.arguments(a, k)), with_kwargs=True)
    run(model, x, grad=True, edges=edges)
    return {key: grad for key, grad in edges.items() if grad is not None}


def rebuilt(args: tuple[Any, ...], kwargs: dict[str, Any], change: tree.Change) -> tuple[Any, Any]:
    if len(args) == 1 and not kwargs:
        return (tree.replace(args[0], change),), kwargs
    return tree.replace(args, change), tree.replace(kwargs, change)


def zeros_gradients(model: nn.Module, x: Tensor, of: str) -> dict[tuple[str, int, str], Tensor]:
    zeros: dict[tuple[str, int, str], Tensor] = {}
    calls: dict[str, int] = {}

    def plus_zero(fqn: str, call: int) -> Callable[[str, Tensor], Tensor]:
        def add(path: str, tensor: Tensor) -> Tensor:
            if not tensor.requires_grad:
                return tensor
            zero = zeros[fqn, call, path] = torch.zeros_like(tensor, requires_grad=True)
            return tensor + zero

        return add

    def number(fqn: str) -> int:
        calls[fqn] = calls.get(fqn, -1) + 1
        return calls[fqn]

    for fqn, module in model.named_modules():
        if of == "outputs":
            module.register_forward_hook(lambda m, a, o, f=fqn: tree.replace(o, plus_zero(f, number(f))))
        else:
            module.register_forward_pre_hook(
                lambda m, a, k, f=fqn: rebuilt(a, k, plus_zero(f, number(f))), with_kwargs=True
            )
    run(model, x, grad=True)
    return {key: zero.grad for key, zero in zeros.items() if zero.grad is not None}


@pytest.mark.parametrize("of", ["outputs", "inputs"])
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("resnet18", 64), ("densenet121", 32), ("mobilenet_v3_small", 64), ("convnext_tiny", 64), ("swin_t", 64),
        ("googlenet", 64), ("vit_b_32", 64), ("lraspp_mobilenet_v3_large", 64), ("regnet_x_400mf", 64),
    ],
)  # fmt: skip
def test_gradients_of_torchvision_models_are_right(name: str, size: int, of: str) -> None:
    torch.manual_seed(0)
    extra = {"weights_backbone": None} if "lraspp" in name else {}
    extra |= {"image_size": size} if name.startswith("vit") else {}
    extra |= {"init_weights": False} if name == "googlenet" else {}
    model = torchvision.models.get_model(name, weights=None, **extra).double().eval()
    compared = assert_grads_match(model, torch.randn(2, 3, size, size, dtype=torch.float64), of)
    assert compared > 40


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "densenet121"])
@pytest.mark.parametrize("probe", sorted(PROBES))
def test_torchvision_models_run_bit_for_bit_as_without_hooks(name: str, probe: str) -> None:
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None).train()
    x = torch.randn(2, 3, 64, 64)
    make, grad = PROBES[probe]
    expected = run(copy.deepcopy(model), x, grad=grad)
    with watch(model, [make()]):
        found = run(model, x, grad=grad)
    assert equal(expected, found)


class Pyramid(nn.Module):
    """A block that uses its input twice, and a later use of the same tensor, as in a feature pyramid."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = nn.Linear(WIDTH, WIDTH), Residual(nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        low = self.stem(x)
        return self.block(low) + torch.tanh(low)


def test_where_a_container_and_a_later_user_share_an_input_sums_are_the_same() -> None:
    """Nothing is added to the graph, so that not even the order changes in which three gradients are added."""
    torch.manual_seed(0)
    model, x = Pyramid(), torch.randn(4, WIDTH)
    expected = run(copy.deepcopy(model), x, grad=True)
    for of in ("outputs", "inputs"):
        twin = copy.deepcopy(model)
        with watch(twin, [GradsProbe(of)]):  # type: ignore[arg-type]
            found = run(twin, x, grad=True)
        assert equal(expected, found)
        assert_grads_match(copy.deepcopy(model), x, of)


def test_a_list_that_a_module_changes_is_still_the_callers() -> None:
    class Appends(nn.Module):
        def forward(self, parts: list[Tensor]) -> Tensor:
            parts.append(parts[0] * 2)
            return torch.stack(parts).sum(0)

    class Caller(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Appends()

        def forward(self, x: Tensor) -> Tensor:
            parts = [x]
            self.inner(parts)
            return parts[-1]

    model, x = Caller(), torch.ones(2, requires_grad=True)
    with watch(model, [GradsProbe("inputs")]):
        assert torch.equal(model(x), 2 * torch.ones(2))


def test_statistics_are_taken_before_a_later_layer_overwrites() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    x = torch.randn(64, 4)
    linear = model[0](x).detach()
    with watch(model, ["activations"]) as seen, torch.no_grad():
        model(x)
    rows = {row.fqn: row for row in seen.reports()[0].rows}
    assert_stats(rows["0"].stats, float64_stats(linear))
    assert_stats(rows["1"].stats, float64_stats(linear.relu()))
