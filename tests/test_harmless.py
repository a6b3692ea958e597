"""What a run leaves behind where the model itself changes things: nothing, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from support import equal, untouched
from torch import Tensor, nn

import hookcli
from hookcli.engine.lockstep import Side, compare
from hookcli.engine.preserve import Kept, copied, preserved
from hookcli.errors import ModelError, UsageError
from hookcli.probes.base import Probe
from hookcli.probes.grads import GradsProbe
from hookcli.probes.trace import TraceProbe
from hookcli.tensors import tree
from hookcli.tensors.random_state import random_states

PROBES = ("shapes", "inputs", "activations", "grads", "trace", "graph")


class Restless(nn.Module):
    """Changes whatever a forward can change: itself, its input, and three random number generators."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.fails = fails
        self.encoder, self.momentum, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.zeros(3))
        self.lent = nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("average", torch.zeros(4))
        self.late: nn.Parameter | None = None

    def forward(self, x: Tensor) -> Tensor:
        for old, new in zip(self.momentum.parameters(), self.encoder.parameters(), strict=True):
            old.data.mul_(0.9).add_(new.data, alpha=0.1)
        self.head.weight.data.mul_(0.5)
        self.scale.data.mul_(-1)  # zeros, whose sign is all that changes
        self.lent.data = torch.zeros(5, dtype=torch.float16)
        self.head.bias = nn.Parameter(torch.ones(2))
        self.late = nn.Parameter(torch.ones(1))
        self.extra = nn.Linear(4, 4)
        self.encoder.bias.requires_grad_(False)
        self.momentum.train(not self.momentum.training)
        self.count = self.count + 1
        x.mul_(2)
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))
        y = self.momentum(self.encoder(x)) + noise
        self.average.add_(y.mean(0))  # with gradients, the buffer becomes part of the graph
        if self.fails:
            raise ValueError("enough")
        return self.head(y)


def made(probe: str) -> str | Probe:
    return GradsProbe(probe.rpartition(" ")[2]) if " of " in probe else probe  # type: ignore[arg-type]


@contextmanager
def as_before(model: nn.Module, *inputs: Tensor) -> Iterator[None]:
    """Assert that nothing is different after the block: bits, objects, attributes, versions, random states."""

    def state() -> dict[str, Any]:
        tensors = [*model.parameters(), *model.buffers(), *inputs]
        return {
            "objects": [id(x) for x in tensors],
            "names": [name for name, _ in (*model.named_parameters(), *model.named_buffers(), *model.named_modules())],
            "memory": [x.data_ptr() for x in tensors],
            "versions": [x._version for x in tensors],
            "graph": [(x.is_leaf, x.requires_grad) for x in tensors],
            "bits": [x.detach().clone().contiguous().view(torch.uint8) for x in tensors if x.dim()],
            "strides": [x.stride() for x in tensors],
            "attributes": {name for m in model.modules() for name in vars(m)},
        }

    states, before = random_states([]), state()
    with untouched(model):
        try:
            yield
        finally:
            after = state()
            for key, value in before.items():
                assert equal(value, after[key]) if key == "bits" else value == after[key], f"{key} changed"
            assert states.same(random_states([]))


def given() -> Tensor:
    return torch.randn(3, 4)


@pytest.mark.parametrize("probe", [*PROBES, "grads of inputs", "grads of outputs"])
@pytest.mark.parametrize("passes", [1, 2])
def test_a_restless_model_is_as_before(probe: str, passes: int) -> None:
    torch.manual_seed(0)
    model, x = Restless(), given()
    model.head.weight.grad = torch.ones(2, 4)
    with as_before(model, x):
        hookcli.capture(model, x, [made(probe)], step=hookcli.Step(passes=passes))


@pytest.mark.parametrize("probe", PROBES)
def test_a_restless_model_that_fails_is_as_before(probe: str) -> None:
    model, x = Restless(fails=True), given()
    with as_before(model, x), pytest.raises(ModelError, match="enough"):
        hookcli.capture(model, x, [probe])


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_an_optimizers_step_is_taken_back(passes: int) -> None:
    model, x = Restless(), given()
    with as_before(model, x):
        hookcli.capture(model, x, ["trace"], step=hookcli.Step(optimizer="adamw", state_dict=True, passes=passes))


def test_check_and_compare_leave_a_restless_model_as_before() -> None:
    model, other, x = Restless(), Restless(), given()
    with as_before(model, x):
        hookcli.check(model, x, repeat=2, split_batch=True)
    with as_before(model, x), as_before(other, x):
        compare(Side(model, x), Side(other, x), step=hookcli.Step(backward=True))


