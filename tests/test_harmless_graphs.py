"""The caller's graphs, steps and grad mode stay his own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product, starmap
from typing import Any

import pytest
import torch
from restless import PROBES, Doubles, Restless, as_before, given, made
from support import each_once, untouched
from torch import Tensor, nn

import hookcli
from hookcli.capabilities.trace.probe import TraceProbe
from hookcli.engine.preserve import SavedValues
from hookcli.errors import ModelError, UsageError
from hookcli.probes.grads import GradsProbe


def test_a_graph_of_the_callers_survives_a_model_that_writes() -> None:
    x = torch.ones(2, 4)
    weight = torch.ones(4, requires_grad=True)
    model = Restless()
    loss = (x * weight).sum() + model.head.weight.pow(2).sum()
    hookcli.capture(model, x, ["activations"])
    hookcli.capture(model, x, ["grads"])
    loss.backward()
    assert torch.equal(weight.grad, torch.full((4,), 2.0))  # type: ignore[arg-type]


def test_gradients_that_the_model_itself_takes_stay_out_of_the_callers() -> None:
    class Adapts(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                super().forward(x).sum().backward()
            return super().forward(x).detach()

    model, x = Adapts(2, 2), torch.ones(1, 2, requires_grad=True)
    model.weight.grad = torch.ones(2, 2)
    hookcli.capture(model, x, ["activations"])
    assert x.grad is None and torch.equal(model.weight.grad, torch.ones(2, 2)) and model.bias.grad is None


def test_parameters_of_a_model_that_is_thrown_away_are_not_copied() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Doubles())
    before = torch.get_rng_state()
    hookcli.capture(model, torch.ones(1, 2), ["activations"], restore=False)
    assert torch.equal(before, torch.get_rng_state())
    Restless.forward(restless := Restless(), given())
    kept = restless.head.weight.detach().clone()
    hookcli.capture(restless, given(), ["activations"], restore=False)
    assert torch.equal(restless.head.weight, kept * 0.5)


def test_values_on_a_device_without_room_are_kept_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    from hookcli.engine import preserve

    monkeypatch.setattr(preserve, "without_room", lambda tensors: {torch.device("cpu")})
    x = torch.zeros(3)
    kept = SavedValues([x, x])
    x.neg_()
    kept.put_back()
    assert not torch.signbit(x).any()


# Fewer hooks where PyTorch refuses.


def blocks() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))


def test_a_trace_of_what_is_changed_in_place_goes_without_full_backward_hooks() -> None:
    model, x = blocks(), given()
    probe = GradsProbe()
    with as_before(model, x):
        trace, grads, activations = hookcli.capture(model, x, ["trace", probe, "activations"])
    assert {"forward", "post_accumulate_grad"} <= {row["kind"] for row in trace.rows}
    refused = {s.path for s in trace.skipped if "full backward hook" in s.reason}
    assert refused == {"full_backward", "full_backward_pre"}
    for report, name in ((grads, "grads"), (activations, "activations")):  # as if it had run once
        alone = hookcli.capture(model, x, [name])[0]
        assert [(row.fqn, row.stats) for row in report.rows] == [(row.fqn, row.stats) for row in alone.rows]
    with pytest.raises(ModelError, match="changes in place"):
        hookcli.capture(model, x, [TraceProbe(insist=True)])


def test_a_trace_of_what_is_detached_in_place_goes_without_full_backward_hooks() -> None:
    class Detaches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.second(self.first(x).detach_())
            return y

    (trace,) = hookcli.capture(Detaches(), given(), ["trace"])
    assert {"forward", "post_accumulate_grad"} <= {row["kind"] for row in trace.rows}
    assert {"full_backward", "full_backward_pre"} <= {s.path for s in trace.skipped if "full backward hook" in s.reason}
    with pytest.raises(ModelError, match="without --via module"):
        hookcli.capture(Detaches(), given(), [GradsProbe("outputs", "module")])


@pytest.mark.parametrize("step", ["backward", "grad"])
def test_a_trace_never_stops_the_callers_own_step(step: str) -> None:
    model, x = blocks(), given()
    with hookcli.watch(model, ["trace"]) as seen:
        for _ in range(2):
            loss = model(x).sum()
            loss.backward() if step == "backward" else torch.autograd.grad(loss, list(model.parameters()))
    (report,) = seen.reports()
    assert {"full_backward", "full_backward_pre", "multi_grad"} <= {s.path for s in report.skipped}
    assert {row["kind"] for row in report.rows} >= {"forward", "saved_tensor_pack", "tensor_grad_output"}


# The caller's grad mode.


@pytest.mark.parametrize(
    ("mode", "origin", "probe"),
    each_once(
        starmap(pytest.param, product((torch.no_grad, torch.inference_mode), repeat=2)),
        [*PROBES, "grads of inputs", "grads of outputs"],
    ),
)
def test_the_callers_grad_mode_changes_nothing(mode: Callable[[], Any], origin: Callable[[], Any], probe: str) -> None:
    torch.manual_seed(0)
    model, values = blocks(), given()
    with origin():
        x = values.clone()
    expected = hookcli.capture(model, values, ["grads"])[0].rows
    with untouched(model):
        with mode():
            report = hookcli.capture(model, x, [made(probe)])[0]
            assert not torch.is_grad_enabled() and torch.is_inference_mode_enabled() == (mode is torch.inference_mode)
        assert torch.equal(x, values)
    assert report.rows and (probe != "grads" or report.rows == expected)


def test_gradients_of_a_model_made_in_inference_mode_are_refused_in_a_sentence() -> None:
    with torch.inference_mode():
        model = nn.Linear(2, 2)
    with pytest.raises(UsageError, match=r"weight was created under torch.inference_mode\(\)"):
        hookcli.capture(model, torch.ones(1, 2), ["grads"])
    assert hookcli.capture(model, torch.ones(1, 2), ["activations"])[0].rows
