"""Programs of the caller's that do what few do: a probe around a step must neither stop nor change them."""

from __future__ import annotations

import copy
import gc
import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar
from weakref import ref

import pytest
import torch
from support import assert_stats, float64_stats
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap
from torch.utils.checkpoint import checkpoint

import hookcli
from hookcli.capabilities.graph.probe import GraphProbe
from hookcli.capabilities.trace.probe import TraceProbe
from hookcli.probes.base import Probe
from hookcli.probes.grads import GradsProbe
from hookcli.probes.inventory import InventoryProbe

WIDTH = 4
PROBES: dict[str, Callable[[], Probe]] = {"graph": GraphProbe, "trace": TraceProbe, "grads": GradsProbe}


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


def test_an_optimizer_that_steps_within_backward_gets_its_gradients_and_so_does_the_report() -> None:
    model, x = small(), torch.randn(3, WIDTH)
    alone = copy.deepcopy(model)
    alone(x).pow(2).sum().backward()
    grads = {name: p.grad.clone() for name, p in alone.named_parameters() if p.grad is not None}
    torch.optim.SGD(alone.parameters(), lr=0.1).step()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(p: Tensor) -> None:
        optimizers[p].step()  # type: ignore[index]
        optimizers[p].zero_grad()  # type: ignore[index]

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    with hookcli.watch(model, ["grads"]) as seen:
        model(x).pow(2).sum().backward()
    rows = {row.fqn: row.stats for row in seen.reports()[0].rows}
    for (name, p), expected in zip(model.named_parameters(), alone.parameters(), strict=True):
        assert p.grad is None and torch.equal(p, expected)
        assert_stats(rows[name], float64_stats(grads[name]))


class Half(torch.autograd.Function):
    """Has no gradient for its second argument where only its first result is used."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, x * w.detach()

    @staticmethod
    def backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> tuple[Tensor | None, None]:
        return None if a is None else a * 2, None


@pytest.mark.parametrize("probe", sorted(PROBES))
def test_a_function_that_gives_a_parameter_no_gradient_is_no_fault(probe: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.scale = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = Half.apply(self.first(x), self.scale)[0]
            return y

    model = Model()
    with hookcli.watch(model, [PROBES[probe]()]) as seen:
        model(torch.randn(3, WIDTH)).sum().backward()
    (report,) = seen.reports()
    assert model.first.weight.grad is not None and model.scale.grad is None
    if probe == "grads":
        assert "no gradient reached it" in {item.fqn: item.reason for item in report.skipped}["scale"]


@pytest.mark.parametrize("probe", sorted(PROBES))
def test_a_model_within_a_transform_of_torch_func(probe: str) -> None:
    model, x = small(), torch.randn(3, WIDTH)

    def derivatives(model: nn.Module) -> list[Tensor]:
        found = [*jvp(model, (x,), (torch.ones_like(x),)), jacrev(model)(x[0]), hessian(lambda z: model(z).sum())(x[0])]
        model(x).sum().backward()
        return [*found, *(p.grad for p in model.parameters() if p.grad is not None)]

    expected = derivatives(copy.deepcopy(model))
    with hookcli.watch(model, [PROBES[probe]()]) as seen:
        found = derivatives(model)
    assert all(map(torch.equal, expected, found))
    assert seen.reports()[0].rows


def test_what_checks_ask_of_a_model_that_is_mapped_over() -> None:
    class Ensemble(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
            members = [copy.deepcopy(self.base) for _ in range(3)]
            self.stacked = nn.ParameterList(stack_module_state(members)[0].values())  # type: ignore[arg-type]

        def forward(self, x: Tensor) -> Tensor:
            def one(*values: Tensor) -> Tensor:
                names = [name for name, _ in self.base.named_parameters()]
                y: Tensor = functional_call(self.base, dict(zip(names, values, strict=True)), (x,))
                return y

            return vmap(one)(*self.stacked)

    (report,) = hookcli.capture(Ensemble(), torch.randn(2, WIDTH), [InventoryProbe(backward=True)])
    assert {row.fqn for row in report.rows if row["kind"] == "called"} >= {"", "base", "base.1"}
    assert not [row for row in report.rows if row["kind"] == "received"]


def test_what_checks_ask_of_a_model_that_differentiates_each_item() -> None:
    class Gradients(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(WIDTH, 1)

        def forward(self, x: Tensor) -> Tensor:
            slopes: Tensor = vmap(grad(lambda item: self.base(item).sum()))(x)
            return slopes + self.base(x)

    (report,) = hookcli.capture(Gradients(), torch.randn(2, WIDTH), [InventoryProbe(backward=True)])
    assert {row.fqn for row in report.rows if row["kind"] == "called"} == {"", "base"}


@pytest.mark.parametrize("probe", sorted(PROBES))
def test_a_model_is_copied_and_saved_while_it_is_watched(probe: str) -> None:
    model, x = small(), torch.randn(3, WIDTH)
    with hookcli.watch(model, [PROBES[probe]()]):
        y = model(x)
        twin = copy.deepcopy(model)
        twin.load_state_dict(model.state_dict())
        torch.save(model, file := io.BytesIO())
        y.sum().backward()
    file.seek(0)
    for other in (twin, torch.load(file, weights_only=False)):
        assert torch.equal(other(x), y)
        other.load_state_dict(model.state_dict())


def test_a_model_that_copies_a_part_of_itself_under_full_backward_hooks() -> None:
    class Copies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.online = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.online(x) + copy.deepcopy(self.online)(x).detach()
            return y

    (report,) = hookcli.capture(Copies(), torch.randn(2, WIDTH), [GradsProbe("outputs", "module")])
    assert [row.fqn for row in report.rows] == ["", "online"]


class Token:
    """Lives as long as the graph does."""


class Marks(torch.autograd.Function):
    tokens: ClassVar[list[ref[Token]]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.token = Token()
        Marks.tokens.append(ref(ctx.token))
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


@pytest.mark.parametrize("probe", ["activations", *sorted(PROBES)])
def test_no_graph_of_a_checkpoint_outlives_its_step(probe: str) -> None:
    model = small()
    body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    model.append(body)
    model.forward = lambda x: checkpoint(body, Marks.apply(x), use_reentrant=True)  # type: ignore[method-assign]
    Marks.tokens.clear()
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            with hookcli.watch(model, [PROBES[probe]() if probe in PROBES else probe]):
                model(torch.randn(2, WIDTH, requires_grad=True)).sum().backward()
        assert len(Marks.tokens) == 2 and not any(token() for token in Marks.tokens)
    finally:
        gc.enable()


def test_parts_that_run_in_threads_at_once_are_told_apart() -> None:
    class Part(nn.Module):
        def __init__(self, mine: threading.Event, other: threading.Event) -> None:
            super().__init__()
            self.inner, self.mine, self.other = nn.Linear(WIDTH, WIDTH), mine, other

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.inner(x)
            self.mine.set()
            assert self.other.wait(20)
            return y

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            a, b = threading.Event(), threading.Event()
            self.a, self.b = Part(a, b), Part(b, a)

        def forward(self, x: Tensor) -> Tensor:
            with ThreadPoolExecutor(2) as pool:
                a, b = pool.map(lambda part: part(x), (self.a, self.b))
            y: Tensor = a + b
            return y

    (report,) = hookcli.capture(Model(), torch.randn(2, WIDTH), ["activations"])
    assert {row.fqn for row in report.rows} == {"", "a", "a.inner", "b", "b.inner"}
    assert not report.skipped