class Doubles(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2)


@pytest.mark.parametrize("probe", ["activations", "inputs"])
def test_every_pass_gets_the_original_input(probe: str) -> None:
    x = torch.tensor([[1.0, -3.0]])
    rows = hookcli.capture(nn.Sequential(nn.Identity(), Doubles()), x, [probe], step=hookcli.Step(passes=3))[0].rows
    assert {row["call"]: row["max"] for row in rows if row.fqn == "0"} == dict.fromkeys(range(3), 1.0)


def test_both_sides_of_a_comparison_get_the_original_input() -> None:
    x = torch.ones(2, 3)
    report = compare(Side(nn.Sequential(Doubles()), x), Side(nn.Sequential(Doubles()), x))
    assert not report.totals["beyond"] and torch.equal(x, torch.ones(2, 3))


def inputs_of_all_kinds() -> dict[str, Any]:
    whole, leaf = torch.randn(4, 6), torch.randn(2, 3, requires_grad=True)
    return {
        "a strided view": whole[:, ::2],
        "expanded": torch.randn(1, 3).expand(4, 3),
        "channels last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "one tensor twice": (whole, whole),
        "shared memory": (whole, whole[:2]),
        "requires grad": leaf,
        "part of a graph": leaf * 2,
        "complex": torch.randn(3, dtype=torch.complex64),
        "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
        "no elements": torch.zeros(0, 3),
        "whole numbers": torch.arange(4),
        "bool": torch.tensor([True, False]),
        "float8": torch.ones(4).to(torch.float8_e4m3fn),
        "nested in a list": ([whole, {"x": whole}],),
        "sparse": torch.eye(3).to_sparse(),
        "compressed": torch.eye(3).to_sparse_csr(),
        "jagged": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    }


class Takes(nn.Module):
    """Keeps how it saw its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.seen: list[Any] = []

    def forward(self, *args: Any) -> Tensor:
        tensors = [x for _, x in tree.leaves(args)]
        self.seen = [(x.dtype, x.shape, x.layout, x.requires_grad) for x in tensors]
        self.seen += [x.stride() for x in tensors if x.layout is torch.strided]
        self.seen += [x is y for x in tensors for y in tensors]
        return self.weight * 1


@pytest.mark.parametrize("kind", inputs_of_all_kinds())
@pytest.mark.parametrize("probe", ["activations", "grads"])
def test_the_model_sees_its_inputs_as_they_are(kind: str, probe: str) -> None:
    inputs, model = inputs_of_all_kinds()[kind], Takes()
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    model(*args)
    expected = model.seen
    hookcli.capture(model, args, [probe])
    assert model.seen == expected
    model(*copied(args))
    assert model.seen == expected


@pytest.mark.parametrize("kind", inputs_of_all_kinds())
def test_inputs_of_all_kinds_are_put_back(kind: str) -> None:
    inputs = inputs_of_all_kinds()[kind]
    tensors = [x for _, x in tree.leaves(inputs)]
    dense = [_numbers(x) for x in tensors]
    versions = [x._version for x in tensors]
    with preserved(nn.Identity(), inputs), torch.no_grad():
        for x in tensors:
            _overwrite(x)
        changed = [not torch.equal(_numbers(x), y) for x, y in zip(tensors, dense, strict=True)]
        assert any(changed) or kind == "no elements"
    assert all(torch.equal(_numbers(x), y) for x, y in zip(tensors, dense, strict=True))
    assert versions == [x._version for x in tensors]


def _overwrite(x: Tensor) -> None:
    if 0 in x.stride() if x.layout is torch.strided else False:
        x[:1].fill_(7)
    elif x.layout is torch.strided and not x.is_nested:
        x.copy_(torch.zeros(x.shape).to(x.dtype)) if x.dtype != torch.bool else x.logical_not_()
    else:
        x.mul_(3)


def _numbers(x: Tensor) -> Tensor:
    x = x.detach()
    x = torch.cat(list(x.unbind())) if x.is_nested else x.to_dense() if x.layout is not torch.strided else x
    return x.to(torch.complex128).clone()


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
    from hookcli.engine.preserve import values

    monkeypatch.setattr(values, "_scarce", lambda tensors: {torch.device("cpu")})
    x = torch.zeros(3)
    kept = Kept([x, x])
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


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("origin", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("probe", [*PROBES, "grads of inputs", "grads of outputs"])
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
    with pytest.raises(UsageError, match=r"weight was made under torch.inference_mode\(\)"):
        hookcli.capture(model, torch.ones(1, 2), ["grads"])
    assert hookcli.capture(model, torch.ones(1, 2), ["activations"])[0].rows
