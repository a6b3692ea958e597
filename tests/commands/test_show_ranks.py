"""hookcli show of a folder with a part for each rank: merged, beside each other, followed, and mistakes."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import forks
import pytest
from records import HEADER, bad, end, recorded_step, save, text

from hookcli.record.file.record_lines import Line
from hookcli.table import TensorStats

Cli = Callable[..., Any]


def part(rank: int, *lines: Line, ranks: int = 3) -> list[Line]:
    return [replace(HEADER, rank=rank, ranks=ranks), *lines]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three ranks: the second one is slow and has other activations, the third one died after its first step."""
    monkeypatch.chdir(tmp_path)
    found = tmp_path / "train.run"
    found.mkdir()
    slow = (recorded_step(n, std=10.0, losses=[4.0], seconds=0.75) for n in (0, 100))
    save(found / "rank0.jsonl", part(0, recorded_step(0), recorded_step(100), end()))
    save(found / "rank1.jsonl", part(1, *slow, end()))
    save(found / "rank2.jsonl", part(2, recorded_step(0)))
    return found


def reports(output: str) -> list[dict[str, Any]]:
    return json.loads(output)["reports"]


def test_ranks_are_merged_at_the_last_step_that_all_have(cli: Cli, folder: Path) -> None:
    found = cli("show", "train.run", "-f", "json")
    [report] = reports(found.out)
    assert (report["meta"]["step"], report["meta"]["seconds"]) == (0, 0.75)
    assert report["meta"]["losses"] == [pytest.approx((2.0 + 4.0 + 2.0) / 3)]
    row = next(row for row in report["rows"] if row["fqn"] == "head")
    parts = [TensorStats(80, 0.5, std, -2.0, 3.0, 9.0) for std in (1.0, 10.0, 1.0)]
    assert row["std"] == pytest.approx(TensorStats.merge(parts).std) and row["shape"] == [24, 16]
    assert row["weight"] == 120.0 and row["param_grad"] == 12.0  # the same on all ranks: once
    assert "train.py on 3 ranks, started" in found.err and "no end is recorded" in found.err
    assert "rank 2: no end: killed, or still running; last recorded step 0" in found.err
    assert "hookcli show train.run --ranks each" in found.err
    assert cli("show", "train.run.jsonl", "-f", "json").out == found.out  # the file that one process would have written


def test_ranks_beside_each_other_say_which_one_deviates_and_is_slow(cli: Cli, folder: Path) -> None:
    table, step = reports(cli("show", "train.run", "--ranks", "each", "-f", "json").out)
    by_rank = {row["rank"]: row for row in table["rows"]}
    assert [by_rank[rank]["ended"] for rank in range(3)] == ["exit code 0"] * 2 + ["no end: killed, or still running"]
    assert [by_rank[rank]["slower"] for rank in range(3)] == [None, "3.000 times the median", None]
    assert [row["rank"] for row in step["rows"] if row["fqn"] == "body.0"] == [0, 1, 2]
    some = reports(cli("show", "train.run", "--ranks", "0,1", "--step", "100", "-f", "json").out)
    assert {row["rank"] for report in some for row in report["rows"]} == {0, 1}


def test_a_module_over_time_in_all_ranks_and_in_each(cli: Cli, folder: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(cli("show", "train.run", "--over-time", "head", "-f", "csv").out)))
    assert [(row["step"], row["numel"]) for row in rows] == [("0", "240")]  # of step 100 a rank is missing
    each = reports(cli("show", "train.run", "--over-time", "head", "--ranks", "each", "-f", "json").out)
    assert [(report["model"], len(report["rows"])) for report in each] == [
        *(("Net: head (rank 0)", 2), ("Net: head (rank 1)", 2), ("Net: head (rank 2)", 1)),
    ]


