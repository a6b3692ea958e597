"""Exports of records and reports, read back with the readers of TensorBoard, Arrow and Weights & Biases."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from records import gradient, save
from reporters.exports import INF, figures, float32, lines, relaxed, reports, same, tag, wandb_runs
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hookcli.reporters import series
from hookcli.table import Column, Report, Row

Cli = Callable[..., Any]


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A record of a run that was killed in the middle of a line, in the working directory."""
    monkeypatch.chdir(tmp_path)
    path = save(tmp_path / "r.run.jsonl", lines())
    with path.open("a") as file:
        file.write('{"line":"step","model":"Net","pha')
    return path


def test_tensorboard_has_every_figure_of_every_step(cli: Cli, record: Path) -> None:
    ran = cli("show", record.name, "-f", "tensorboard", "-o", "runs/x")
    assert ran.code == 0 and ran.out == ""
    assert "wrote runs/x: " in ran.err and "`tensorboard --logdir runs/x` shows them" in ran.err
    assert "the last line is cut (" in ran.err
    folders = {("Net", "train"): "Net/train", ("Net", "no_grad"): "Net/no_grad", ("../G /x", "train"): "_G _x/train"}
    assert {str(path.parent.relative_to("runs/x")) for path in Path("runs").rglob("*tfevents*")} == set(
        folders.values()
    )
    expected: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for report in reports(cli, "show", record.name, "--step", "all"):
        for row, name, value in figures(report):
            run = folders[report["model"], report["meta"]["phase"]]
            expected.setdefault((run, tag(report, row, name)), []).append((row["step"], float32(value)))
    found = {}
    for run in folders.values():
        events = EventAccumulator(f"runs/x/{run}", {"scalars": 0, "tensors": 0}).Reload()
        found |= {(run, t): [(e.step, e.value) for e in events.Scalars(t)] for t in events.Tags()["scalars"]}
        said = events.Tensors("run")[0].tensor_proto.string_val[0].decode()
        assert "    command: train.py --epochs 3" in said and "    phase: " in said
    assert found.keys() == expected.keys() and len(found) > 90
    for key, values in expected.items():
        assert all(s == t and same(v, w) for (s, v), (t, w) in zip(values, found[key], strict=True)), key
    assert [v for _, v in found["Net/train", "(model)/loss"]] == [2.0, float32(2 / 101), INF]
    assert [s for s, _ in found["Net/no_grad", "activations.std/head"]] == [100, 100]


def test_a_folder_that_holds_something_is_left_alone(cli: Cli, record: Path) -> None:
    Path("runs").mkdir()
    assert cli("show", record.name, "-f", "tensorboard", "-o", "runs").code == 0
    before = sorted(Path("runs").rglob("*"))
    ran = cli("show", record.name, "-f", "tensorboard", "-o", "runs")
    assert ran.code == 2 and "--output runs: is not empty; name another folder, or delete this one" in ran.err
    assert sorted(Path("runs").rglob("*")) == before and not list(Path().glob(".hookcli-*"))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("-f", "tensorboard"), "--format tensorboard: name the new folder to write, with --output"),
        (("-f", "parquet"), "--format parquet: name the file to write, with --output"),
        (("-f", "tensorboard", "-o", "r.run.jsonl"), "--output r.run.jsonl: is a file; this format writes a folder"),
        (("-f", "parquet", "-o", "."), "--output .: is a folder"),
        (("-f", "parquet", "-o", "x.parquet", "--columns", "mena"), "unknown column 'mena'; did you mean mean"),
        (("-f", "parquet", "-o", "x.parquet", "--step", "7"), "step 7 was not recorded; nearest: 0 and 50"),
        (("-f", "parquet", "-o", "x.parquet", "--probe", "act"), "unknown --probe 'act'"),
        (("--step", "some"), "--step 'some': give a number from 0, or all"),
        (("-f", "wandb", "-o", "r.run.jsonl/x"), "can't write to r.run.jsonl/"),
    ],
)  # fmt: skip
def test_mistakes(cli: Cli, record: Path, argv: tuple[str, ...], said: str) -> None:
    ran = cli("show", record.name, *argv)
    assert ran.code == 2 and said in ran.err and len(ran.err.splitlines()) == 1, ran.err
    assert sorted(path.name for path in Path().iterdir()) == [record.name]


