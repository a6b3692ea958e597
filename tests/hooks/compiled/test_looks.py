"""Modules inside compiled programs: the rows are eager mode's, and the programs that the caller has are left alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from support import swept, untouched
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

import hookcli
from hookcli.probes.grads import GradsProbe
from hookcli.table import Report, Row

pytestmark = pytest.mark.xdist_group("torch.compile")  # whose imports and precompiled headers one worker needs
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
Of = Callable[[], Sequence[Any]]


class Pair(NamedTuple):
    first: Tensor
    rest: list[Tensor]


@dataclass
class Named:
    value: Tensor
    more: Pair


class Outputs(nn.Module):
    """Returns its tensors in a container of each kind."""

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"named": Named(x * 2, Pair(x + 1, [x - 1])), "same": x, "whole": x.detach().long()}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.attention(query=x, key=x, value=x)
        return self.norm(x)


class Net(nn.Module):
    """In-place changes, containers, a module called twice, one that hands its input on, and one never called."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.inplace, self.none = nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Identity()
        self.block, self.outputs, self.unused = Block(), Outputs(), nn.Linear(2, 2)

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        x = self.a(self.inplace(self.a(x))) * scale
        found = self.outputs(self.none(self.block(x)))
        return found["named"].value + found["named"].more.rest[0] + found["same"]


X = torch.randn(2, 3, 8)
PROBES: dict[str, Of] = {
    "activations": lambda: ["activations", "inputs"],
    "gradients": lambda: [GradsProbe("parameters"), GradsProbe("outputs"), "activations"],
}


def places(report: Report) -> dict[tuple[object, ...], Row]:
    keys = ("fqn", "type", "call", "path", "shape", "dtype") + (() if report.probe == "grads" else ("index",))
    return {tuple(str(row.get(key)) for key in keys): row for row in report.rows}


def assert_same_rows(eager: Report, seen: Report, tolerance: float = 1e-5) -> None:
    ours, theirs = places(seen), places(eager)
    dropped = {(s.fqn, s.path) for s in eager.skipped if "drops its hooks" in s.reason}
    more = {(row.fqn, row["path"]) for place, row in ours.items() if place not in theirs}
    assert ours.keys() >= theirs.keys() and more <= dropped and len(seen.rows) == len(ours)
    assert {*seen.skipped} == {s for s in eager.skipped if (s.fqn, s.path) not in more}
    for place, row in theirs.items():
        told = row.get("kind") != "input" and TORCH >= (2, 14)  # a dropout of nothing was another tensor before
        assert not told or bool(ours[place].get("handed_on")) >= bool(row.get("handed_on"))
        if row.get("handed_on"):  # a program does not tell the gradient by earlier uses
            continue
        for figure in ("mean", "std", "min", "max", "l2", *(["zeros"] if eager.probe != "grads" else [])):
            expected, size = getattr(row.stats, figure), row.stats.l2 or 1.0
            assert getattr(ours[place].stats, figure) == pytest.approx(expected, abs=tolerance * size), (place, figure)


@pytest.mark.sweep
@pytest.mark.parametrize("probes", ["gradients", swept("activations")])
@pytest.mark.parametrize("backend", ["aot_eager", swept("eager")])
def test_rows_are_those_of_eager_mode(probes: str, backend: str) -> None:
    model = Net()
    eager = hookcli.capture(model, X, probes=PROBES[probes](), scale=2.0)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    with untouched(model):
        seen = hookcli.capture(compiled, X, probes=PROBES[probes](), scale=2.0)
    for one, other in zip(eager, seen, strict=True):
        assert_same_rows(one, other)
    what = "outputs and gradients" if probes == "gradients" else "outputs"
    said = f"by {backend}: {what} bit-identical to the compiled model's without looks"
    assert seen[0].meta["compiled"] == said


def way(model: nn.Module, how: str, backend: Any) -> nn.Module:
    if how == "wrapped":
        return torch.compile(model, backend=backend)  # type: ignore[return-value]
    if how == "in place":
        model.compile(backend=backend)
    elif how == "a part":
        model.block = torch.compile(model.block, backend=backend)
    else:
        model.forward = torch.compile(model.forward, backend=backend)
    return model


@pytest.mark.parametrize("how", [*map(swept, ("wrapped", "a part", "in place", "its forward"))])
def test_one_more_program_is_compiled_and_the_callers_own_runs_again(how: str) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    model, twin = Net(), Net()
    called, other = way(model, how, counter), way(twin, how, counter)
    with torch.no_grad():
        expected = called(X)
    assert counter.frame_count == 1
    with untouched(model):
        reports = hookcli.capture(called, X, probes=PROBES["activations"]())
    assert counter.frame_count == 2 and not counters["graph_break"]
    assert "block.norm" in {row.fqn for row in reports[0].rows} and not any(
        "_orig_mod" in row.fqn for row in reports[0].rows
    )
    before = len(reports[0].rows)
    with torch.no_grad():
        assert torch.equal(called(X), expected)
        other(X)
    assert counter.frame_count == 2 and len(reports[0].rows) == before


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(4, 4), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.linear(x))


