"""`hookcli show` of records without a step, or with steps that are damaged inside: JSON still, but not their fields."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from records import HEADER, RUN, end, recorded_step, save, text

from hookcli.record.file import reading
from hookcli.record.file.reading import read_record
from hookcli.record.file.record_lines import StepLosses

Cli = Callable[..., Any]
Damage = Callable[[dict[str, Any]], object]


def strings(data: dict[str, Any]) -> None:
    for row in data["reports"][0]["rows"]:
        row["mean"] = "0.5"


DAMAGE: dict[str, Damage] = {
    "floats are strings": strings,
    "reports are a string": lambda data: data.update(reports="x"),
    "a report is a string": lambda data: data.update(reports=["x"]),
    "no columns": lambda data: data["reports"][0].pop("columns"),
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def damaged(damage: Damage, *lines: int, count: int = 7) -> list[str]:
    """A record of `count` steps, step 0 in line 2 and so on; these `lines` are damaged."""
    found = []
    for step in range(count):
        data = recorded_step(step, std=1.0 + step).to_dict()
        if step + 2 in lines:
            damage(data)
        found.append(json.dumps(data) + "\n")
    Path("r.jsonl").write_text("".join([text([HEADER]), *found, text([end()])]))
    return found


def steps(ran: Any) -> list[int]:
    return [report["meta"]["step"] for report in json.loads(ran.out)["reports"]]


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_the_last_step_that_is_whole_is_shown(cli: Cli, damage: Damage) -> None:
    damaged(damage, 7, 8)
    ran = cli("show", "r.jsonl", "--format", "json")
    assert (ran.code, steps(ran)) == (0, [4])
    assert "2 of 9 lines are damaged and left out: 7, 8; steps that are not shown were not checked\n" in ran.err


@pytest.mark.parametrize("choice", [(), ("--probe", "grads"), ("--over-time", "head"), ("--over-time", "nothing")])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_where_nothing_is_whole_that_is_said(cli: Cli, damage: Damage, choice: tuple[str, ...]) -> None:
    damaged(lambda data: (damage(data), data.update(reports="x")), *range(2, 9))
    ran = cli("show", "r.jsonl", *choice)
    assert (ran.code, ran.out) == (2, "")
    said = "no recorded step can be shown: all its measurements are damaged (lines 2, 3, 4, 5, 6 and 2 more)"
    assert ran.err == f"hookcli: error: r.jsonl: {said}\n"


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_step_is_an_error_like_one_that_is_not_there(cli: Cli, damage: Damage) -> None:
    damaged(damage, 4)
    ran = cli("show", "r.jsonl", "--step", "2")
    assert (ran.code, ran.out) == (2, "")
    said = "step 2 can't be shown: all its measurements are damaged (line 4); nearest: 1 and 3"
    assert ran.err == f"hookcli: error: {said}\n"
    assert cli("show", "r.jsonl", "--step", "1").code == 0


def test_no_step_is_read_that_is_not_needed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged(strings, 8)
    read = []
    whole = reading.parsed

    def noted(data: Mapping[str, Any], path: Path) -> object:
        read.extend([data["step"]] if data["line"] == "step" else [])
        return whole(data, path)

    monkeypatch.setattr(reading, "parsed", noted)
    assert cli("show", "r.jsonl").code == 0 and read == [6, 5]


def test_all_steps_that_were_checked_are_known_to_be_whole(cli: Cli) -> None:
    damaged(strings, 4)
    ran = cli("show", "r.jsonl", "--over-time", "head", "--format", "csv")
    assert ran.code == 0 and len(ran.out.splitlines()) == 1 + 6
    assert ran.err.endswith("1 of 9 lines is damaged and left out: 4\n")


def test_a_step_in_which_nothing_was_measured_is_no_table_without_rows(cli: Cli) -> None:
    damaged(lambda data: data.update(reports=[]), 8)
    ran = cli("show", "r.jsonl", "--format", "json")
    assert (ran.code, steps(ran)) == (0, [5]) and "damaged" not in ran.err
    ran = cli("show", "r.jsonl", "--step", "6")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "hookcli: error: step 6 can't be shown: nothing was measured; nearest: 5\n"
    damaged(lambda data: data.update(reports=[]), *range(2, 9))
    assert (
        cli("show", "r.jsonl").err == "hookcli: error: r.jsonl: no recorded step can be shown: nothing was measured\n"
    )


def test_each_model_falls_back_by_itself(cli: Cli) -> None:
    broken = recorded_step(3).to_dict()
    strings(broken)
    lines = [HEADER, recorded_step(1), recorded_step(1, phase="no_grad", forward=0), recorded_step(2)]
    Path("r.jsonl").write_text(text(lines) + json.dumps(broken) + "\n" + text([recorded_step(2, model="Other")]))
    found = [(w.model, w.phase, w.step) for w in read_record("r.jsonl").last()]
    assert found == [("Net", "train", 2), ("Net", "no_grad", 1), ("Other", "train", 2)]


def test_what_was_written_of_one_row_is_said_in_the_singular(cli: Cli) -> None:
    damaged(strings)
    ran = cli("show", "r.jsonl", "--over-time", "head", "--model", "Net", "-o", "a.csv")
    assert ran.err.endswith("wrote a.csv: 7 rows\n")
    damaged(strings, count=1)
    assert cli("show", "r.jsonl", "--over-time", "head", "-o", "a.csv").err.endswith("wrote a.csv: 1 row\n")


def test_the_losses_of_a_run_without_a_recorded_step(cli: Cli) -> None:
    save(Path("train.run.jsonl"), RUN)
    save(Path("none.run.jsonl"), (HEADER, StepLosses("Net", 0, [3.0, 2.0, math.nan, 1.0]), end()))
    for part in ("loss", "."):
        alone = cli("show", "none.run.jsonl", "--over-time", part)
        assert alone.code == 0
        assert "Net · train · 4 steps (0 to 3), none recorded\nLoss (NaN or Inf in step 2)\n" in alone.out
        assert all(f"{loss:.3f}┤" in alone.out for loss in (3.0, 2.0, 1.0))
    assert "unknown module, parameter or figure 'lr'" in cli("show", "none.run.jsonl", "--over-time", "lr").err
    assert cli("show", "none.run.jsonl", "--over-time", "loss", "--model", "Net", "-o", "a.svg").code == 0
    both = cli("show", "train.run.jsonl", "none.run.jsonl", "--over-time", "loss")
    assert both.code == 0 and both.out.startswith("A is better: loss ") and "no model" not in both.out
