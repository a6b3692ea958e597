"""Models that transform by torch.func inside of a forward."""

from __future__ import annotations

import copy

import pytest
import torch
from hooks.unhooked import OF_GRADS, X, made
from support import each_once, untouched
from torch import Tensor, nn

import hookcli
from hookcli.capabilities.graph.probe import GraphProbe

# Transforms inside of a forward.


class ChangesPart(nn.Module):
    """Attention, which full backward hooks would change, and an in-place change to a view of what they pass."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)
        self.l, self.act = nn.Linear(4, 4), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.l(self.attend(x, x, x)[0])
        self.act(y[..., :2])
        return y


def test_a_trace_goes_without_the_hooks_that_a_view_of_theirs_refuses() -> None:
    (report,) = hookcli.capture(ChangesPart(), torch.ones(2, 3, 4), ["trace"])
    assert any(row["kind"] == "forward" for row in report.rows)
    assert any(item.path == "full_backward" and "modified inplace" in item.reason for item in report.skipped)


class Transforms(nn.Module):
    """A forward that differentiates or maps by `torch.func`."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.body, self.head = how, nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        def energy(z: Tensor) -> Tensor:
            return self.head(self.body(z)).pow(2).sum()

        func = torch.func
        body = dict(self.body.named_parameters())
        return {
            "grad": lambda: self.head(self.body(x) + func.grad(energy)(x)),
            "vmap": lambda: func.vmap(lambda z: self.head(self.body(z)))(x),
            "jvp": lambda: self.head(sum(func.jvp(self.body, (x,), (torch.ones_like(x),)))),
            "jacrev": lambda: self.body(x) + func.jacrev(energy)(x[0]),
            "hessian": lambda: self.body(x) @ func.hessian(energy)(x[0]),
            "vmap of grad": lambda: self.body(x) + func.vmap(func.grad(energy))(x),
            "functional": lambda: self.head(
                func.grad(lambda p: func.functional_call(self.body, p, (x,)).pow(2).sum())(body)["weight"]
            ),
        }[self.how]()


HOW = ("grad", "vmap", "jvp", "jacrev", "hessian", "vmap of grad", "functional")


OTHERS = ("inputs", "activations", "grads", "trace", "graph")


@pytest.mark.parametrize(("how", "probe"), each_once(HOW, [*OTHERS, *OF_GRADS[:2]]))
def test_models_that_transform_by_torch_func(how: str, probe: str) -> None:
    model = Transforms(how)
    with untouched(model):
        report = hookcli.capture(model, X, [made(probe)])[0]
    assert report.rows and report.meta["complete"]
    if probe == "trace" and "grad" in how:
        reasons = {s.path: s.reason for s in report.skipped}
        assert "torch.func" in reasons["saved_tensor_pack"]
        assert [row["kept"] for row in report.rows if row["kind"] == "saved_tensor_pack"]


@pytest.mark.parametrize(("how", "probe"), each_once(HOW, OTHERS))
def test_watching_models_that_transform_by_torch_func(how: str, probe: str) -> None:
    model, plain = Transforms(how), Transforms(how)
    disable = torch.autograd.graph.disable_saved_tensors_hooks
    with hookcli.watch(model, [probe]) as seen:
        model(X).sum().backward()
    plain(X).sum().backward()
    assert seen.reports()[0].rows and torch.autograd.graph.disable_saved_tensors_hooks is disable
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert p.grad is q.grad is None or torch.equal(p.grad, q.grad)  # type: ignore[arg-type]


@pytest.mark.sweep
@pytest.mark.parametrize("native", [False, True])
def test_nodes_of_a_graph_that_is_transformed(native: bool) -> None:
    from hookcli.hooks.native import build

    if native and build.compiler() is None:
        pytest.skip("needs a C++ compiler")
    for how in HOW:
        model = Transforms(how)
        report = hookcli.capture(copy.deepcopy(model), X, [GraphProbe(native)])[0]
        assert "AccumulateGrad" in {row["node"] for row in report.rows if row["fired"]}
