"""Kinds of sides of `hookcli diff`: one that is added compares its own, and says what it can't be compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hookcli.commands import diff_kinds
from hookcli.commands.diff_kinds import Asked, Side

Cli = Any


class Notes(Side):
    """Files of notes."""

    what = "notes"
    place = -1
    no_operators = "notes have no operators"

    def __init__(self) -> None:
        self.compared: list[tuple[str, str]] = []

    def fits(self, text: str) -> bool:
        return text.endswith(".note")

    def why_no_model(self, text: str) -> str:
        return "is a note"

    def compare(self, asked: Asked) -> int:
        self.compared.append((asked.a, asked.b))
        return int(asked.a != asked.b)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    added = Notes()
    known = diff_kinds.sides()
    monkeypatch.setattr(diff_kinds, "sides", lambda: [added, *known])
    return added


@pytest.mark.parametrize(
    ("a", "b", "code"),
    [("a.note", "b.note", 1), ("a.note", "a.note", 0), ("resnet18", "a.note", 1), ("r.run.jsonl", "a.note", 1)],
)
def test_the_kind_with_the_lowest_place_compares_both(a: str, b: str, code: int, notes: Notes, cli: Cli) -> None:
    assert cli("diff", a, b).code == code and notes.compared == [(a, b)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a.note", "b.note", "--same-weights"), "--same-weights: both sides must be models, not notes"),
        (("a.note", "b.note", "--ops"), "--ops: notes have no operators"),
        (("a.note",), "diff needs a second model, "),
    ],
)
def test_what_does_not_go_with_it_is_said(words: tuple[str, ...], said: str, notes: Notes, cli: Cli) -> None:
    ran = cli("diff", *words)
    assert ran.code == 2 and said in ran.err and not notes.compared


def test_where_a_model_is_to_be_it_says_why_it_is_none(notes: Notes, cli: Cli, tmp_path: Path) -> None:
    ran = cli("report", "a.note", "resnet18", "-o", str(tmp_path / "page.html"))
    assert ran.code == 2 and "A 'a.note': is a note" in ran.err


def test_each_kind_has_a_place_of_its_own() -> None:
    places = [side.place for side in diff_kinds.sides()]
    assert places == sorted({*places}) and len(places) >= 4
