"""hookcli diff of records made by hand: other models, losses, versions, long runs, damage and mistakes."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import forks
import pytest
from commands.diffed import Cli, diffed
from records import HEADER, RUN, end, recorded_step, save, text

from hookcli.record.file.record_lines import RecordedStep
from hookcli.table import Row


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "a.jsonl", RUN)
    return tmp_path


def renamed(step: RecordedStep, name: str) -> RecordedStep:
    return replace(step, model=name, reports=[replace(report, model=name) for report in step.reports])


def without(step: RecordedStep, part: str) -> RecordedStep:
    def rows(found: Any) -> list[Row]:
        return [row for row in found if not row.fqn.startswith(part)]

    return replace(step, reports=[replace(report, rows=rows(report.rows)) for report in step.reports])


def test_other_models_are_compared_where_they_are_alike(cli: Cli, here: Path) -> None:
    save(here / "b.jsonl", (HEADER, without(renamed(recorded_step(0), "Wide"), "head"), end()))
    code, (over,), _ = diffed(cli, "a.jsonl", "b.jsonl")
    assert code == 0 and over["model"] == "Net → Wide" and over["totals"]["compared"] == 1
    assert over["totals"]["structure"].startswith("the structures differ: ") and "head" in over["totals"]["structure"]


def test_different_models_are_compared_as_wholes(cli: Cli, here: Path) -> None:
    def other(step: RecordedStep) -> RecordedStep:
        """Another model: the same figures under other names, types and shapes."""
        reports = [
            replace(report, rows=[replace(r, values={**r.values, **changed(r)}) for r in report.rows])
            for report in step.reports
        ]
        return renamed(replace(step, reports=reports), "GPT")

    def changed(row: Row) -> dict[str, Any]:
        return {"fqn": row.fqn and f"blocks.{row.fqn}x", "type": f"Other{row.get('type')}", "shape": [7]}

    save(here / "b.jsonl", (HEADER, *(other(recorded_step(step)) for step in (0, 100)), end()))
    code, (report,), _ = diffed(cli, "a.jsonl", "b.jsonl")
    assert code == 1 and report["model"] == "Net and GPT" and report["meta"]["different_models"]
    assert [row["step"] for row in report["rows"]] == [0, 100]
    assert all(row["a_loss"] == row["b_loss"] and row["a_param_grad"] == 13.0 for row in report["rows"])
    said = cli("diff", "a.jsonl", "b.jsonl").out
    assert "these are different models, so modules are not compared: A has Net with 5 modules and B has GPT" in said
    assert "charts of both: hookcli show a.jsonl --against b.jsonl" in said and "renamed" not in said


def test_a_loss_alone(cli: Cli, here: Path) -> None:
    save(here / "b.jsonl", (HEADER, recorded_step(0), replace(recorded_step(100, std=1.5), losses=[7.0]), end()))
    code, (over,), _ = diffed(cli, "a.jsonl", "b.jsonl")
    assert code == 1 and over["totals"]["first"] == "first beyond tolerance: step 100, loss: loss 0.01980 → 7.000"
    unknown = "the runs differ in no setting that is recorded: look at code, data and seeds"
    assert over["totals"]["settings"] == unknown
    assert [row["step"] for row in over["rows"]] == [0, 100] and over["rows"][1]["module"] == "(loss)"


def test_versions(cli: Cli, here: Path) -> None:
    save(here / "b.jsonl", (replace(HEADER, versions={"hookcli": "9", "torch": "3"}), *RUN[1:]))
    assert "hookcli 0.1.0 → 9; torch none → 3" in diffed(cli, "a.jsonl", "b.jsonl")[1][0]["totals"]["settings"]


@pytest.mark.sweep
def test_a_long_run_is_followed_in_part(cli: Cli, here: Path) -> None:
    for name, std in (("a", 1.0), ("b", 2.0)):
        steps = (recorded_step(n, std=std if n > 50 else 1.0) for n in range(150))
        save(here / f"{name}.jsonl", (HEADER, *steps, end()))
    _, (over, _), _ = diffed(cli, "a.jsonl", "b.jsonl")
    shown = [row["step"] for row in over["rows"]]
    assert shown[:2] == [50, 51] and shown[-1] == 149 and len(shown) < 30
    for_people = [int(step) for step in re.findall(r"^ +(\d+) ", cli("diff", "a.jsonl", "b.jsonl").out, re.MULTILINE)]
    assert for_people[:2] == [50, 51] and for_people[-1] == 149 and len(for_people) < 9
    assert over["totals"]["first"].startswith("first beyond tolerance: step 51, activations: body.0 (Linear): std")


MISTAKES = {
    ("a.jsonl", "none.jsonl"): "none.jsonl: no such file",
    ("a.jsonl", "resnet18"): "B 'resnet18': a.jsonl is a record of hookcli run; compare it with another record",
    ("a.jsonl", "other.jsonl"): "nothing to compare: no step is in both records: A has steps 0, 100, 200; B 7",
    ("a.jsonl", "models.jsonl"): "nothing to compare: no model is in both records: A has Net; B has This, That",
    ("a.jsonl", "a.jsonl", "--same-weights"): "--same-weights: both sides must be models, not records",
    ("a.jsonl", "a.jsonl", "--columns", "tims"): "unknown column 'tims'; did you mean times?",
}


@pytest.mark.parametrize("argv", MISTAKES, ids=" ".join)
def test_mistakes(cli: Cli, here: Path, argv: tuple[str, ...]) -> None:
    save(here / "other.jsonl", (HEADER, recorded_step(7)))
    save(here / "models.jsonl", (HEADER, renamed(recorded_step(0), "This"), renamed(recorded_step(0), "That")))
    found = cli("diff", *argv)
    assert found.code == 2 and found.out == "" and MISTAKES[argv] in found.err.splitlines()[-1], found.err


def test_mistakes_of_show(cli: Cli, here: Path) -> None:
    for argv in (("--step", "0"), ("--follow",)):
        found = cli("show", "a.jsonl", "--against", "a.jsonl", *argv)
        assert found.code == 2 and "--against" in found.err


def test_a_damaged_step_is_left_out(cli: Cli, here: Path) -> None:
    broken = text(RUN[1:2]).replace('"columns": [', '"columns": [7, ')
    (here / "b.jsonl").write_text(text(RUN[:1]) + broken + text(RUN[2:]))
    code, (over,), err = diffed(cli, "a.jsonl", "b.jsonl")
    assert code == 0 and over["totals"]["compared"] == 3 and "damaged" in err


def test_no_torch(here: Path) -> None:
    code = "import sys; from hookcli.cli import main; main(['diff', 'a.jsonl', 'a.jsonl'])"
    code += "; sys.exit('torch' in sys.modules)"
    assert forks.run([sys.executable, "-c", code], fresh=True, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(("loss", "beyond"), [(2.1, False), (2.3, True), (1.7, True)])
def test_a_loss_is_beyond_tolerance_by_more_than_what_is_allowed(
    cli: Cli, here: Path, loss: float, beyond: bool
) -> None:
    """2 and 2.3 are 1.5 times apart as far as a relative tolerance of 0.1 allows."""
    for name, value in (("a.jsonl", 2.0), ("b.jsonl", loss)):
        save(here / name, (HEADER, recorded_step(0, losses=[value]), end()))
    code, reports, _ = diffed(cli, "a.jsonl", "b.jsonl", "--rtol", "0.1")
    assert code == int(beyond)
    row = reports[0]["rows"][0]
    assert row.get("times", 0) == pytest.approx(abs(loss - 2) / 0.2) if beyond else not row.get("beyond")
