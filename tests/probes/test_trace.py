"""The trace probe against hooks that the test registers itself, by PyTorch's own functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support import Hand, Nested, Shared, gradients, hooks_on, untouched
from torch import Tensor, nn
from torch.autograd import graph
from torch.utils.checkpoint import checkpoint

import hookcli
from hookcli.errors import ModelError, UsageError
from hookcli.hooks.kinds import FULL_BACKWARD, REGISTRATION, HookKind
from hookcli.probes.trace import TraceProbe
from hookcli.report import Report

exact_only = pytest.mark.skipif(not hasattr(graph, "node_creation_hook"), reason="torch 2.15 tells of every new node")
WHOLE: dict[str, Any] = {"step": hookcli.Step(optimizer="adamw", state_dict=True)}
Event = tuple[str, str]


def traced(model: nn.Module, inputs: Any, *kinds: str, **options: Any) -> Report:
    probe = TraceProbe([HookKind(kind) for kind in kinds]) if kinds else TraceProbe()
    (report,) = hookcli.capture(model, inputs, [probe], **options)
    return report


def events(report: Report) -> list[Event]:
    return [(row["kind"], row.fqn) for row in report.rows]


class ByHand:
    """Notes what plain PyTorch hooks of every kind see of one training step."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.events: list[Event] = []
        self.running: list[str] = []
        self.received: list[tuple[str, Any]] = []
        self.own = False
        self.parameters = {id(p): name for name, p in model.named_parameters()}
        for fqn, module in model.named_modules():
            self.on_module(fqn, module)
        for fqn, parameter in model.named_parameters():
            parameter.register_hook(partial(self.note, "tensor_grad_parameter", fqn))
            parameter.register_post_accumulate_grad_hook(partial(self.note, "post_accumulate_grad", fqn))

    def note(self, kind: str, fqn: str, *seen: Any) -> None:
        self.events.append((kind, fqn))

    def on_module(self, fqn: str, module: nn.Module) -> None:
        note = self.note

        def pre(module: nn.Module, args: tuple[Any, ...]) -> Any:
            note("forward_pre", fqn)
            self.running.append(fqn)
            self.received += [(fqn, x.grad_fn or x) for x in args if x.requires_grad]

        def post(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            self.running.pop()
            note("forward", fqn)
            output.register_hook(partial(note, "tensor_grad_output", fqn))

        module.register_forward_pre_hook(pre)
        module.register_forward_hook(post)
        module.register_full_backward_pre_hook(partial(note, "full_backward_pre", fqn))
        module.register_full_backward_hook(partial(note, "full_backward", fqn))
        for kind in ("state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post"):
            getattr(module, f"register_{kind}_hook")(partial(note, kind, fqn))

    def made(self, node: Any) -> None:
        after = [getattr(other, "variable", other) for other, _ in node.next_functions]
        for fqn, edge in list(self.received):  # each input has one use here
            if any(edge is other for other in after):
                node.register_hook(partial(self.note, "tensor_grad_input", fqn))
                self.received.remove((fqn, edge))
        where = self.running[-1] if self.running else "(loss)"
        if "AccumulateGrad" in node.name():
            where = self.parameters[id(node.variable)]
        if self.own or "BackwardHookFunction" in node.name():
            return
        self.note("node_creation", where)
        node.register_prehook(partial(self.note, "node_pre", where))
        node.register_hook(partial(self.note, "node", where))

    def pack(self, tensor: Tensor) -> tuple[str, Tensor]:
        where = self.running[-1] if self.running else "(loss)"
        self.note("saved_tensor_pack", where)
        return where, tensor

    def unpack(self, packed: tuple[str, Tensor]) -> Tensor:
        self.note("saved_tensor_unpack", packed[0])
        return packed[1]

    def step(self, x: Tensor) -> list[Event]:
        model, note = self.model, self.note
        optimizer = torch.optim.AdamW(model.parameters())
        optimizer.register_step_pre_hook(partial(note, "optimizer_step_pre", ""))
        optimizer.register_step_post_hook(partial(note, "optimizer_step_post", ""))
        optimizer.register_state_dict_pre_hook(partial(note, "optimizer_state_dict_pre", ""))
        optimizer.register_state_dict_post_hook(partial(note, "optimizer_state_dict_post", ""))
        optimizer.register_load_state_dict_pre_hook(partial(note, "optimizer_load_state_dict_pre", ""))
        optimizer.register_load_state_dict_post_hook(partial(note, "optimizer_load_state_dict_post", ""))
        with graph.node_creation_hook(self.made), graph.saved_tensors_hooks(self.pack, self.unpack):
            loss = model(x).sum()
            for fqn, module in model.named_modules():
                own = list(module.parameters(recurse=not fqn))
                if own:
                    self.own = True
                    graph.register_multi_grad_hook(own, partial(note, "multi_grad", fqn))
                    self.own = False

            def over(grads: Any) -> None:
                graph.queue_callback(lambda: note("engine_callback", ""))

            loss.grad_fn.register_prehook(over)
            loss.backward()
        optimizer.step()
        model.load_state_dict(model.state_dict())
        optimizer.load_state_dict(optimizer.state_dict())
        return self.events


class Deep(nn.Module):
    """A block in a block, a functional operation, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.BatchNorm1d(3))
        self.last = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.last(self.block(x))))


@exact_only
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("make", [Hand, Deep])
def test_the_whole_sequence_is_that_of_hooks_registered_by_hand(make: Callable[[], nn.Module]) -> None:
    x = torch.ones(2, 2 if make is Hand else 3)
    expected = ByHand(make()).step(x)
    report = traced(make(), x, **WHOLE)
    assert events(report) == expected
    assert {kind for kind, _ in expected} == set(HookKind) - set(REGISTRATION)
    times = [row["us"] for row in report.rows]
    assert times == sorted(times) and [row["index"] for row in report.rows] == list(range(len(expected)))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.act = nn.ReLU()
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.act(self.conv(x)).flatten(1))


def test_what_is_kept_for_backward_by_hand() -> None:
    """The convolution keeps its input, ReLU what it returns, which the linear layer's input is a view of."""
    report = traced(Small(), torch.ones(5, 1, 4, 4), "saved_tensor_pack", "saved_tensor_unpack")
    kept: Counter[str] = Counter()
    for row in report.rows:
        kept[row.fqn] += row["kept"] or 0
    assert kept == {"conv": 5 * 1 * 4 * 4 * 4, "act": 5 * 2 * 2 * 2 * 4, "fc": 0}
    assert report.totals["kept_bytes"] == 320 + 160
    packed = [row["bytes"] for row in report.rows if row["kind"] == "saved_tensor_pack" and row.fqn == "conv"]
    assert sorted(packed) == [2 * 9 * 4, 320]
    assert all(row["kept"] is None for row in report.rows if row["kind"] == "saved_tensor_unpack")


def kept_by_hand(model: nn.Module, x: Tensor) -> int:
    """The storages that saved_tensors_hooks are given, each once, without those of parameters and buffers."""
    storages: dict[int, Any] = {}

    def pack(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        value = model(x).sum()
    del value
    held = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
    return sum(storage.nbytes() for key, storage in storages.items() if key not in held)


@pytest.mark.parametrize("name", ["small", "resnet18", "mobilenet_v3_small"])
def test_what_is_kept_is_the_memory_that_the_graph_holds(name: str) -> None:
    if name == "small":
        model, x = Small(), torch.ones(5, 1, 4, 4)
    else:
        from torchvision.models import get_model

        model, x = get_model(name, weights=None), torch.randn(2, 3, 64, 64)
    torch.manual_seed(0)
    expected = kept_by_hand(model, x)
    report = traced(model, x, "saved_tensor_pack")
    assert report.totals["kept_bytes"] == expected


@pytest.mark.parametrize("globally", [False, True])
@pytest.mark.parametrize("make", [Hand, Deep, Shared, Small])
def test_nothing_is_left_and_nothing_changes(make: Callable[[], nn.Module], globally: bool) -> None:
    torch.manual_seed(2)
    model = make()
    x = {
        Hand: torch.randn(2, 2),
        Deep: torch.randn(2, 3),
        Shared: torch.tensor([[1, 2]]),
        Small: torch.randn(2, 1, 4, 4),
    }[make]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with untouched(model):
        report = traced(model, x, globally=globally, **WHOLE)
    assert report.meta["optimizer"] == "adamw" and len(report.rows) > 50


def test_gradients_are_those_without_hooks() -> None:
    from torchvision.models import get_model

    model, x = get_model("squeezenet1_1", weights=None, num_classes=7), torch.randn(2, 3, 64, 64)
    torch.manual_seed(4)
    model(x).sum().backward()
    plain = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    kinds = [str(kind) for kind in HookKind if kind not in FULL_BACKWARD]  # which it refuses: relu(inplace=True)
    torch.manual_seed(4)
    with untouched(model), gradients(model) as seen:
        traced(model, x, *kinds, **WHOLE)
    assert plain.keys() == seen.keys() and all(torch.equal(plain[name], seen[name]) for name in plain)


@exact_only
def test_a_kind_that_never_fired_is_said() -> None:
    report = traced(Hand(), torch.ones(1, 2))
    asked = {kind for kind in HookKind if "optimizer" in kind or "state_dict" in kind}
    assert {item.path for item in report.skipped} == {*REGISTRATION, *asked}
    fired = {row["kind"] for row in report.rows}
    assert fired.isdisjoint(item.path for item in report.skipped)
    assert fired | {item.path for item in report.skipped} == set(HookKind)


def test_a_kind_that_this_pytorch_has_not_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(graph, "node_creation_hook", raising=False)
    report = traced(Hand(), torch.ones(1, 2), "node_creation", "node")
    assert [(item.path, item.reason) for item in report.skipped] == [
        ("node_creation", "PyTorch has this hook since 2.15")
    ]
    assert {row["kind"] for row in report.rows} == {"node"}


class NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise AssertionError("backward ran")


class Ends(Hand):
    def forward(self, x: Tensor) -> Tensor:
        return NoBackward.apply(super().forward(x))


def test_kinds_that_need_no_backward_run_none() -> None:
    kinds = ("forward_pre", "forward", "state_dict_pre", "load_state_dict_post")
    report = traced(Ends(), torch.ones(1, 2), *kinds, step=hookcli.Step(state_dict=True))
    assert {row["kind"] for row in report.rows} == set(kinds) and "loss" not in report.meta
    with pytest.raises(ModelError, match="backward ran"):
        traced(Ends(), torch.ones(1, 2), "node")


class Built(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(3))
        self.layers = nn.ModuleList([nn.Linear(3, 3)])
        self.layers.append(nn.Linear(3, 3, bias=False))
        self.add_module("lazy", nn.LazyLinear(2))
        self.dropped = nn.Tanh()
        del self.dropped
        nn.Linear(1, 1)
        self.own = nn.Parameter(torch.zeros(3))
        self.register_parameter("none", None)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) * self.scale + self.own
        return self.lazy(x)


def test_what_a_model_registers_while_it_is_built() -> None:
    probe = TraceProbe()
    before = hooks_on(Hand())
    with probe.building():
        model = Built()
    assert hooks_on(Hand()) == before
    (report,) = hookcli.capture(model, torch.ones(2, 3), [probe], **WHOLE)
    found = [(row["kind"], row.fqn, row["name"]) for row in report.rows if row["kind"] in REGISTRATION]
    assert found == [
        ("buffer_registration", "scale", None),
        ("parameter_registration", "layers.0.weight", None), ("parameter_registration", "layers.0.bias", None),
        ("module_registration", "layers.0", "Linear"), ("module_registration", "layers", "ModuleList"),
        ("parameter_registration", "layers.1.weight", None), ("module_registration", "layers.1", "Linear"),
        *[("parameter_registration", f"lazy.{name}", None) for name in ("weight", "weight", "bias")],
        ("module_registration", "lazy", "LazyLinear"), ("module_registration", "dropped", "Tanh"),
        ("parameter_registration", "(not in the model).weight", None),
        ("parameter_registration", "(not in the model).bias", None),
        ("parameter_registration", "own", None),
    ]  # fmt: skip
    kept = {row.fqn: 0 for row in report.rows}
    for row in report.rows:
        kept[row.fqn] += row["kept"] or 0
    assert kept["lazy"] == 2 * 3 * 4  # its input alone: its parameters are kept anyway


def test_registration_hooks_are_gone_after_a_model_that_fails_to_build() -> None:
    before = hooks_on(Hand())
    with pytest.raises(ZeroDivisionError), TraceProbe().building():
        nn.Linear(1, 1)
        raise ZeroDivisionError
    assert hooks_on(Hand()) == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("when", ["forward", "backward"])
@pytest.mark.parametrize("globally", [False, True])
def test_a_hook_of_the_users_that_raises(error: type[BaseException], when: str, globally: bool) -> None:
    model = Hand()

    def fail(*args: Any) -> None:
        raise error("theirs")

    if when == "forward":
        model.out.register_forward_hook(fail)
    else:
        model.first.weight.register_hook(fail)
    kind = ModelError if error is ValueError else KeyboardInterrupt
    with untouched(model), pytest.raises(kind) as caught:
        traced(model, torch.ones(1, 2), globally=globally, **WHOLE)
    (report,) = caught.value.reports  # type: ignore[attr-defined]
    assert ("forward", "relu") in events(report) and ("optimizer_step_pre", "") not in events(report)
    if error is ValueError:
        assert "ValueError: theirs" in str(caught.value)


def test_a_model_without_gradients_shows_its_forward() -> None:
    model = Hand().requires_grad_(False)
    with untouched(model), pytest.raises(UsageError, match="no gradients") as caught:
        traced(model, torch.ones(1, 2), **WHOLE)
    (report,) = caught.value.reports
    assert events(report)[:2] == [("forward_pre", ""), ("forward_pre", "first")] and ("forward", "") in events(report)


class RunsBackward(Hand):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        torch.autograd.grad(y.sum(), [self.first.weight], retain_graph=True)
        return y


def test_a_forward_that_differentiates() -> None:
    """Multi-grad hooks on leaves raise in `autograd.grad`: they must not be on yet."""
    model = RunsBackward()
    with untouched(model):
        report = traced(model, torch.ones(1, 2), **WHOLE)
    assert {fqn for kind, fqn in events(report) if kind == "multi_grad"} == {"", "first", "out"}
    assert events(report).count(("tensor_grad_parameter", "first.weight")) == 2


def test_a_graph_that_an_earlier_backward_freed() -> None:
    class Frees(Hand):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            y.sum().backward()
            return y

    model = Frees()
    with untouched(model), pytest.raises(ModelError, match="the graph was freed by an earlier backward"):
        traced(model, torch.ones(1, 2), **WHOLE)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.block = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.block, self.first(x), use_reentrant=reentrant)

    model = Checkpointed()
    with untouched(model):
        report = traced(model, torch.ones(2, 3), **WHOLE)
    count = Counter(events(report))
    assert count["forward", "block.0"] == count["forward", "block"] == 1  # a recomputation is no call
    assert count["post_accumulate_grad", "block.0.weight"] == count["post_accumulate_grad", "first.weight"] == 1


