"""A session's hooks fire, tell calls apart, and are gone afterwards, whatever happens."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from support import Hand, Nested, Shared, hooks_on, untouched
from torch import nn
from torch.utils.checkpoint import checkpoint

from hookcli.errors import PluginError, UsageError
from hookcli.hooks.events import HookEvent
from hookcli.hooks.outside_runs import parameters_on_meta
from hookcli.hooks.session import HookSession


def test_kinds_fire_in_pytorchs_order() -> None:
    model, seen = Hand(), []

    def note(event: HookEvent) -> None:
        seen.append((str(event.kind), event.fqn))

    with untouched(model, buffers=False), HookSession(model) as session:
        for ask in (session.forward_pre, session.forward, session.output_grad, session.input_grad):
            ask(note)
        session.post_accumulate_grad(note)
        model(torch.ones(1, 2)).sum().backward()
        model.zero_grad()
    forward = [item for item in seen if item[0].startswith("forward")]
    assert forward == [
        ("forward_pre", ""), ("forward_pre", "first"), ("forward", "first"), ("forward_pre", "relu"),
        ("forward", "relu"), ("forward_pre", "out"), ("forward", "out"), ("forward", ""),
    ]  # fmt: skip
    backward = [item for item in seen if not item[0].startswith("forward")]
    assert backward[0] == ("tensor_grad_output", "") and backward[1] == ("tensor_grad_output", "out")
    assert {fqn for kind, fqn in backward if kind == "post_accumulate_grad"} == {
        "first.weight", "first.bias", "out.weight",
    }  # fmt: skip


def test_calls_are_counted_per_module_and_ordered_overall() -> None:
    model, calls = Shared(), []
    with HookSession(model) as session:
        session.forward(lambda event: calls.append((event.fqn, event.call, event.index)))
        model(torch.tensor([[1, 2]]))
        assert session.never_called() == {}
    assert calls == [("embed", 0, 1), ("mix", 0, 2), ("mix", 1, 3), ("mix", 2, 4), ("head", 0, 5), ("", 0, 0)]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_after_an_exception_in_the_model(error: type[BaseException]) -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.inner(x)
            raise error("stop")

    model = Fails()
    with untouched(model), pytest.raises(error), HookSession(model, fastpath=False) as session:
        session.output_grad(lambda event: None)
        session.post_accumulate_grad(lambda event: None)
        model(torch.ones(1, 2))


@pytest.mark.parametrize("ask", ["forward_pre", "forward", "output_grad", "input_grad", "post_accumulate_grad"])
def test_nothing_is_left_after_an_exception_in_a_probe(ask: str) -> None:
    model = Hand()

    def fails(event: HookEvent) -> None:
        raise ZeroDivisionError("probe")

    with untouched(model, buffers=False):
        with (
            pytest.raises(PluginError, match=r"failed at .*ZeroDivisionError: probe") as caught,
            HookSession(model) as s,
        ):
            getattr(s, ask)(fails)
            model(torch.ones(1, 2)).sum().backward()
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        model.zero_grad()


def test_tensor_hooks_are_removed_from_a_graph_that_outlives_the_session() -> None:
    model, seen = Hand(), []
    with HookSession(model) as session:
        session.output_grad(lambda event: seen.append(event.fqn))
        out = model(torch.ones(1, 2))
    out.sum().backward()
    assert seen == []


def test_hooks_of_the_user_stay_and_run() -> None:
    model, seen = Hand(), []
    model.relu.register_forward_hook(lambda m, a, o: seen.append("user"))
    before = hooks_on(model)
    with HookSession(model) as session:
        session.forward(lambda event: seen.append(event.fqn))
        model(torch.ones(1, 2))
    assert hooks_on(model) == before
    assert seen == ["first", "user", "relu", "out", ""]


def test_select_narrows_modules_and_parameters() -> None:
    model, seen = Hand(), []
    with HookSession(model, select=lambda fqn, module: fqn.startswith("out")) as session:
        session.forward(lambda event: seen.append(event.fqn))
        session.post_accumulate_grad(lambda event: seen.append(event.fqn))
        model(torch.ones(1, 2)).sum().backward()
    assert seen == ["out", "out.weight"]


def test_no_model_is_kept_alive() -> None:
    model = Hand()
    with HookSession(model) as session:
        session.output_grad(lambda event: None)
        session.post_accumulate_grad(lambda event: None)
        model(torch.ones(1, 2)).sum().backward()
    reference = weakref.ref(model)
    del model, session
    gc.collect()
    assert reference() is None


@pytest.mark.sweep
def test_handles_of_dead_graphs_are_dropped() -> None:
    model = Hand()
    with HookSession(model) as session:
        session.output_grad(lambda event: None)
        for _ in range(1600):
            model(torch.ones(1, 2))
        assert len(session.tensor_grads.hooks.handles) < 4200


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_is_one_call(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(lambda y: self.second(self.first(y).relu()), x, use_reentrant=reentrant)

    model, calls, grads = Checkpointed(), [], {}
    with untouched(model), HookSession(model) as session:
        session.forward(lambda event: calls.append((event.fqn, event.call)))
        session.output_grad(lambda event: grads.update({(event.fqn, event.call): event.grad.clone()}))
        x = torch.ones(2, 3, requires_grad=True)
        model(x).sum().backward()
        model.zero_grad()
    assert calls == [("first", 0), ("second", 0), ("", 0)]
    assert torch.equal(grads["second", 0], torch.ones(2, 3))
    if reentrant:  # otherwise the first run's graph, whose hooks fire, ends at the checkpoint
        assert ("first", 0) in grads


def test_the_fused_path_stays_on_and_its_parts_are_said_to_be_unseen() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x, seen = torch.randn(2, 5, 8), []
    with torch.no_grad():
        expected = model(x)
        with untouched(model), HookSession(model) as session:
            session.forward(lambda event: seen.append(event.fqn))
            assert torch.equal(model(x), expected)
            assert "layers.0.linear1" in session.never_called()
        assert seen == ["layers.0", "layers.1", ""]
        with untouched(model), HookSession(model, fastpath=False) as session:
            session.forward(lambda event: seen.append(event.fqn))
            model(x)
            assert "layers.0.linear1" not in session.never_called()


def test_global_hooks_leave_other_modules_alone() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    other, seen = nn.Linear(8, 8), []
    with HookSession(model) as session:
        session.forward(lambda event: seen.append(event.fqn))
        other(torch.ones(1, 8))
    assert seen == []


def test_torchscript_is_refused_with_a_reason() -> None:
    model = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(UsageError, match="TorchScript"), HookSession(model) as session:
        session.forward(lambda event: None)


def test_parameters_on_meta_only_while_it_lasts() -> None:
    with parameters_on_meta():
        layer = nn.Linear(2, 3)
    assert layer.weight.is_meta and layer.weight.requires_grad
    assert not nn.Linear(2, 3).weight.is_meta


def test_outputs_without_tensors_pass_through() -> None:
    model = Nested("none")
    with HookSession(model) as session:
        session.output_grad(lambda event: None)
        session.input_grad(lambda event: None)
        assert model(torch.ones(1, 3)) is None


def test_a_session_may_begin_while_a_module_runs() -> None:
    class Opens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            session.output_grad(lambda event: seen.append(event.fqn))
            return self.inner(x)

    model, seen = Opens(), []
    with HookSession(model) as session:
        model(torch.ones(1, 2)).sum().backward()
    assert seen == ["inner"]


def test_sparse_inputs_pass() -> None:
    class Multiplies(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(a, torch.ones(3, 2))

    model, seen = Multiplies(), []
    a = torch.eye(3).to_sparse().requires_grad_()
    with HookSession(model) as session:
        session.input_grad(lambda event: seen.append(event.grad.to_dense().sum().item()))
        model(a).sum().backward()
    assert seen == [6.0]