@pytest.mark.parametrize("name", ["tensorboard", "parquet", "wandb"])
def test_a_library_that_is_missing_is_named_with_its_command(
    cli: Cli, record: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    package = {"parquet": "pyarrow"}.get(name, name)
    for module in (package, "pyarrow.parquet", "tensorboard.summary.writer.record_writer"):
        monkeypatch.setitem(__import__("sys").modules, module, None)
    ran = cli("show", record.name, "-f", name, "-o", "x")
    assert ran.code == 2 and f"--format {name}: {package} is not installed; pip install 'hookcli[{name}]'" in ran.err
    assert not Path("x").exists() and cli("show", record.name).code == 0


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


@pytest.mark.xdist_group("wandb")  # which is imported once
def test_wandb_has_a_run_for_each_model_and_phase(cli: Cli, record: Path) -> None:
    ran = cli("show", record.name, "-f", "wandb", "-o", "here")
    assert ran.code == 0 and ran.out == "" and "`wandb sync here/wandb/offline-run-*` uploads them" in ran.err
    expected: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for report in reports(cli, "show", record.name, "--step", "all"):
        line = {tag(report, row, name): value for row, name, value in figures(report)}
        expected.setdefault((report["model"], report["meta"]["phase"]), []).append(
            line | {"step": report["meta"]["step"]}
        )
    found = {}
    for config, history, run in wandb_runs(Path("here")):
        found[config["model"], config["phase"]] = [
            {key: value for key, value in line.items() if key[:1] != "_"} for line in history
        ]
        assert config["command"] == "train.py --epochs 3" and config["every"] == 100
        assert run.run_group == "train.py" and run.job_type == config["phase"]
    assert found.keys() == expected.keys()
    for key, wanted in expected.items():
        for mine, theirs in zip(wanted, found[key], strict=True):
            assert mine.keys() == theirs.keys() and all(same(value, theirs[name]) for name, value in mine.items())
    assert cli("show", record.name, "-f", "wandb", "-o", "here").code == 0  # beside the others
    assert len(list(wandb_runs(Path("here")))) == 6


@pytest.mark.xdist_group("wandb")
def test_one_shot_commands_and_saved_reports(cli: Cli, net: Path) -> None:
    own = ("net.py:Net", "-i", "2x3x4x4")
    for name, output in (("json", "a.json"), ("parquet", "a.parquet"), ("tensorboard", "tb"), ("wandb", ".")):
        ran = cli("activations", *own, "-f", name, "-o", output)
        assert ran.code == 0 and ran.out == "", ran.err
    [report] = json.loads(Path("a.json").read_text())["reports"]
    assert cli("show", "a.json", "-f", "parquet", "-o", "b.parquet").code == 0
    assert cli("show", "a.json", "-f", "tensorboard", "-o", "tb2").code == 0
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
    for folder in ("tb", "tb2"):
        [path] = Path(folder).rglob("*tfevents*")
        events = EventAccumulator(str(path.parent)).Reload()
        for row in report["rows"]:
            [event] = events.Scalars(f"activations.std/{row['fqn'] or '(model)'}")
            assert (event.step, event.value) == (0, float32(row["std"]))
    [(config, [line], _)] = wandb_runs(Path())
    assert config["device"] == "cpu" and config["torch"] == report["meta"]["torch"]
    assert line["activations.max/conv"] == next(row["max"] for row in report["rows"] if row["fqn"] == "conv")


def test_parameter_groups_have_tags_of_their_own() -> None:
    groups = [Row({"optimizer": "AdamW", "group": number, "lr": 0.1 / (number + 1)}) for number in range(2)]
    columns = [Column(name, name) for name in ("optimizer", "group", "lr")]
    [point] = series.points([Report("optimizer", "Net", columns, groups)])
    assert point.figures == {"optimizer.lr/AdamW group 0": 0.1, "optimizer.lr/AdamW group 1": 0.05}


def test_gradients_of_two_kinds_and_calls_have_tags_of_their_own() -> None:
    rows = [
        gradient("a", "output", "Linear", 1.0),
        gradient("a", "input", "Linear", 2.0),
        gradient("a", "input", "Linear", 3.0),
    ]
    rows[2] = replace(rows[2], values={**rows[2].values, "call": 1})
    [point] = series.points([Report("grads", "Net", [Column("l2", "L2")], [*rows, rows[2]])])
    assert point.figures == {
        "grads.output.l2/a": 1.0,
        "grads.input.l2/a": 2.0,
        "grads.input.l2/a call 1": 3.0,
        "grads.input.l2/a call 1 #2": 3.0,
    }


def test_a_name_that_is_taken_gets_the_next_number() -> None:
    assert [series.unused("a", taken) for taken in ((), ("a",), ("a", "a #2"), ("a", "a #3"))] == [
        "a", "a #2", "a #3", "a #2"
    ]  # fmt: skip
    assert series.unused("a", ["a"], sign="") == "a 2"
