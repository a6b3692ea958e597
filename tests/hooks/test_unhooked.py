"""Parts that take no hooks: TorchScript, compiled and exported ones."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hooks.unhooked import OF_GRADS, X, made
from support import assert_stats, float64_stats, swept, untouched
from torch import Tensor, nn

import hookcli
from hookcli.engine.lockstep import Side, compare
from hookcli.hooks.torch_private import dynamo

PROBES = ("shapes", "inputs", "activations", "grads", "trace", "graph")


OF_MODULES = ("shapes", "inputs", "activations")


class Around(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.first, self.part, self.last = nn.Linear(4, 4), part, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.part(self.first(x)))


def part() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


@pytest.fixture(params=["scripted", "traced"])
def scripted(request: pytest.FixtureRequest) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Around(torch.jit.script(part()) if request.param == "scripted" else torch.jit.trace(part(), X))


@pytest.mark.parametrize("probe", [*PROBES, *OF_GRADS])
def test_the_rest_of_a_model_with_torchscript_is_seen(scripted: nn.Module, probe: str) -> None:
    with untouched(scripted):
        report = hookcli.capture(scripted, X, [made(probe)])[0]
    listed = {s.fqn for s in report.skipped if "TorchScript takes no hooks" in s.reason}
    if probe == "grads":
        assert {row.fqn for row in report.rows} == {name for name, _ in scripted.named_parameters()} and not listed
    else:
        assert listed == {"part", "part.0", "part.1"} and {"first", "last"} <= {row.fqn for row in report.rows}


def test_figures_around_torchscript_are_those_of_eager_mode(scripted: nn.Module) -> None:
    expected = float64_stats(scripted.last(scripted.part(scripted.first(X))))
    rows = {row.fqn: row for row in hookcli.capture(scripted, X, ["activations"])[0].rows}
    assert_stats(rows["last"].stats, expected)


@pytest.mark.sweep
def test_torchscript_among_what_is_watched_checked_and_compared(scripted: nn.Module) -> None:
    with hookcli.watch(scripted, ["activations"]) as seen:
        scripted(X).sum().backward()
    assert {row.fqn for row in seen.reports()[0].rows} == {"", "first", "last"}
    scripted.zero_grad()
    with untouched(scripted):
        assert hookcli.check(scripted, X).meta.get("error") is None
        assert not compare(Side(scripted, X), Side(scripted, X), step=hookcli.Step(backward=True)).totals["beyond"]


def test_a_selection_without_torchscript_lists_none(scripted: nn.Module) -> None:
    report = hookcli.capture(scripted, X, ["activations"], select=lambda fqn, module: fqn == "last")[0]
    assert [row.fqn for row in report.rows] == ["last"] and not report.skipped


@pytest.fixture
def compiled() -> Iterator[tuple[nn.Module, list[int]]]:
    torch._dynamo.reset()
    graphs: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    yield Around(torch.compile(part(), backend=backend)), graphs
    torch._dynamo.reset()


@pytest.mark.sweep
@pytest.mark.xdist_group("torch.compile")
@pytest.mark.parametrize("before", [swept(False), True])
def test_what_is_compiled_runs_eagerly_for_shapes_and_is_seen_inside_its_program_for_values(
    compiled: Any, before: bool
) -> None:
    model, graphs = compiled
    if before:
        model(X)
    made = list(graphs)
    with untouched(model):
        shapes = hookcli.capture(model, X, "shapes")
    assert shapes.meta["compiled"] == "run without torch.compile" and graphs == made
    for probe in ("inputs", "activations"):
        with untouched(model):
            report = hookcli.capture(model, X, probe)
        assert {row.fqn for row in report.rows} == {row.fqn for row in shapes.rows} >= {"part.0", "part.1", "last"}
        assert report.meta["compiled"].startswith("by backend: ")
    made = list(graphs)
    model(X)
    assert len(graphs) == len(made) + (not before)


@pytest.mark.sweep
def test_a_run_of_the_callers_stays_compiled(compiled: Any) -> None:
    model, graphs = compiled
    for _ in range(2):
        with hookcli.watch(model, ["activations"]) as seen:
            model(X).sum().backward()
        assert len(graphs) == 1
    (report,) = seen.reports()
    assert {row.fqn for row in report.rows} == {"", "first", "part", "last"}
    listed = {s.fqn for s in report.skipped if s.reason.startswith("compiled: ")}
    assert listed == {"part._orig_mod", "part._orig_mod.0", "part._orig_mod.1"}


@pytest.mark.sweep
def test_what_is_compiled_is_compared_as_a_whole(compiled: Any) -> None:
    model, graphs = compiled
    report = compare(Side(model, X), Side(Around(part()), X))
    assert len(graphs) == 1 and not report.totals["beyond"]
    assert {"first", "last"} <= {row.fqn for row in report.rows}


@pytest.mark.sweep
@pytest.mark.parametrize("how", ["fx", "export"])
def test_modules_made_of_graphs(how: str) -> None:
    inner = part().eval()
    made = torch.fx.symbolic_trace(inner) if how == "fx" else torch.export.export(inner, (X,)).module()
    model = Around(made)
    for probe in PROBES:
        with untouched(model):
            assert hookcli.capture(model, X, [probe])[0].rows
    with untouched(model):
        assert hookcli.check(model, X).meta.get("error") is None


@pytest.mark.parametrize("name", [swept("make"), "ready"])
def test_a_model_with_torchscript_from_the_command_line(name: str, cli: Any, net: Any) -> None:
    (net / "scripted.py").write_text(SCRIPTED)
    for command in (("shapes",), ("grads", "--of", "inputs"), ("trace", "--global"), ("check",)):
        ran = cli(*command[:1], f"scripted.py:{name}", *command[1:], "-i", "2x3", "-f", "json")
        assert ran.code == 0, ran.err
        assert ("TorchScript takes no hooks" in ran.out) == (command[0] != "check")


SCRIPTED = """
import torch
def make():
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.jit.script(torch.nn.Linear(3, 3)), torch.nn.Linear(3, 2))
ready = make()
"""


def test_an_exported_model_from_the_command_line(cli: Any, net: Any) -> None:
    (net / "exported.py").write_text(EXPORTED)
    for command in ("shapes", "activations", "check"):
        ran = cli(command, "exported.py:make")
        assert ran.code == 0, ran.err


EXPORTED = """
import torch
def make():
    x = torch.ones(2, 3)
    return torch.nn.Sequential(torch.export.export(torch.nn.Linear(3, 2), (x,)).module()), x
"""


def test_a_module_that_another_thread_was_importing_at_a_fork_is_not_waited_for(monkeypatch) -> None:
    """Its lock is held by a thread that the child does not have."""
    half = ModuleType("torch._dynamo.convert_frame")
    half.__spec__ = SimpleNamespace(_initializing=True)
    monkeypatch.setitem(sys.modules, half.__name__, half)
    monkeypatch.setattr(dynamo, "private", lambda *_: pytest.fail("imported"))
    assert dynamo.frames_compiled() == 0
