"""Questions that a page answers: each is made by the command that the documentation names, and read as its JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import paged
import pytest
from questions.asking import Asker


def reports_in(page: Path) -> list[dict[str, Any]]:
    """The reports that a page carries."""
    found: list[dict[str, Any]] = paged.payload(page.read_text())["reports"]
    return found


@pytest.mark.sweep
def test_what_is_there_to_know_about_my_model(ask: Asker) -> None:
    """One page of one run: the sizes of the GPT as counted by hand, and what each probe has of its embedding."""
    assert "wrote GPT.html: 8 reports" in ask("hookcli report gpt.py:GPT --input 2x16:int64").err
    reports = reports_in(ask.folder / "GPT.html")
    assert [report["probe"] for report in reports] == [
        *("check", "shapes", "flow", "activations"),
        *("grads", "grads", "settings", "parameters"),
    ]
    block = 12 * 96 * 96 + 9 * 96 + 4 * 96
    assert reports[1]["totals"]["params"] == 6 * block + (1000 + 128) * 96 + 2 * 96
    assert {report["model"] for report in reports} == {"gpt.py:GPT"}


@pytest.mark.sweep
def test_what_did_ci_find(ask: Asker) -> None:
    """The artefact has what check says on stdout, and the figures that the finding was read from."""
    answer = ask("hookcli check gpt.py:GPT --input 2x16:int64 --report check.html --format json")
    reports = reports_in(ask.folder / "check.html")
    assert reports[0]["rows"] == json.loads(answer.out)["reports"][0]["rows"]
    assert {"activations", "grads"} <= {report["probe"] for report in reports}
