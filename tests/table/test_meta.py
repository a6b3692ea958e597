"""The entries of `meta`: each says what it holds, and a file's values are tested by the type that it declares."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from hookcli.diff.origin import of_both
from hookcli.table import meta
from hookcli.table.meta import Meta, in_order, only, with_notes, without
from hookcli.table.validation import META, is_count, is_figure, is_mapping, is_plain, is_text

VALUES = (
    *(None, True, 0, 1, -1, 2**62, 2**63, 0.5, float("nan"), "", "x", "error", "info"),
    *([], ["a"], ["a", 1], [1], [-1], [0.5], [None], [[1]], ("a",), (1,), {}, {"a": "x"}, {"a": 1}, {"a": {}}, [{}]),
)


def optional(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or fits(value)


def listed(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, (list, tuple)) and all(fits(item) for item in value)


CONDITIONS = {
    **dict.fromkeys(("dtype", "loss", "next", "no_own_loss", "format", "x"), is_text),
    **dict.fromkeys(("input", "device", "simulated", "mode", "phase", "error", "parallel"), optional(is_text)),
    "fail_on": lambda value: value in ("error", "warning"),
    **dict.fromkeys(("seconds", "hookcli_seconds"), is_figure),
    **dict.fromkeys(("loss_value", "plain_seconds"), optional(is_figure)),
    **dict.fromkeys(("step", "forwards", "observed_forwards", "processes"), is_count),
    "forward": optional(is_count),
    **dict.fromkeys(("replicas", "smooth"), lambda value: is_count(value) and value > 0),
    "tensor_parallel": listed(is_count),
    **dict.fromkeys(("notes", "checks", "edits", "containers"), listed(is_text)),
    "losses": listed(is_figure),
    **dict.fromkeys(("loss_of_steps", "clock"), listed(listed(listed(is_figure)))),
    "rank": lambda value: optional(is_count)(value) or listed(is_count)(value),
    **dict.fromkeys(("a", "b", "ddp", "metadata", "plugin"), is_mapping),
    "found_at": lambda value: is_mapping(value) and all(is_count(step) for step in value.values()),
    "against": lambda value: is_text(value) or (is_mapping(value) and listed(is_text)([*value.values()])),
}
"""What readers of a file rely on. All other entries are only shown: they may be anything plain."""


@pytest.mark.parametrize("key", META)
def test_the_values_that_a_file_may_hold(key: str) -> None:
    fits = CONDITIONS.get(key, is_plain)
    assert [value for value in VALUES if META[key](value)] == [value for value in VALUES if fits(value)]
    assert CONDITIONS.keys() <= META.keys()


def test_every_entry_says_what_it_holds() -> None:
    for part in ast.parse(Path(meta.__file__).read_text()).body:
        if isinstance(part, ast.ClassDef):
            kinds = [type(line) for line in part.body[1:]]
            assert kinds == [ast.AnnAssign, ast.Expr] * (len(kinds) // 2), part.name


def test_the_order_is_that_of_files() -> None:
    run: Meta = {"notes": ["a"], "torchvision": "1", "weights": "w", "seed": 0, "kind": "k", "torch": "2"}
    assert [*in_order(run)] == ["torch", "seed", "weights", "kind", "torchvision", "notes"]


def test_parts_of_a_meta_leave_it_as_it_is() -> None:
    run: Meta = {"mode": "eval", "seconds": 1.0, "notes": ["a"]}
    assert only(run, "seconds", "mode", "seed") == {"seconds": 1.0, "mode": "eval"}
    assert without(run, "seconds", "seed") == {"mode": "eval", "notes": ["a"]}
    assert with_notes(run, "b")["notes"] == ["a", "b"] and with_notes({}, "b") == {"notes": ["b"]}
    assert with_notes(run) == run == {"mode": "eval", "seconds": 1.0, "notes": ["a"]}


def test_the_meta_of_a_comparison() -> None:
    a: Meta = {"mode": "eval", "device": "cpu", "seed": 0, "step": 3, "error": None, "fill": "ones"}
    b: Meta = {"mode": "train", "device": "cpu", "seed": 1, "step": 3, "error": None}
    assert of_both(a, b) == {"mode": "eval → train", "device": "cpu", "step": 3, "a": a, "b": b}
