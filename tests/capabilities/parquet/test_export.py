"""Parquet files, read back with the reader of Arrow."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from reporters.exports import (
    one_shot,
    relaxed,
    reports,
    require_library,
    require_refused,
    same,
)

pytestmark = pytest.mark.xdist_group("parquet")  # which is imported once
Cli = Callable[..., Any]


@pytest.mark.sweep
def test_parquet_holds_what_json_and_csv_hold(cli: Cli, record: Path) -> None:
    assert cli("show", record.name, "-o", "x.parquet").code == 0
    table = pq.read_table("x.parquet")
    said = reports(cli, "show", record.name, "--step", "all")
    rows = [
        {"model": report["model"], "probe": report["probe"], **row} for report in said for row in report["rows"]
    ]  # fmt: skip
    found = table.to_pylist()
    assert len(found) == len(rows) and {"\x1b" in row["fqn"] for row in found} == {False, True}
    for line, row in zip(found, rows, strict=True):
        for name, value in line.items():
            expected = relaxed(row.get(name))
            expected = "x".join(map(str, expected)) if isinstance(expected, list) else expected
            assert same(value, expected), (name, value, expected)
    kinds = {field.name: str(field.type) for field in table.schema}
    assert kinds["step"] == kinds["zeros"] == kinds["forward"] == "int64" and kinds["loss"] == kinds["std"] == "double"
    assert kinds["fqn"] == kinds["shape"] == "string" and "null" not in kinds.values()
    assert table.schema.field("zeros").metadata[b"unit"] == b"elements"
    about = json.loads(table.schema.metadata[b"hookcli"])["reports"][0]
    assert about["meta"]["command"] == "train.py --epochs 3" and about["rows"] == [] and "step" not in about["meta"]
    written = csv.DictReader(io.StringIO(cli("show", record.name, "--step", "all", "-f", "csv").out))
    assert sorted(written.fieldnames or ()) == sorted(table.column_names)
    for line, row in zip(found, written, strict=True):
        for name, text in row.items():
            value = relaxed(text) if kinds[name] == "double" else text
            number = {"double": float, "int64": int}.get(kinds[name], str)
            shown = str(line[name]).replace("\x1b", "\\x1b").replace("\u2028", "\\u2028").replace("\n", "\\n")
            expected = shown if number is str and line[name] is not None else line[name]
            assert same(number(value) if text else None, expected or (None if expected == "" else expected)), name


@pytest.mark.parametrize("narrowed", [("--columns", "step,fqn,ratio,loss"), ("--step", "100"), ("--probe", "grads"),
                                      ("--over-time", "body.0"), ("--depth", "1"), ("--model", "Net")])  # fmt: skip
def test_selections_are_the_same_in_both_tables(cli: Cli, record: Path, narrowed: tuple[str, ...]) -> None:
    every = () if narrowed[0] in ("--step", "--over-time") else ("--step", "all")
    if narrowed[0] == "--step":
        ran = cli("show", record.name, *narrowed, "-o", "x.parquet")
        table = pq.read_table("x.parquet")
        assert ran.code == 0 and set(table["step"].to_pylist()) == {100} and set(table["phase"].to_pylist()) == {
            "train", "no_grad",
        }  # fmt: skip
        return
    assert cli("show", record.name, *narrowed, "-o", "x.parquet").code == 0
    assert cli("show", record.name, *narrowed, *every, "-o", "x.csv").code == 0
    table = pq.read_table("x.parquet")
    text = pyarrow.csv.read_csv("x.csv", convert_options=pyarrow.csv.ConvertOptions(null_values=[""]))
    shared = [name for name in table.column_names if name in text.column_names]
    assert set(table.column_names) - set(shared) <= {"model", "probe"} and len(table) == len(text)
    for name in shared:
        if str(text.schema.field(name).type) in ("int64", "double"):
            pairs = zip(table[name].to_pylist(), text[name].to_pylist(), strict=True)
            assert all(same(a, b) for a, b in pairs), name


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("-f", "parquet"), "--format parquet: name the file to write, with --output"),
        (("-f", "parquet", "-o", "."), "--output .: is a folder"),
        (("-f", "parquet", "-o", "x.parquet", "--columns", "mena"), "unknown column 'mena'; did you mean mean"),
        (("-f", "parquet", "-o", "x.parquet", "--step", "7"), "step 7 was not recorded; nearest: 0 and 50"),
        (("-f", "parquet", "-o", "x.parquet", "--probe", "act"), "unknown --probe 'act'"),
    ],
)
def test_mistakes(cli: Cli, record: Path, argv: tuple[str, ...], said: str) -> None:
    require_refused(cli, record, argv, said)


def test_a_library_that_is_missing_is_named_with_its_command(
    cli: Cli, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    require_library(cli, "parquet", "pyarrow")


def test_one_shot_commands_and_saved_reports(cli: Cli, net: Path) -> None:
    report = one_shot(cli, "parquet", "a.parquet")
    assert cli("show", "a.json", "-f", "parquet", "-o", "b.parquet").code == 0
    for name in ("a", "b"):
        table = pq.read_table(f"{name}.parquet")
        assert table["std"].to_pylist() == [row["std"] for row in report["rows"]]
        assert set(zip(*(table[name].to_pylist() for name in ("model", "probe")), strict=True)) == {
            (report["model"], "activations")
        }
        [head] = json.loads(table.schema.metadata[b"hookcli"])["reports"]
        times = {"seconds": 0, "hookcli_seconds": 0}
        assert {**head, "rows": report["rows"], "meta": head["meta"] | times} == {
            **report, "meta": report["meta"] | times,
        }  # fmt: skip
