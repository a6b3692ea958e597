"""Tensors in nested values: found with their paths, replaced without touching anything else."""

from __future__ import annotations

import weakref
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor

from hookcli.tensors import tree
from hookcli.tensors.weak import WeakIds

X, Y = torch.ones(2), torch.zeros(3)
Point = namedtuple("Point", "x y")


@dataclass(frozen=True)
class Frozen:
    hidden: Tensor
    label: str = "a"


class Loop(list):  # type: ignore[type-arg]
    """A list with a manner of its own."""


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (X, [""]),
        ([X, (Y, 3)], ["[0]", "[1][0]"]),
        ({"out": X, 5: [Y]}, ['["out"]', "[5][0]"]),
        (Point(X, Y), [".x", ".y"]),
        ([Frozen(X)], ["[0].hidden"]),
        (torch.max(torch.ones(2, 2), 0), ["[0]", "[1]"]),
        (3, []),
    ],
)
def test_paths(value: Any, paths: list[str]) -> None:
    assert [path for path, _ in tree.leaves(value)] == paths


@pytest.mark.parametrize(
    "value", [X, [X, 1], (X, Y), {"a": X}, OrderedDict(a=X, b=[Y]), Point(X, Y), Frozen(X), Loop([X]), [Frozen(X)]]
)
def test_replacing_keeps_structure_and_type(value: Any) -> None:
    doubled = tree.replace(value, lambda path, x: x * 2)
    assert type(doubled) is type(value)
    before, after = list(tree.leaves(value)), list(tree.leaves(doubled))
    assert [path for path, _ in before] == [path for path, _ in after]
    assert all(torch.equal(2 * x, y) for (_, x), (_, y) in zip(before, after, strict=True))
    assert tree.replace(value, lambda path, x: x) is value


def test_what_can_not_be_rebuilt_stays() -> None:
    value = MappingProxyType({"a": X})
    assert tree.replace(value, lambda path, x: x * 2) is value


def test_a_value_that_contains_itself_ends() -> None:
    loop: list[Any] = [X]
    loop.append(loop)
    assert len(list(tree.leaves(loop))) < 20


def test_lists_that_hold_each_other_are_walked_once_on_each_way() -> None:
    """Six lists, each of which holds all others."""
    graph: list[list[Any]] = [[torch.ones(1)] for _ in range(6)]
    for node in graph:
        node.extend(graph)
    assert any(True for _ in tree.leaves(graph[0]))
    assert {id(x) for _, x in tree.leaves(graph[0])} == {id(node[0]) for node in graph}


def test_what_can_not_be_looked_into_is_told() -> None:
    met: tree.Unseen = []
    thing = object()
    found = list(tree.leaves([X, 3, "a", None, {"b": thing}], "", met))
    assert [path for path, _ in found] == ["[0]"] and met == [('[4]["b"]', thing)]


def test_lists_are_lent_and_given_back() -> None:
    given, undo = [X, Y], tree.Undo()
    (changed,), _ = tree.replace_arguments((given,), {}, lambda path, x: x * 2, undo)
    assert changed is given and torch.equal(given[0], 2 * X)
    given.append(X)  # what the callee adds stays
    undo()
    assert given[0] is X and given[1] is Y and len(given) == 3


def test_arguments() -> None:
    assert [path for path, _ in tree.arguments((X,), {})] == [""]
    assert [path for path, _ in tree.arguments((X, [Y]), {"mask": X})] == ["[0]", "[1][0]", '["mask"]']


def test_shapes_of_nested_tensors() -> None:
    """Sizes that all parts share are known, whichever dimension differs."""
    parts = [torch.ones(2, 3, 7), torch.ones(4, 3, 7)]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    for nested in (torch.nested.nested_tensor(parts), jagged):
        assert tree.shape_of(nested) == [2, -1, 3, 7] and tree.shape_text(nested) == "2x*x3x7"
    assert tree.shape_of(jagged.transpose(1, 2)) == [2, 3, -1, 7]
    assert tree.shape_of(torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(2, 5)])) == [2, 2, -1]
    assert tree.shape_of(torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 5)])) == [2, -1, -1]
    assert tree.shape_text(torch.tensor(1.0)) == "scalar"


def test_values_by_identity_hold_nothing_and_run_no_python_as_keys_die() -> None:
    """Python drops what is raised in a callback of a weak reference, also a KeyboardInterrupt that comes then."""
    known: WeakIds[Tensor, int] = WeakIds()
    kept = torch.ones(2)
    known[kept] = -1
    for number in range(1000):
        known[torch.ones(2)] = number
    assert known.get(kept) == -1 and known.get(torch.ones(2)) is None
    assert len(known._entries) == 1
    for reference in weakref.getweakrefs(kept):
        assert isinstance(reference.__callback__, partial)
        assert isinstance(reference.__callback__.func, BuiltinFunctionType)