@pytest.mark.filterwarnings("ignore:For backward hooks to be called")
@pytest.mark.parametrize(("model", "x"), [
    (nn.LSTM(4, 3, 2), torch.randn(5, 2, 4)),
    (Nested("dict"), torch.ones(2, 3)),
    (Nested("dataclass"), torch.ones(2, 3)),
    (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval(), torch.randn(2, 3, 8)),
])  # fmt: skip
def test_models_of_other_shapes(model: nn.Module, x: Tensor) -> None:
    with untouched(model):
        report = traced(model, x, **WHOLE)
    parameters = {name for name, _ in model.named_parameters()}
    assert {fqn for kind, fqn in events(report) if kind == "post_accumulate_grad"} == parameters


def test_an_edit_is_marked_where_it_shows() -> None:
    report = traced(Hand(), torch.ones(1, 2), "forward", "node", edits=["relu:output=scale(2)"])
    assert [row.fqn for row in report.rows if row.get("edited")] == ["relu"]


@pytest.mark.filterwarnings("ignore:For backward hooks to be called")
def test_outputs_that_full_backward_hooks_do_not_see_are_said() -> None:
    report = traced(Nested("dict"), torch.ones(2, 3), "full_backward_pre", "full_backward")
    assert {row.fqn for row in report.rows} == {"body"}
    assert [(item.fqn, item.path) for item in report.skipped] == [("", "full_backward")]
