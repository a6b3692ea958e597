"""What can't be measured is said: calls that raised, tensors out of reach, modules that PyTorch does not know."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from support import untouched
from torch import Tensor, nn
from torch.distributions import Normal
from torch.utils import _pytree

from hookcli import capture, watch
from hookcli.probes.grads import GradsProbe
from hookcli.probes.trace import TraceProbe
from hookcli.report import Report

PROBES: dict[str, Any] = {
    "shapes": lambda: "shapes",
    "activations": lambda: "activations",
    "inputs": lambda: "inputs",
    "outputs' gradients": lambda: GradsProbe("outputs"),
    "trace": lambda: TraceProbe(),
}


def run(model: nn.Module, inputs: Any, probe: Any) -> Report:
    with untouched(model):
        [report] = capture(model, inputs, [probe])
    return report


def reasons(report: Report, fqn: str) -> list[str]:
    return [item.reason for item in report.skipped if item.fqn == fqn]


class Tries(nn.Module):
    """Falls back where a part of it fails."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.risky, self.safe = nn.Sequential(Raises(error)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = x.new_zeros(2)
        for _ in range(2):
            try:
                return self.risky(x)
            except BaseException:
                y = y + self.safe(x)
        return y


class Raises(nn.Module):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        raise self.error("caught")


@pytest.mark.parametrize("probe", PROBES)
def test_a_module_that_raised_and_was_caught(probe: str) -> None:
    report = run(Tries(ValueError), torch.randn(3, 4), PROBES[probe]())
    for fqn in ("risky", "risky.0"):
        assert reasons(report, fqn) == ["its call raised ValueError and returned nothing, nor did 1 more"]
    assert reasons(report, "safe") == []


def test_an_exception_that_is_no_exception() -> None:
    report = run(Tries(asyncio.CancelledError), torch.randn(3, 4), "activations")
    assert reasons(report, "risky") == ["its call did not return, nor did 1 more"]


def test_a_module_that_did_not_raise_has_no_reason() -> None:
    report = run(Tries(ValueError).safe, torch.randn(3, 4), "activations")
    assert report.skipped == []


class Cache:
    """No container. Whoever looks must not run its code."""

    def __init__(self, **entries: Any) -> None:
        self.__dict__.update(entries)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")

    def __iter__(self) -> Any:
        raise AssertionError("it was walked through")

    @property
    def length(self) -> int:
        raise AssertionError("a property was read")


class Slotted:
    __slots__ = ("empty", "state")

    def __init__(self, state: Any) -> None:
        self.state = state


