"""Kinds of lines of other distributions: those that a record can't hold are named, with the capability."""

import sys
from collections.abc import Mapping, Sequence  # not `annotations` of __future__: types are classes here
from dataclasses import make_dataclass
from types import ModuleType
from typing import Any

import pytest

from hookcli.record.file.parsing import kinds_of_lines
from hookcli.record.file.record_lines import PartLine
from hookcli.registry import remarks
from hookcli.registry.capability import Capability
from hookcli.table import Report

LEFT_OUT = "capability 'odd' (from other 1.0): lines='foreign_lines:LINES' is left out:"
GONE = "capability 'odd' (from other 1.0): lines='gone_module:LINES' is left out:"


def declared(monkeypatch: pytest.MonkeyPatch, *kinds: object) -> list[type[PartLine]]:
    module = ModuleType("foreign_lines")
    module.LINES = kinds  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "foreign_lines", module)
    return kinds_of_lines([Capability(name="odd", page="", lines="foreign_lines:LINES", distribution="other 1.0")])


def line(of: Any, kind: str = "odd") -> type[PartLine]:
    made = make_dataclass("Odd", [("field", of)], bases=(PartLine,), frozen=True)
    made.kind = kind  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(
    "of", [int, "int", int | None, float, Sequence[str], Mapping[str, float], Sequence[Report], "bool"]
)
def test_plain_fields_may_have_their_types_as_text_or_not(of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [kind.kind for kind in declared(monkeypatch, line(of))] == ["odd"]


@pytest.mark.parametrize("of", [complex, "torch.Tensor", list[int], dict[str, str], list | None, Mapping[str, Any]])
def test_another_type_is_an_error_that_names_the_field_and_what_is_allowed(
    of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert declared(monkeypatch, line(int, "first"), line(of)) == []
    (said,) = remarks()
    assert said.startswith(f"{LEFT_OUT} a record can't hold 'field' of Odd, whose type is ")
    assert "; allowed types: str, Sequence[str], int, int | None, " in said and len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("kinds", "problem"),
    [
        ((int,), "int, among its lines, is not a dataclass derived from PartLine"),
        ((3,), "int, among its lines, is not a dataclass derived from PartLine"),
        ((line(int), line(int)), "the kind of lines 'odd' of Odd is taken by capability 'odd' (from other 1.0)"),
        ((line(int, "step"),), "the kind of lines 'step' of Odd is taken by hookcli"),
    ],
)
def test_other_mistakes(kinds: tuple[object, ...], problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert declared(monkeypatch, *kinds) == []
    assert [*remarks()] == [f"{LEFT_OUT} {problem}"]


def test_lines_that_do_not_load_name_their_capability() -> None:
    lost = Capability(name="odd", page="", lines="gone_module:LINES", distribution="other 1.0")
    assert kinds_of_lines([lost]) == []
    assert [*remarks()] == [f"{GONE} ModuleNotFoundError: No module named 'gone_module'"]
