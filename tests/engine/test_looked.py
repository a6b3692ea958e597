"""Commands and functions on compiled models: what they say of it, of failures, and of what looks move."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support import swept
from torch import Tensor, nn

import hookcli
from hookcli.engine.looked import Witness, moved_by_looks
from hookcli.errors import ModelError
from hookcli.probes.grads import GradsProbe

pytestmark = [
    pytest.mark.xdist_group("torch.compile"),  # whose imports and precompiled headers one worker needs
    pytest.mark.usefixtures("own_notes"),
]
NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, bad=False, breaks=False):
        super().__init__()
        self.a, self.act, self.b, self.bad, self.breaks = nn.Linear(8, 16), nn.ReLU(True), nn.Linear(16, 4), bad, breaks

    def forward(self, x):
        if self.breaks:
            torch._dynamo.graph_break()
        return self.b(self.act(self.a(x)) / (0 if self.bad else 1))

def compiled():
    return torch.compile(Net(), backend="aot_eager")

def bad():
    return torch.compile(Net(bad=True), backend="aot_eager")

def whole():
    return torch.compile(Net(breaks=True), backend="aot_eager", fullgraph=True)

def refuse(graph, inputs):
    raise RuntimeError("this backend is out of order")

def refused():
    return torch.compile(Net(), backend=refuse)
"""
X = torch.randn(4, 8)


@pytest.fixture(autouse=True)
def fresh(tmp_path: Any, monkeypatch: Any) -> Iterator[None]:
    torch._dynamo.reset()
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    yield
    torch._dynamo.reset()


def report_of(cli: Any, *words: str) -> dict[str, Any]:
    answer = cli(*words, "--input", "4x8", "--format", "json")
    document: dict[str, Any] = json.loads(answer.out)["reports"][0]
    return document


@pytest.mark.sweep
@pytest.mark.parametrize(
    "command",
    [
        ("activations",),
        *map(swept, [("inputs",), ("grads",), ("grads", "--of", "inputs"), ("grads", "--of", "outputs")]),
    ],
)
def test_a_model_compiled_by_the_option_and_one_that_arrives_compiled_have_eager_rows(cli: Any, command: Any) -> None:
    eager = report_of(cli, *command, "net.py:Net")
    names = [(row["fqn"], row.get("path"), row["shape"]) for row in eager["rows"]]
    for words in (("net.py:Net", "--compile", "aot_eager"), ("net.py:compiled",)):
        seen = report_of(cli, *command, *words)
        assert sorted((row["fqn"], row.get("path"), row["shape"]) for row in seen["rows"]) == sorted(names)
        norms = {(row["fqn"], row.get("path")): row["l2"] for row in seen["rows"]}
        assert norms == {(row["fqn"], row.get("path")): pytest.approx(row["l2"], rel=1e-5) for row in eager["rows"]}
        assert seen["meta"]["compiled"].startswith("by aot_eager: outputs ") and "compiled" not in eager["meta"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("net.py:Net", "--compile=nope"), "unknown --compile 'nope'"),
        (("net.py:Net", "--compile", "--ops"), "--compile and --ops"),
        (("net.py:Net", "--compile", "--time"), "--compile and --time"),
        (("net.py:Net", "--compile", "--edit", "a:output=zero"), "--compile and --edit"),
        (("net.py:Net", "--emulate-casts"), "--emulate-casts: the model is not compiled; add --compile"),
        (("net.py:compiled", "--emulate-casts"), "--emulate-casts: inductor alone fuses, not aot_eager; leave it out"),
        (("net.py:compiled", "--emulate-casts", "--ops"), "--emulate-casts: compiled parts run uncompiled here"),
        (("net.py:refused",), "this backend is out of order"),
        (("net.py:whole",), "graph_break"),
        (("net.py:Net", "--compile", "aot_eager", "--input", "4x9"), "same reduction dim"),
    ],
)
def test_what_can_not_be_compiled_ends_with_one_line(cli: Any, words: tuple[str, ...], said: str) -> None:
    given = () if "--input" in words else ("--input", "4x8")
    answer = cli("activations", *words, *given)
    assert answer.code == 2
    lines = [line for line in answer.err.splitlines() if line.startswith("hookcli: error:")]
    assert len(lines) == 1 and said in lines[0]


@pytest.mark.sweep
def test_checks_find_in_a_compiled_model_what_they_find_in_the_model_as_written() -> None:
    namespace: dict[str, Any] = {}
    exec(compile(NET, "net.py", "exec"), namespace)
    for name in ("bad", "compiled"):
        model = namespace[name]()
        kept = ["HK003", "HK004"]
        (seen, eager) = (
            {f.check: f for f in hookcli.check(x, X, select=kept).findings} for x in (model, model._orig_mod)
        )
        assert seen.keys() == eager.keys() and bool(seen) == (name == "bad")
        if seen:  # gradients arrive in another order: HK004 names another of the parameters
            assert (seen["HK003"].fqn, seen["HK003"].message) == (eager["HK003"].fqn, eager["HK003"].message)


@pytest.mark.sweep
def test_a_page_shows_the_inside_of_a_compiled_model() -> None:
    model = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), backend="aot_eager")
    reports = {report.probe: report for report in hookcli.report(model, X).reports}
    for probe in ("activations", "grads"):
        assert reports[probe].meta["compiled"].startswith("by aot_eager: ")
    assert {row.fqn for row in reports["activations"].rows} == {"", "0", "1"}


