"""Gradients of inputs that are changed in place, handed on or taken by the model itself."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from hooks.gradients.input_users import Fn, figures, of
from random_models import WIDTH, Stale
from support import assert_stats, float64_stats
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookcli
from hookcli import watch
from hookcli.probes.grads import GradsProbe
from hookcli.table import Report


def reasons(report: Report) -> dict[tuple[str, str], str]:
    return {(item.fqn, item.path): item.reason for item in report.skipped}


def test_the_output_is_a_view_of_what_was_changed_since() -> None:
    """PyTorch 2.11 ends the process where a hook is the first to ask such a view for its node."""
    [report] = hookcli.capture(Stale(), torch.randn(2, 3, WIDTH), [GradsProbe("outputs")], loss="sum")
    [row] = [row for row in report.rows if row.fqn == "part"]
    assert (row["mean"], row["min"], row["max"]) == (6.0, 6.0, 6.0)  # it is used twice, times 3


@pytest.mark.usefixtures("way")
def test_a_view_that_a_module_changes_in_place_computes_what_it_computes() -> None:
    torch.manual_seed(0)
    model = Fn(lambda self, x: (y := self.l(x), self.act(y[:, :2]), y)[2], l=nn.Linear(4, 4), act=nn.ReLU(inplace=True))
    x = torch.randn(3, 4)
    plain = model(x)
    outputs: list[Tensor] = []
    handle = model.register_forward_hook(lambda m, a, y: outputs.append(y.detach().clone()))
    report = of("inputs", model, x)
    handle.remove()
    assert torch.equal(outputs[0], plain)
    assert "a view that the module changes in place" in reasons(report)["act", ""]
    twin = copy.deepcopy(model)
    y = twin.l(x)
    before = y.clone()
    (gradient,) = torch.autograd.grad((y * torch.cat([(before[:, :2] > 0), torch.ones(3, 2)], 1)).sum(), y)
    assert_stats(figures(report)["l", ""], float64_stats(gradient @ twin.l.weight.detach()))


@pytest.mark.usefixtures("way")
def test_what_a_module_changes_in_place_has_the_gradient_of_before() -> None:
    """y = 3x, then x += 1 in place inside of the module, doubled: the loss is 2 (3x + 1)."""
    model = Fn(lambda self, x: self.act(3 * x), act=Fn(lambda self, y: y.add_(1).mul_(2)))
    report = of("inputs", model, torch.ones(2, requires_grad=True))
    assert_stats(figures(report)["act", ""], float64_stats(torch.full((2,), 2.0)))
    assert_stats(figures(report)["", ""], float64_stats(torch.full((2,), 6.0)))


@pytest.mark.usefixtures("way")
def test_a_use_that_no_output_leads_to_counts() -> None:
    """The module keeps an auxiliary value, which the loss uses."""

    def keep(self: Any, x: Tensor) -> Tensor:
        self.aux = 4 * x
        return 3 * x

    model = Fn(lambda self, x: self.part(2 * x), part=Fn(keep))
    report = of("inputs", model, torch.ones(2), loss=lambda y: (y + model.part.aux).sum())
    assert_stats(figures(report)["part", ""], float64_stats(torch.full((2,), 7.0)))


@pytest.mark.usefixtures("way")
def test_what_is_changed_in_place_and_returned_is_not_handed_on() -> None:
    model = Fn(lambda self, x: self.act(2 * x), act=nn.ReLU(inplace=True))
    for kind in ("inputs", "outputs"):
        report = of(kind, model, torch.ones(2, requires_grad=True))
        assert not any(row.get("handed_on") for row in report.rows) and "notes" not in report.meta


@pytest.mark.usefixtures("way")
def test_what_is_handed_on_has_the_tensors_gradient_and_says_so() -> None:
    """loss = sum(identity(h) + 6 h): by hand 7, for what the Identity received as for what it returned."""
    model = Fn(lambda self, x: self.same(h := 2 * x) + 6 * h, same=nn.Identity())
    for kind in ("inputs", "outputs"):
        report = of(kind, model, torch.ones(2, requires_grad=True))
        assert_stats(figures(report)["same", ""], float64_stats(torch.full((2,), 7.0)))
        assert [row.fqn for row in report.rows if row.get("handed_on")] == ["same"]
        assert any(note.startswith("same: hands on a tensor that it received") for note in report.meta["notes"])


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("reentrant", [False, True])
def test_under_checkpointing(reentrant: bool) -> None:
    torch.manual_seed(0)
    parts = {"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)}
    plain = Fn(lambda self, x: self.b(torch.tanh(self.a(x))) + self.a(x), **parts)
    again = Fn(
        lambda self, x: checkpoint(lambda y: self.b(torch.tanh(self.a(y))), x, use_reentrant=reentrant) + self.a(x),
        **parts,
    )
    x = torch.randn(2, 3, requires_grad=True)
    for kind in ("inputs", "outputs"):
        rows = {(row.fqn, row["call"]): row.stats for row in of(kind, plain, x).rows}
        seen = {(row.fqn, row["call"]): row.stats for row in of(kind, again, x).rows}
        assert rows and rows.keys() == seen.keys()
        for key, stats in rows.items():
            assert stats is not None
            assert_stats(seen[key], stats)


class Penalty(nn.Module):
    """A gradient that the model takes itself, in its forward: only the loss's gradient is the row's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        y = self.inner(x)
        (slope,) = torch.autograd.grad(100 * y.sum(), x, create_graph=True)
        return y + 0 * slope


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("kind", ["outputs", "inputs"])
def test_a_gradient_that_the_model_takes_is_not_the_losss(kind: str) -> None:
    torch.manual_seed(0)
    model, x = Penalty(), torch.randn(3, 2)
    expected = torch.ones(3, 2) if kind == "outputs" else torch.ones(3, 2) @ model.inner.weight.detach()
    assert_stats(figures(of(kind, model, x))["inner", ""], float64_stats(expected))
    with watch(model, [GradsProbe(kind)]) as seen:  # type: ignore[arg-type]
        model(x)  # no backward pass: nothing to show
    assert not [row for row in seen.reports()[0].rows if row.fqn == "inner"]


def test_nor_one_that_the_loss_function_takes() -> None:
    model = nn.Sequential(nn.Linear(2, 2))

    def loss(y: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(100 * y.sum(), model[0].weight, create_graph=True)
        return y.sum() + 0 * slope.sum()

    report = of("outputs", model, torch.randn(3, 2), loss=loss)
    assert_stats(figures(report)["0", ""], float64_stats(torch.ones(3, 2)))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("kind", ["outputs", "inputs"])
def test_no_graph_outlives_its_run(kind: str) -> None:
    """Without the garbage collector: a node that holds its own hook would stay."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Identity(), nn.Flatten(), nn.ReLU(inplace=True))
    gc.collect()
    gc.disable()
    try:
        with watch(model, [GradsProbe(kind)]):  # type: ignore[arg-type]
            y = model((torch.ones(2, 2, requires_grad=True)) * 1)
            y.sum().backward()
            tensor = weakref.ref(y)
            node = weakref.ref(y.grad_fn) if hasattr(type(y.grad_fn), "__weakref__") else None
            del y
            assert tensor() is None
            assert node is None or node() is None
    finally:
        gc.enable()