class Returns(nn.Module):
    """Returns what a function makes of a tensor, by way of a part that takes it."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.first, self.takes, self.make = nn.Linear(4, 2), Takes(), make

    def forward(self, x: Tensor) -> Any:
        y = self.first(x)
        held = self.make(y)
        return y + self.takes(y, held), held


class Takes(nn.Module):
    def forward(self, y: Tensor, held: Any) -> Tensor:
        return y * 2


OUT_OF_REACH: dict[str, Any] = {
    "Cache": lambda y: Cache(keys=[y]),
    "Slotted": lambda y: Slotted({"h": y}),
    "Normal": lambda y: Normal(y, y.exp()),
    "set": lambda y: {y},
}


@pytest.mark.parametrize("kind", OUT_OF_REACH)
@pytest.mark.parametrize("probe", PROBES)
def test_tensors_inside_objects_that_are_no_containers(kind: str, probe: str) -> None:
    report = run(Returns(OUT_OF_REACH[kind]), torch.randn(3, 4), PROBES[probe]())
    said = f"holds tensors that can't be seen ({kind})"
    noted = {(item.fqn, item.path) for item in report.skipped if item.reason == said}
    received, returned = ("takes", "[1]"), ("", "[1]")
    expected = {"inputs": {received}, "activations": {returned}, "outputs' gradients": {returned}}
    assert noted == expected.get(probe, {received, returned})


def test_objects_without_tensors_are_not_worth_a_word() -> None:
    for plain in (3, "text", None, object(), torch.float32, nn.Linear(1, 1), Cache(n=1), range(3), len):
        model = Returns(lambda y, plain=plain: plain)
        assert run(model, torch.randn(3, 4), "activations").skipped == []


def test_a_lone_object_has_one_reason() -> None:
    class Policy(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return Normal(x, 1.0)

    assert reasons(run(Policy(), torch.randn(3), "activations"), "") == ["holds tensors that can't be seen (Normal)"]


class Registered:
    """A container for pytree alone."""

    def __init__(self, hidden: Tensor, extra: Any) -> None:
        self.hidden, self.extra = hidden, extra


_pytree.register_pytree_node(
    Registered, lambda r: ([r.hidden, r.extra], None), lambda items, context: Registered(*items)
)


def test_types_that_are_registered_with_pytree_are_walked() -> None:
    model = Returns(lambda y: Registered(y * 3, deque([y])))
    by_place = {(row.fqn, row["path"]): row for row in run(model, torch.randn(3, 4), "activations").rows}
    assert {("", "[1][0]"), ("", "[1][1][0]")} < by_place.keys()
    assert by_place["", "[1][0]"]["l2"] == pytest.approx(3 * by_place["", "[1][1][0]"]["l2"])
    grads = run(model, torch.randn(3, 4), GradsProbe("outputs"))
    assert {("", "[1][0]"), ("", "[1][1][0]")} < {(row.fqn, row["path"]) for row in grads.rows}


@dataclass
class State:
    hidden: Tensor
    steps: int = 0
    seen: list[Tensor] = field(default_factory=list)


class Writes(nn.Module):
    """Writes into the object that it is given, as a cache is written."""

    def forward(self, x: Tensor, state: Any) -> Tensor:
        held = state.hidden
        state.hidden, state.steps = held + x, getattr(state, "steps", 0) + 1
        return held * 2


class Steps(nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        self.first, self.writes, self.kind = nn.Linear(4, 4), Writes(), kind
        self.told: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        state = self.kind(y, 0)
        out = self.writes(y, state)
        self.told = [state.steps, torch.equal(state.hidden, 2 * y)]
        return out + state.hidden


@pytest.mark.parametrize("kind", [State, Registered])
def test_what_a_module_writes_into_its_argument_is_there_for_its_caller(kind: type) -> None:
    model = Steps(kind)
    report = run(model, torch.randn(3, 4), GradsProbe("inputs"))
    assert model.told == [1, True]
    by_path = {row["path"] for row in report.rows if row.fqn == "writes"}
    assert by_path == {"[0]", "[1].hidden" if kind is State else "[1][0]"}


def nested(levels: int, item: Any) -> Any:
    for _ in range(levels):
        item = [item]
    return item


@pytest.mark.parametrize("via", ["tensor", "module"])
def test_what_a_module_appends_to_a_list_that_it_received_is_no_input(via: str) -> None:
    class Appends(nn.Linear):
        def forward(self, x: Tensor, found: list[Tensor]) -> Tensor:  # as a block of VoVNet
            found.append(super().forward(x))
            return torch.cat(found, 1)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Appends(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.part(x, [x])

    model, x = Net(), torch.ones(1, 2, requires_grad=True)
    with untouched(model):
        report = capture(model, (x,), [GradsProbe(of="inputs", via=via)])[0]
    assert not [s for s in report.skipped if s.path == "[1][1]"]


def test_deep_nesting_is_walked_or_said() -> None:
    report = run(Returns(lambda y: nested(60, y)), torch.randn(3, 4), "activations")
    assert [row["path"] for row in report.rows if row.fqn == ""] == ["[0]", "[1]" + 60 * "[0]"]
    assert report.skipped == []
    report = run(Returns(lambda y: nested(2000, y)), torch.randn(3, 4), "activations")
    assert reasons(report, "") == ["lies deeper than 100 levels: tensors there are not looked for"]


@pytest.mark.parametrize("globally", [False, True])
def test_keyword_arguments_of_layers_that_global_hooks_watch(globally: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x, mask = torch.randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    mask[:, 4] = True
    with untouched(model):
        [report] = capture(model, {"src": x, "src_key_padding_mask": mask}, ["inputs"], globally=globally)
    zeros = {(row.fqn, row["path"]): row["zeros"] for row in report.rows}
    for place in ("", "layers.0", "layers.1"):
        assert zeros[place, '["src_key_padding_mask"]'] == 8


def test_gradients_of_keyword_arguments_that_global_hooks_watch() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x, mask = torch.randn(2, 5, 8), torch.randn(5, 5)
    [report] = capture(layer, {"src": x, "src_mask": mask}, [GradsProbe("inputs")])
    found = {row["path"]: row["l2"] for row in report.rows if row.fqn == ""}
    x, mask = x.double().requires_grad_(), mask.double().requires_grad_()
    grads = torch.autograd.grad(layer.double()(x, src_mask=mask).sum(), [x, mask])
    for path, grad in zip(('["src"]', '["src_mask"]'), grads, strict=True):
        assert found[path] == pytest.approx(grad.norm().item(), rel=1e-3, abs=1e-6)


class Plain(nn.Module):
    """Holds what it computes with in ways that PyTorch does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.known = nn.Linear(4, 4)
        self.again = [self.known]
        self.layers = [nn.Linear(4, 4), [nn.ReLU()]]
        self.heads = {"a": nn.Linear(4, 4, bias=False)}
        self.scales = [nn.Parameter(torch.ones(4))]
        self.shift = torch.zeros(4, requires_grad=True)
        self.rnn = nn.GRU(4, 4)
        self.__dict__["teacher"] = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](self.known(x)) * self.scales[0] + self.shift
        x = nn.Linear(4, 4)(x) + nn.ReLU()(x) + self.rnn(x)[0]
        return self.heads["a"](x) + self.teacher(x)


