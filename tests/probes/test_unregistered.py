"""What is written, appended or not registered is said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from probes.left_out import PROBES, Registered, Returns, reasons, run
from support import untouched
from torch import Tensor, nn

from hookcli import capture, check, watch
from hookcli.probes.grads import GradsProbe


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
    of_kinds = ("never fired", "PyTorch has this hook since 2.14")
    assert [reason for reason in reasons(report, "") if reason not in of_kinds] == [
        f"heads is a plain dict of 1 module, {lost}: use nn.ModuleDict",
        f"layers is a plain list of 2 modules, {lost}: use nn.ModuleList",
        "scales is a plain list of 1 parameter, which PyTorch doesn't register: use nn.ParameterList",
        "shift is a tensor that requires grad and not registered, so no optimizer gets it: make it an nn.Parameter",
        "teacher is a Linear that is not registered: hooks do not see it",
        "makes Linear in forward, anew each time and never trained: make it in __init__",
    ]


def test_what_the_program_gives_to_an_optimizer_is_meant() -> None:
    model = Plain()
    optimizer = torch.optim.SGD([model.shift, *model.layers[0].parameters()])
    report = run(model, torch.randn(3, 4), "grads")
    assert [reason for reason in reasons(report, "") if reason.startswith(("layers", "shift"))] == [
        "layers is a plain list of 2 modules, which PyTorch doesn't register: use nn.ModuleList",
        "shift is a Tensor that is not registered: hooks do not see it",
    ]
    found = check(model, torch.randn(3, 4), select="HK030").findings
    assert [one.message.partition(" ")[0] for one in found] == ["heads", "scales", "makes"]
    del optimizer


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
