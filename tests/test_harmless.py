"""A model and its inputs are as before, however restless it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from restless import PROBES, Doubles, Restless, as_before, given, made
from support import each_once
from torch import Tensor, nn

import hookcli
from hookcli.engine.lockstep import Side, compare
from hookcli.engine.preserve import copied, preserved
from hookcli.errors import ModelError
from hookcli.tensors import tree


@pytest.mark.parametrize(("probe", "passes"), each_once([*PROBES, "grads of inputs", "grads of outputs"], [1, 2]))
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
        "no elements, in steps": whole.view(-1)[::5][:0],
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


@pytest.mark.parametrize(("kind", "probe"), each_once(inputs_of_all_kinds(), ["activations", "grads"]))
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
        assert any(changed) or kind.startswith("no elements")
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