class Twice(nn.Module):
    """Returns what its part makes of the input, which it also adds to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.part(x)
        return y * y.exp() + y


@pytest.mark.sweep
def test_what_looks_move_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here by a run without looks whose results are made another's."""
    see = Witness.see

    def another(self: Witness, output: Any) -> None:
        see(self, output)
        if self.outputs is not None and self is not seen[0]:
            self.outputs = [x * 1.5 for x in self.outputs]

    seen: list[Witness] = []
    init = Witness.__init__
    monkeypatch.setattr(Witness, "__init__", lambda self, model: (seen.append(self), init(self, model))[1])
    monkeypatch.setattr(Witness, "see", another)
    model = torch.compile(Twice(), backend="aot_eager")
    report = hookcli.capture(model, X, probes=GradsProbe("outputs"))
    said = "looks move outputs by 3.3e-01, gradients of parameters by 0.0e+00 of their norm"
    assert said in report.meta["compiled"] and said in report.meta["notes"][-1]


def test_a_crash_of_the_model_inside_its_program_is_the_models() -> None:
    with pytest.raises(ModelError, match="same reduction dim"):
        hookcli.capture(torch.compile(Twice(), backend="aot_eager"), torch.randn(4, 9), probes="activations")


def test_later_writes_do_not_reach_what_was_seen() -> None:
    """Programs with CUDA graphs return the same memory at each run; models change their buffers in place."""
    model, returned = nn.Linear(2, 1), torch.ones(3)
    model(torch.ones(2)).backward()
    expected = model.weight.grad.clone()  # type: ignore[union-attr]
    (witness := Witness(model)).see({"out": returned})
    returned.zero_()
    model.zero_grad(set_to_none=False)
    assert witness.outputs is not None and torch.equal(witness.outputs[0], torch.ones(3))
    [weight, bias] = witness.gradients
    assert weight is not None and torch.equal(weight, expected) and bias == 1


def test_a_gradient_that_one_of_two_runs_lacks_is_a_difference() -> None:
    model = nn.Linear(2, 1)
    plain, looked = Witness(model), Witness(model)
    plain.outputs = looked.outputs = [torch.ones(1)]
    plain.gradients, looked.gradients = [torch.ones(3), torch.ones(1)], [torch.ones(3), None]
    assert "gradients of parameters by 5.0e-01 of" in moved_by_looks(model, plain, looked)


@pytest.mark.sweep
def test_a_model_that_counts_its_calls_is_compared_at_the_same_count() -> None:
    """It returns a buffer that every run changes."""

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(8))
            self.scale = nn.Parameter(torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            self.total += (self.scale * x).sum(0).detach()
            return self.total

    model = Counts()
    report = hookcli.capture(torch.compile(model, backend="aot_eager"), X, probes="activations")
    assert "outputs bit-identical" in report.meta["compiled"] and not model.total.any()
    assert report[""]["l2"] == pytest.approx(float(X.sum(0).norm()), rel=1e-6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("check", "net.py:Net"), "the model is not compiled; add --compile"),
        (("check", "net.py:compiled"), "inductor alone fuses, not aot_eager"),
        (("report", "net.py:Net", "--compile", "eager"), "inductor alone fuses, not eager"),
        (("inputs", "net.py:Net"), "the model is not compiled; add --compile"),
        (("diff", "net.py:Net", "net.py:Net --emulate-casts"), "the model is not compiled; add --compile"),
    ],
)
def test_casts_can_be_emulated_in_programs_of_inductor_alone(cli: Any, words: tuple[str, ...], said: str) -> None:
    options = () if words[0] == "diff" else ("--emulate-casts",)
    answer = cli(*words, *options, "--input", "4x8")
    assert answer.code == 2 and f"--emulate-casts: {said}" in answer.err and answer.err.count("\n") == 1


def test_checks_emulate_casts_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the programs that are seen inside, and nowhere else."""
    from torch._inductor import config

    seen = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(config.emulate_precision_casts)
        return graph

    model = torch.compile(Twice(), backend=backend)
    hookcli.check(model, X, emulate_casts=True, select="HK003")
    assert len(seen) == 2 and all(seen) and not config.emulate_precision_casts
    hookcli.check(model, X, select="HK003")
    assert not any(seen[2:])


def test_a_part_that_torch_compile_leaves_uncompiled_is_not_taken_for_seen_inside() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

        @torch.compiler.disable
        def run(self, x: Tensor) -> Tensor:
            return self.inner(x)

        def forward(self, x: Tensor) -> Tensor:
            return self.run(x)

    report = hookcli.capture(torch.compile(Outer(), backend="aot_eager"), X, probes="activations")
    assert report.meta["compiled"] == "by aot_eager: no module of this report ran inside a compiled program"
    assert {row.fqn for row in report.rows} == {"", "inner", "inner.0", "inner.1"}


def test_parts_in_a_plain_list_are_as_they_were() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [nn.BatchNorm1d(8)]

        def forward(self, x: Tensor) -> Tensor:
            return self.parts[0](x)

    model = Listed().train()
    before = {name: x.clone() for name, x in model.parts[0].state_dict().items()}
    report = hookcli.capture(torch.compile(model, backend="eager"), X, probes="activations")
    assert all(torch.equal(x, before[name]) for name, x in model.parts[0].state_dict().items())
    assert "outputs bit-identical" in report.meta["compiled"]