def test_the_first_rank_with_a_non_finite_value(cli: Cli, folder: Path) -> None:
    save(folder / "rank1.jsonl", part(1, recorded_step(0), bad(0), recorded_step(100), end()))
    save(folder / "rank2.jsonl", part(2, recorded_step(0), recorded_step(100), bad(100), end(exit_code=1, error="X")))
    found = cli("show", "train.run")
    assert "12 NaN and 1 Inf in the output of body.1 (Net, step 0)" in found.err
    assert "non-finite first on rank 1, rank 2 from step 100" in found.err
    assert "rank 2: X (exit code 1); last recorded step 100" in found.err


def test_the_earliest_failure_leads(cli: Cli, folder: Path) -> None:
    for rank, seconds, error in ((0, 9.0, "connection closed by peer"), (1, 8.0, "ValueError: odd"), (2, 9.5, None)):
        ended = end(exit_code=bool(error) + 0, error=error, seconds=seconds)
        save(folder / f"rank{rank}.jsonl", part(rank, recorded_step(0), ended))
    first = cli("show", "train.run").err.partition("\n")[0]
    assert "rank 1: ValueError: odd (exit code 1)" in first and "closed" not in first


def test_missing_and_damaged_parts_are_said(cli: Cli, folder: Path) -> None:
    (folder / "rank0.jsonl").unlink()
    (folder / "rank1.jsonl").write_text("nonsense\n")
    found = cli("show", "train.run")
    assert found.code == 0 and "Net · step 0" in found.out
    assert "no part of rank 0 of 3 is here: figures cover the others" in found.err
    assert "rank 1 is left out: " in found.err and "not a record" in found.err
    assert "--ranks 0: no part of rank 0 is in train.run" in cli("show", "train.run", "--ranks", "0").err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("empty",), "empty: is a folder without parts of a record (rank0.jsonl, rank1.jsonl, ...)"),
        (("others",), "records in it: train.run.jsonl"),
        (("others/train.run.jsonl", "--ranks", "each"), "is the record of one process; give the folder of its ranks"),
        (("train.run", "--ranks", "7"), "available ranks: 0 to 2"),
        (("train.run", "--step", "50"), "step 50 was not recorded; nearest: 0 and 100"),
        (("train.run", "--ranks", "each", "--follow"), "leave one out"),
    ],
)
def test_mistakes(cli: Cli, folder: Path, argv: tuple[str, ...], said: str) -> None:
    for name in ("empty", "others"):
        (folder.parent / name).mkdir()
    save(folder.parent / "others" / "train.run.jsonl", part(0, recorded_step(0)))
    found = cli("show", *argv)
    assert found.code == 2 and said in found.err and found.err.count("\n") == 1


@pytest.mark.parametrize("name", ["x.run", "x.run.jsonl"])
@pytest.mark.parametrize("command", ["show", "report"])
def test_a_folder_that_is_named_like_a_record_is_no_model(cli: Cli, tmp_path: Path, command: str, name: str) -> None:
    (tmp_path / name).mkdir()
    assert f"{name}: is a folder without parts of a record" in cli(command, str(tmp_path / name)).err


def test_a_growing_folder_is_followed_as_far_as_all_ranks_have_come(tmp_path: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "hookcli", "show", "new.run", "--follow"]
    process = forks.Popen(command, stdout=-1, stderr=-1, text=True)
    assert "new.run: does not exist yet; waiting for it" in process.stderr.readline()
    new = tmp_path / "new.run"
    new.mkdir()
    save(new / "rank0.jsonl", part(0, recorded_step(0), recorded_step(100), ranks=2))
    save(new / "rank1.jsonl", part(1, recorded_step(0, losses=[4.0]), ranks=2))
    assert process.stdout.readline().startswith("Net  step 0  train  loss 3.000")
    for rank, lines in enumerate(((end(),), (recorded_step(100), end()))):
        with (new / f"rank{rank}.jsonl").open("a") as file:
            file.write(text(lines))
    out, err = process.communicate(timeout=120)
    assert out.startswith("Net  step 100  train  loss 0.01980") and out.count("\n") == 1
    assert process.returncode == 0 and "train.py on 2 ranks: 300 steps" in err
