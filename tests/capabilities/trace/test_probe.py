"""The sequence of all hooks, against hooks registered by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from capabilities.trace.traced import WHOLE, Event, events, traced
from support import Hand, Shared, each_once, exact_only, gradients, swept, untouched
from torch import Tensor, nn
from torch.autograd import graph

import hookcli
from hookcli.hooks.kinds import FULL_BACKWARD, REGISTRATION, HookKind

# Public since torch 2.15; here without hookcli's lookup, which is what is tested.
queue_callback = getattr(graph, "queue_callback", None) or torch.autograd.Variable._execution_engine.queue_callback


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
                # As backward reaches the node: behind the full backward hooks on it, which may change its gradients.
                node.register_prehook(partial(self.behind, node, partial(self.note, "tensor_grad_input", fqn)))
                self.received.remove((fqn, edge))
        where = self.running[-1] if self.running else "(loss)"
        if "AccumulateGrad" in node.name():
            where = self.parameters[id(node.variable)]
        if self.own or "BackwardHookFunction" in node.name():
            return
        self.note("node_creation", where)
        node.register_prehook(partial(self.note, "node_pre", where))
        node.register_hook(partial(self.note, "node", where))

    def behind(self, node: Any, hook: Any, _: Any) -> None:
        node.register_hook(hook)

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
                queue_callback(lambda: note("engine_callback", ""))

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


@pytest.mark.parametrize("name", ["small", swept("resnet18"), "mobilenet_v3_small"])
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


@pytest.mark.parametrize(("globally", "make"), each_once([False, True], [Hand, Deep, Shared, Small]))
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


def test_a_trace_of_one_module_has_its_events_alone() -> None:
    model = Hand()
    x = torch.tensor([[1.0, 2.0], [-1.0, 0.25]])
    with untouched(model, buffers=False):
        report = hookcli.capture(
            model, x, ["trace"], select=lambda fqn, m: fqn == "first", step=hookcli.Step(optimizer="sgd")
        )[0]
    places = {row.fqn for row in report.rows if row["kind"] not in ("engine_callback",) and "optim" not in row["kind"]}
    assert places == {"first", "first.weight", "first.bias"}
    kept = [row for row in report.rows if row["kind"] == "saved_tensor_pack"]
    assert [(row["shape"], row["kept"]) for row in kept] == [([2, 2], 16)]  # its input, 2x2 of float32