def test_layers_that_are_alike_share_a_program_and_have_rows_of_their_own() -> None:
    layers = nn.Sequential(*(Layer() for _ in range(10)))
    x = torch.randn(2, 4)
    eager = hookcli.capture(layers, x, probes="activations")
    counter = CompileCounterWithBackend("aot_eager")
    for layer in layers:
        layer.compile(backend=counter)
    with torch.no_grad():
        layers(x)
    assert counter.frame_count == 1
    assert_same_rows(eager, hookcli.capture(layers, x, probes="activations"))
    assert counter.frame_count == 2
    one = hookcli.capture(layers, x, probes="activations", select=lambda fqn, module: fqn == "7.act")
    assert [row.fqn for row in one.rows] == ["7.act"]


class Breaking(nn.Module):
    """Its graph breaks between modules, and inside one that has none."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.inner, self.b = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()), Halves()

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        torch._dynamo.graph_break()
        return self.b(self.inner(x))


class Halves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 2
        torch._dynamo.graph_break()
        return x + 1


@pytest.mark.sweep
@pytest.mark.parametrize("probes", ["gradients", swept("activations")])
def test_a_graph_that_breaks_breaks_no_more_often_and_all_of_it_is_seen(probes: str) -> None:
    model = Breaking()
    eager = hookcli.capture(model, X, probes=PROBES[probes]())
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter)
    with torch.set_grad_enabled(probes == "gradients"):
        compiled(X)
    breaks, frames = sum(counters["graph_break"].values()), counter.frame_count
    assert breaks > 1 and frames > 2
    for one, other in zip(eager, hookcli.capture(compiled, X, probes=PROBES[probes]()), strict=True):
        assert_same_rows(one, other)
    assert counter.frame_count == 2 * frames and sum(counters["graph_break"].values()) == 2 * breaks


@pytest.mark.sweep
def test_batches_of_two_sizes_make_shapes_dynamic_as_they_do_without_looks() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    compiled = torch.compile(model, backend=counter, dynamic=True)
    for size in (3, 5, 9):
        seen = hookcli.capture(compiled, torch.randn(size, 4), probes="activations")
        assert [row["shape"][0] for row in seen.rows] == [size] * 4
    assert counter.frame_count <= 4  # a program without looks, and one for each session


def test_a_compiled_part_runs_eagerly_for_what_no_program_shows() -> None:
    compiled = torch.compile(Net(), backend="aot_eager")
    for asked in ({"ops": "functions"}, {"edits": "block:output=zero"}):
        report = hookcli.capture(compiled, X, probes="activations", **asked)
        assert report.meta["compiled"] == "run without torch.compile"
    assert hookcli.capture(compiled, X, probes="shapes").meta["compiled"] == "run without torch.compile"


@pytest.mark.sweep
def test_sessions_share_the_program_with_looks_so_that_no_limit_is_reached() -> None:
    """torch.compile compiles a function eight times at most, and keeps what it has compiled."""
    x, counter = torch.randn(2, 4), CompileCounterWithBackend("aot_eager")
    models = [Layer() for _ in range(4)]
    compiled = [torch.compile(model, backend=counter) for model in models]
    for number in range(12):
        model = models[number % 4]
        probe = ("activations", "grads")[number % 2]
        assert_same_rows(
            hookcli.capture(model, x, probes=probe), hookcli.capture(compiled[number % 4], x, probes=probe)
        )
    before = counter.frame_count
    compiled[0](torch.randn(3, 4))
    assert counter.frame_count == before + 1


class Cache:
    def __init__(self, x: Tensor) -> None:
        self.x = x


class Returns(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return deque([x * 2, {"deep": (x + 1, Cache(x), None, "word", 3)}])


class Takes(nn.Module):
    def forward(self, cache: Cache, dtype: torch.dtype) -> Tensor:
        return cache.x.to(dtype)


class Passing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.returns, self.takes = Returns(), Takes()

    def forward(self, x: Tensor) -> Tensor:
        doubled, held = self.returns(x)
        return doubled + held["deep"][0] + self.takes(held["deep"][1], dtype=torch.float32)


@pytest.mark.sweep
def test_an_object_that_is_not_looked_into_is_listed_and_what_stands_beside_it_is_seen() -> None:
    model = Passing()
    eager = hookcli.capture(model, X, probes=["activations", "inputs"])
    seen = hookcli.capture(torch.compile(model, backend="eager", fullgraph=True), X, probes=["activations", "inputs"])
    for one, other in zip(eager, seen, strict=True):
        assert [*places(one)] == [*places(other)]
        assert {s.reason for s in one.skipped} == {"holds tensors that can't be seen (Cache)"}
        where = [(s.fqn, s.path) for s in one.skipped]
        assert [(s.fqn, s.path) for s in other.skipped] == where and where
        said = "holds a value that is not looked into inside a compiled program (Cache)"
        assert {s.reason for s in other.skipped} == {said}
    assert [row["path"] for row in seen[0].rows if row.fqn == "returns"] == ["[0]", '[1]["deep"][0]']