@pytest.mark.parametrize("probe", [*PROBES, "parameters' gradients"])
def test_what_is_not_registered_is_said(probe: str) -> None:
    report = run(Plain(), torch.randn(3, 4), PROBES.get(probe, lambda: "grads")())
    lost = "which PyTorch doesn't register, and no optimizer gets their parameters"
    said = [
        reason for reason in reasons(report, "") if reason not in ("never fired", "PyTorch has this hook since 2.15")
    ]
    assert said == [
        f"heads is a plain dict of 1 module, {lost}: use nn.ModuleDict",
        f"layers is a plain list of 2 modules, {lost}: use nn.ModuleList",
        "scales is a plain list of 1 parameter, which PyTorch doesn't register: use nn.ParameterList",
        "shift is a tensor that requires grad and not registered, so no optimizer gets it: make it an nn.Parameter",
        "teacher is a Linear that is not registered: hooks do not see it",
        "makes Linear in forward, anew each time and never trained: make it in __init__",
    ]


def test_what_is_not_registered_is_left_as_it_was() -> None:
    model = Plain()
    norm = nn.BatchNorm1d(4)
    model.layers[0] = nn.Sequential(nn.Linear(4, 4), norm)
    tensors = [model.shift, model.scales[0], *model.layers[0].parameters(), *model.heads["a"].parameters()]
    model.shift.grad = torch.ones(4)
    run(model, torch.randn(3, 4), "grads")
    assert torch.equal(model.shift.grad, torch.ones(4)) and all(x.grad is None for x in tensors[1:])
    assert not norm.running_mean.any() and norm.num_batches_tracked == 0


def test_a_layer_that_is_made_in_the_first_call_and_kept() -> None:
    class Late(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not hasattr(self, "layer"):
                self.layer = nn.Linear(4, 2)
            return self.layer(x)

    model = Late()
    [report] = capture(model, torch.randn(3, 4), ["activations"])
    said = "makes Linear in forward, which an optimizer that was made before does not get: make it in __init__"
    assert reasons(report, "") == [said]
    model(torch.randn(3, 4))
    report = run(model, torch.randn(3, 4), "activations")
    assert [row.fqn for row in report.rows] == ["", "layer"] and report.skipped == []


def test_a_part_that_refers_to_the_whole_holds_nothing_unknown() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].owner = [model]
    assert run(model, torch.randn(3, 4), "activations").skipped == []
    part = model[0]
    assert run(part, torch.randn(3, 4), "activations").skipped == []


def test_what_is_made_while_nobody_looks_is_not_the_models() -> None:
    model = nn.Linear(4, 2)
    with watch(model, ["activations"]) as session:
        nn.Linear(4, 4)
        model(torch.randn(3, 4))
    assert session.reports()[0].skipped == []


@pytest.mark.filterwarnings("ignore")
def test_packed_parameters_are_counted() -> None:
    plain = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.LSTM(5, 6, bidirectional=True))
    expected = [sum(p.numel() for p in part.parameters()) for part in plain]
    packed = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear, nn.LSTM})
    report = run(packed, torch.randn(3, 2, 4), "shapes")
    found = {row.fqn: row["params"] for row in report.rows if row["params"] is not None}
    assert [found[str(number)] for number in range(3)] == expected
    assert (report.totals["params"], report.totals["trainable"]) == (sum(expected), 0)
    assert 0 < report.totals["param_bytes"] < 4 * sum(expected)
