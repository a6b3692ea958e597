"""What is left out of a report is said: modules that raise, objects that hold tensors."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest
import torch
from probes.left_out import PROBES, Registered, Returns, reasons, run
from support import each_once
from torch import Tensor, nn
from torch.distributions import Normal

from hookcli.probes.grads import GradsProbe


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


OUT_OF_REACH: dict[str, Any] = {
    "Cache": lambda y: Cache(keys=[y]),
    "Slotted": lambda y: Slotted({"h": y}),
    "Normal": lambda y: Normal(y, y.exp()),
    "set": lambda y: {y},
}


@pytest.mark.parametrize(("kind", "probe"), each_once(OUT_OF_REACH, PROBES))
def test_tensors_inside_objects_that_are_no_containers(kind: str, probe: str) -> None:
    report = run(Returns(OUT_OF_REACH[kind]), torch.randn(3, 4), PROBES[probe]())
    said = f"holds tensors that can't be seen ({kind})"
    noted = {(item.fqn, item.path) for item in report.skipped if item.reason == said}
    received, returned = ("takes", "[1]"), ("", "[1]")
    expected = {"inputs": {received}, "activations": {returned}, "outputs' gradients": {returned}}
    assert noted == expected.get(probe, {received, returned})


@pytest.mark.sweep
def test_objects_without_tensors_are_not_worth_a_word() -> None:
    for plain in (3, "text", None, object(), torch.float32, nn.Linear(1, 1), Cache(n=1), range(3), len):
        model = Returns(lambda y, plain=plain: plain)
        assert run(model, torch.randn(3, 4), "activations").skipped == []


def test_a_lone_object_has_one_reason() -> None:
    class Policy(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return Normal(x, 1.0)

    assert reasons(run(Policy(), torch.randn(3), "activations"), "") == ["holds tensors that can't be seen (Normal)"]


def test_types_that_are_registered_with_pytree_are_walked() -> None:
    model = Returns(lambda y: Registered(y * 3, deque([y])))
    by_place = {(row.fqn, row["path"]): row for row in run(model, torch.randn(3, 4), "activations").rows}
    assert {("", "[1][0]"), ("", "[1][1][0]")} < by_place.keys()
    assert by_place["", "[1][0]"]["l2"] == pytest.approx(3 * by_place["", "[1][1][0]"]["l2"])
    grads = run(model, torch.randn(3, 4), GradsProbe("outputs"))
    assert {("", "[1][0]"), ("", "[1][1][0]")} < {(row.fqn, row["path"]) for row in grads.rows}
