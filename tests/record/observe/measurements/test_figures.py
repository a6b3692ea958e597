"""The figures of a step, against a reference by hand."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import pytest
import torch
from observing import observed, rows, skipped
from record.observe.figures import net
from support import Hand, Shared, assert_stats, float64_stats
from torch import Tensor, nn

X = torch.tensor([[1.0, 2.0], [3.0, 0.25]])


class Reference:
    """The same training in float64, by hand: what each layer returned and received as gradient, and the weights."""

    def __init__(self, model: nn.Sequential, optimizer: Any, batches: list[Tensor]) -> None:
        self.model = deepcopy(model).double()
        self.outputs: dict[str, list[Tensor]] = {"0": [], "1": [], "2": []}
        for x in batches:
            x = x.double()
            for name, layer in self.model.named_children():
                x = layer(x)
                x.retain_grad()
                self.outputs[name].append(x)
            x.pow(2).sum().div(len(batches)).backward()
        self.before = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.grads = {name: p.grad for name, p in self.model.named_parameters()}
        optimizer(self.model.parameters()).step()
        self.after = dict(self.model.named_parameters())

    def all(self, name: str) -> Tensor:
        return torch.cat([x.flatten() for x in self.outputs[name]])

    def all_gradients(self, name: str) -> Tensor:
        return torch.cat([x.grad.flatten() for x in self.outputs[name]])  # type: ignore[union-attr]


def test_tied_parameters_say_to_what_they_are_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Linear(2, 3, bias=False), nn.Linear(2, 3)
            self.head.weight = self.embed.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.embed(x) + self.head(x)

    def program() -> nn.Module:
        model = Tied()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return model

    recorded = observed(program).only
    assert skipped(recorded, "grads") == {"head.weight": "tied to embed.weight"}
    assert set(rows(recorded, "updates")) == {"embed.weight", "head.bias"}


def test_a_step_by_hand() -> None:
    def program() -> nn.Module:
        model = Hand()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(X).sum().backward()
        optimizer.step()
        return model

    recorded = observed(program).only
    assert (recorded.model, recorded.phase, recorded.step, recorded.forward) == ("Hand", "train", 0, None)
    assert (recorded.forwards, recorded.observed_forwards, recorded.losses) == (1, 1, [27.0])
    activations = rows(recorded, "activations")
    assert list(activations) == ["", "first", "relu", "out"]
    for fqn, values in {
        "": [12, 15], "first": [1, 3, 5, -0.5], "relu": [1, 3, 5, 0], "out": [12, 15],
    }.items():  # fmt: skip
        assert_stats(activations[fqn].stats, float64_stats(torch.tensor(values, dtype=torch.float64)))
    assert activations["first"]["shape"] == [2, 2] and activations["first"]["type"] == "Linear"
    assert activations["relu"]["calls"] == 1 and activations["relu"].stats.zeros == 1
    outputs, parameters = rows(recorded, "grads", "output"), rows(recorded, "grads", "parameter")
    grads = {"": [1, 1], "out": [1, 1], "relu": [3, 3, 3, 3], "first": [3, 3, 3, 0]}
    assert outputs.keys() == grads.keys()
    for fqn, values in grads.items():
        assert_stats(outputs[fqn].stats, float64_stats(torch.tensor(values, dtype=torch.float64)))
    grads = {"first.weight": [12, 6.75, 3, 6], "first.bias": [6, 3], "out.weight": [6, 3]}
    assert parameters.keys() == grads.keys()
    updates = rows(recorded, "updates")
    weights = {"first.weight": 8**0.5, "first.bias": 2**0.5, "out.weight": 18**0.5}
    for fqn, values in grads.items():
        assert_stats(parameters[fqn].stats, float64_stats(torch.tensor(values, dtype=torch.float64)))
        assert updates[fqn]["weight"] == pytest.approx(weights[fqn])
        assert updates[fqn]["update"] == pytest.approx(0.1 * math.hypot(*values), rel=1e-5)
        assert updates[fqn]["ratio"] == pytest.approx(0.1 * math.hypot(*values) / weights[fqn], rel=1e-5)


@pytest.mark.parametrize("sizes", [(4,), (3, 5, 2)])
def test_a_step_over_micro_batches_is_merged_exactly(sizes: tuple[int, ...]) -> None:
    batches = [torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) for n in sizes]

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.3)

    def program() -> nn.Module:
        model = net()
        stepping = optimizer(model.parameters())
        for x in batches:
            model(x).pow(2).sum().div(len(batches)).backward()
        stepping.step()
        return model

    recorded, expected = observed(program).only, Reference(net(), optimizer, batches)
    assert (recorded.forwards, recorded.observed_forwards, len(recorded.losses)) == (len(sizes),) * 3
    for fqn in expected.outputs:
        activation, grad = rows(recorded, "activations")[fqn], rows(recorded, "grads", "output")[fqn]
        assert activation["calls"] == len(sizes)
        assert_stats(activation.stats, float64_stats(expected.all(fqn)))
        assert_stats(grad.stats, float64_stats(expected.all_gradients(fqn)))
    for fqn, parameter in expected.after.items():
        assert_stats(rows(recorded, "grads", "parameter")[fqn].stats, float64_stats(expected.grads[fqn]))
        change = (parameter - expected.before[fqn]).norm().item()
        row = rows(recorded, "updates")[fqn]
        assert row["update"] == pytest.approx(change, rel=1e-3)  # float32 weights round off a small change
        assert row["ratio"] == pytest.approx(row["update"] / expected.before[fqn].norm().item())


def test_modules_that_are_called_more_than_once_and_tied_weights_have_one_row() -> None:
    ids = torch.arange(6).view(2, 3)

    def program() -> nn.Module:
        model = Shared()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(ids).sum().backward()
        optimizer.step()
        return model

    recorded = observed(program).only
    torch.manual_seed(0)
    model = Shared().double()
    x, outputs = model.embed(ids), []
    for _ in range(3):
        x = model.mix(x)
        outputs.append(x)
    mix = rows(recorded, "activations")["mix"]
    assert mix["calls"] == 3 and rows(recorded, "activations")["head"]["calls"] == 1
    assert_stats(mix.stats, float64_stats(torch.cat(outputs)))
    assert set(rows(recorded, "updates")) == {"embed.weight", "mix.weight", "mix.bias"}


def test_a_parameter_that_was_zero_or_that_none_updates() -> None:
    def program() -> nn.Module:
        model = net()
        nn.init.zeros_(model[2].bias)
        model[0].bias.requires_grad_(False)
        optimizer = torch.optim.SGD([model[2].bias, model[2].weight], lr=0.1)
        model(torch.ones(2, 4)).sum().backward()
        model[2].weight.grad = torch.zeros_like(model[2].weight)
        optimizer.step()
        return model

    recorded = observed(program).only
    updates = rows(recorded, "updates")
    assert updates["2.bias"]["ratio"] == math.inf and updates["2.weight"]["ratio"] == 0.0
    unmoved = skipped(recorded, "updates")
    assert set(unmoved) == {"0.weight", "0.bias"} and "not in any optimizer" in unmoved["0.weight"]
    assert skipped(recorded, "grads")["0.bias"] == "frozen (requires_grad=False)"


@pytest.mark.parametrize("penalty_alone", [False, True])
def test_an_output_s_gradient_is_backward_s_unless_autograd_grad_alone_made_one(penalty_alone: bool) -> None:
    """By hand: y = w x and s = dy/dx = w; the loss has s^2, and 3 y unless the penalty is all of it."""

    def program() -> nn.Module:
        model = nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(1, 1, requires_grad=True)
        y = model(x)
        (slope,) = torch.autograd.grad(y, x, torch.full_like(y, 7.0), create_graph=True)
        (slope.square().sum() + (0 if penalty_alone else 3 * y.sum())).backward()
        optimizer.step()
        return model

    assert rows(observed(program).only, "grads", "output")[""].stats.l2 == (7 if penalty_alone else 3)
