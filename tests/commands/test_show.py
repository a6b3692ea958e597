"""hookcli show: views of a record, and mistakes."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import forks
import pytest
from commands.shown import on_terminal
from records import HEADER, RUN, activation, bad, end, ran, recorded_step, save, text

from hookcli.commands.show import EXAMPLES
from hookcli.record.file.reading import read_record
from hookcli.record.file.record_lines import UNSEARCHED, NonFinite, StepLosses
from hookcli.record.file.views.summary import summary
from hookcli.table import STATS_COLUMNS, Report, TensorStats
from hookcli.table.grouping import View

Cli = Callable[..., Any]


GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a record, as the working directory."""
    monkeypatch.chdir(tmp_path)
    return save(tmp_path / "train.run.jsonl", RUN)


def reports(output: str) -> list[dict[str, Any]]:
    return json.loads(output)["reports"]


def test_the_last_step_of_each_model_and_phase(cli: Cli, record: Path) -> None:
    found = cli("show", str(record), "-f", "json")
    train, no_grad = reports(found.out)
    assert found.code == 0 and (train["meta"]["step"], no_grad["meta"]["step"]) == (200, 100)
    rows = {row["fqn"]: row for row in train["rows"]}
    assert (rows["body.0"]["param_grad"], rows["body.0"]["std"], rows["body.1"]["zeros"]) == (5.0, 0.5, 64)
    assert rows["body.0"]["ratio"] == pytest.approx(0.001) and rows["body"]["param_grad"] is None
    assert f"300 steps of 1 model in 41.2 s, exit code 0; 4 recorded steps in {record}" in found.err


@pytest.mark.parametrize("columns", [80, 160])
def test_golden(record: Path, columns: int, request: pytest.FixtureRequest) -> None:
    save(record, (HEADER, recorded_step(0), replace(recorded_step(100), model="Discriminator"), bad(), end()))
    found = on_terminal(columns, "show", record.name, NO_COLOR="1")
    file = GOLDEN / f"show{columns}.txt"
    if request.config.getoption("--golden"):
        file.write_text(found)
    assert found == file.read_text()
    assert "\x1b" not in found and max(map(len, found.splitlines())) <= columns
    for said in ("Net · step 0 · loss 2.000", "Discriminator · step 100", "5.000", "13.00", "12 NaN, 1 Inf"):
        assert said in found


def test_the_latest_record_is_shown_without_a_name(cli: Cli, record: Path) -> None:
    save(Path("later.run.jsonl"), (HEADER, recorded_step(7)))
    Path("reserved.run.jsonl").touch()  # by a run that has recorded nothing so far
    os.utime(record, (1, 1))
    assert "Net · step 7" in cli("show").out
    os.utime("later.run.jsonl", (0, 0))
    found = cli("show", "--over-time", "head")
    assert found.code == 0 and f"4 recorded steps in {record.name}" in found.err


def test_a_figure_of_the_model_over_time(cli: Cli, record: Path) -> None:
    for name in ("param_grad", "L2 of the parameters' gradients"):
        (report,) = json.loads(cli("show", record.name, "--over-time", name.lower(), "-f", "json").out)["reports"]
        assert [column["name"] for column in report["columns"]] == ["step", "forward", "param_grad"]
        assert [row["param_grad"] for row in report["rows"]] == [13.0] * len(report["rows"]) and report["rows"]
    assert "did you mean loss?" in cli("show", record.name, "--over-time", "los").err


def test_a_folder_without_a_record(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = cli("show")
    assert (
        found.code == 2 and "no record in this folder (hookcli run writes records named SCRIPT.run.jsonl)" in found.err
    )


def test_the_headline_is_short_and_says_what_was_left_out(cli: Cli, record: Path) -> None:
    models = [ran(left_out=500), ran("Critic", left_out=16), ran("Other")]
    save(record, (HEADER, recorded_step(0), end(models, exit_code=1, error=f"ValueError: {'x' * 3000}")))
    headline, left_out = cli("show").err.splitlines()
    assert "ValueError: xxx" in headline and "… (3,012 characters) (exit code 1)" in headline and len(headline) < 300
    assert "516 forwards without gradients were left out (Net, Critic); --no-grad N records more" in left_out


@pytest.mark.sweep
def test_colour_on_a_terminal_alone(cli: Cli, record: Path) -> None:
    assert "\x1b[" in on_terminal(100, "show", record.name)
    assert "\x1b" not in cli("show", record.name).out


@pytest.mark.parametrize("name", ["table", "json", "csv", "markdown"])
@pytest.mark.parametrize("how", [(), ("--step", "100"), ("--probe", "grads"), ("--over-time", "body.0")])
def test_every_format(cli: Cli, record: Path, name: str, how: tuple[str, ...]) -> None:
    found = cli("show", record.name, *how, "--format", name)
    assert found.code == 0 and ("body.0" in found.out or "body\n  0" in found.out or "  0  " in found.out), found.err


def test_a_step(cli: Cli, record: Path) -> None:
    found = reports(cli("show", record.name, "--step", "100", "-f", "json").out)
    assert [(report["meta"]["phase"], report["meta"]["step"]) for report in found] == [("train", 100), ("no_grad", 100)]
    (train,) = reports(cli("show", record.name, "--step", "100", "--phase", "train", "-f", "json").out)
    assert train["rows"][0]["std"] == 1.5


def test_a_probe_as_it_was_recorded(cli: Cli, record: Path) -> None:
    (updates,) = reports(cli("show", record.name, "--probe", "updates", "-f", "json").out)
    assert [(row["fqn"], row["weight"], row["update"]) for row in updates["rows"]] == [
        ("body.0.weight", 30.0, 0.03), ("body.0.bias", 40.0, 0.04), ("head.weight", 120.0, 0.12),
    ]  # fmt: skip
    assert updates["meta"]["step"] == 200


def test_other_probes_are_shown_as_they_are(cli: Cli, record: Path) -> None:
    more = Report("inputs", "Net", (), [activation("body", "Sequential", TensorStats(4, 7.0))])
    save(record, (HEADER, replace(recorded_step(0), reports=[*recorded_step(0).reports, more])))
    (found,) = reports(cli("show", record.name, "--probe", "inputs", "-f", "json").out)
    assert found["rows"][0]["mean"] == 7.0


@pytest.mark.parametrize("others", [(), ("activations", "grads", "updates")])
def test_inputs_are_shown_with_what_else_was_measured(cli: Cli, record: Path, others: tuple[str, ...]) -> None:
    """Also by the summary of a run, where nothing else was."""
    step = recorded_step(0)
    inputs = Report("inputs", "Net", STATS_COLUMNS, [activation("body", "Sequential", TensorStats(4, 7.0))])
    of_step = [*(report for report in step.reports if report.probe in others), inputs]
    save(record, (HEADER, replace(step, reports=of_step), end()))
    shown = {report["probe"]: report for report in reports(cli("show", record.name, "-f", "json").out)}
    assert [*shown] == [*(["run"] if others else []), "inputs"] and shown["inputs"]["rows"][0]["mean"] == 7.0
    assert "7.000" in cli("show", record.name).out
    whole = read_record(record)
    assert ("7.000" in summary(whole, whole, record.name, View(width=80))) is (not others)


def test_over_time_as_rows_and_as_charts(cli: Cli, record: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(cli("show", record.name, "--over-time", "body.0", "-f", "csv").out)))
    assert [(row["step"], float(row["std"]), float(row["param_grad"])) for row in rows] == [
        ("0", 0.25, 5.0), ("100", 0.375, 5.0), ("200", 0.5, 5.0),
    ]  # fmt: skip
    chart = cli("show", record.name, "--over-time", "body.0").out
    assert "Std of the output\n" in chart and "0.2500┤•" in chart and "\x1b" not in chart
    assert cli("show", record.name, "--over-time", "body.0", "-o", "chart.txt").code == 0
    assert Path("chart.txt").read_text() == chart
    model = cli("show", record.name, "--over-time", ".").out
    assert "Loss" in model and cli("show", record.name, "--over-time", "").out == model


def test_saved_figures_over_time_are_drawn_again(cli: Cli, record: Path) -> None:
    cli("show", record.name, "--over-time", "body.0", "-o", "series.json")
    assert cli("show", "series.json", "-f", "chart").out == cli("show", record.name, "--over-time", "body.0").out


def test_a_saved_report(cli: Cli, record: Path) -> None:
    cli("show", record.name, "--phase", "train", "-o", "saved.json")
    markdown = cli("show", "saved.json", "-f", "markdown")
    assert markdown.code == 0 and markdown.out == cli("show", record.name, "--phase", "train", "-f", "markdown").out
    assert cli("show", "saved.json", "--step", "3").err.endswith("; --step is for records of hookcli run\n")


def test_the_verdict_on_a_run_is_in_what_is_not_a_table(cli: Cli, record: Path) -> None:
    (first, *_) = reports(cli("show", record.name, "-f", "json").out)
    assert first["totals"]["verdict"].startswith("train.py: 300 steps of 1 model in 41.2 s, exit code 0; ")
    save(record, (HEADER, StepLosses("Net", 0, [1.0, math.nan, math.nan]), *RUN[1:]))
    (first, *_) = reports(cli("show", record.name, "-f", "json").out)
    assert first["totals"]["verdict"] == "Net: the loss was NaN from step 1 on (2 of 3 steps)"
    assert "verdict" not in cli("show", record.name).out


def test_columns_sort_and_depth(cli: Cli, record: Path) -> None:
    found = cli("show", record.name, "--phase", "train", "--columns", "fqn,ratio,param_grad", "--sort", "-param_grad")
    assert [line.split()[0] for line in found.out.splitlines()[3:5]] == ["head", "body.0"]
    folded = cli("show", record.name, "--phase", "train", "--depth", "1", "-f", "json")
    assert {row["fqn"]: row["param_grad"] for row in reports(folded.out)[0]["rows"]} == {
        "": None,
        "body": 5,
        "head": 12,
    }


def test_what_was_not_finite(cli: Cli, record: Path) -> None:
    save(record, (HEADER, recorded_step(0), bad(), end(exit_code=1, error="ValueError: loss is NaN")))
    found = cli("show", record.name)
    assert found.code == 0 and "12 NaN, 1 Inf" in found.out and "the last rows measured, up to 'body.1'" in found.out
    assert "12 NaN and 1 Inf in the output of body.1 (Net, step 100)" in found.err
    assert "ValueError: loss is NaN (exit code 1)" in found.err
    for how in (("--probe", "grads"), ("--step", "0"), ("--columns", "fqn,ratio"), ("--over-time", "body")):
        assert "the last rows measured" not in cli("show", record.name, *how).out


def test_what_is_whole_is_shown_and_the_rest_is_counted(cli: Cli, record: Path) -> None:
    record.write_text(text(RUN[:2]) + '{"line": "wind\n' + text(RUN[2:3])[:-300])
    found = cli("show", record.name)
    assert found.code == 0 and "Net · step 0" in found.out
    assert "1 of 4 lines is damaged and left out: 3; the last line is cut (" in found.err
    assert "no end is recorded; it is still running, or was killed" in found.err
    assert re.search(r"the last line came \S+ .?s ago", found.err)


def test_steps_without_a_header(cli: Cli, record: Path) -> None:
    found = cli("show", str(save(record, RUN[1:])))
    assert found.code == 0 and "has no header, so the script and its settings are unknown" in found.err


def test_a_run_without_a_recorded_step(cli: Cli, record: Path) -> None:
    found = cli("show", str(save(record, (HEADER, end([])))))
    assert found.code == 0 and "no step was recorded" in found.err and found.out == ""


MISTAKES = {
    ("none.jsonl",): "none.jsonl: no such file",
    (".",): ".: is a folder",
    ("train.run.jsonl", "--step", "150"): "step 150 was not recorded; nearest: 100 and 200 (every 100)",
    ("train.run.jsonl", "--step", "999"): "step 999 was not recorded; nearest: 200 (every 100)",
    ("train.run.jsonl", "--model", "Nett"): "unknown --model 'Nett'; did you mean Net?",
    ("train.run.jsonl", "--phase", "eval"): "unknown --phase 'eval'; choose from: no_grad, train",
    ("train.run.jsonl", "--probe", "grad"): "unknown --probe 'grad'; did you mean grads?",
    ("train.run.jsonl", "--over-time", "hed"): "unknown module, parameter or figure 'hed'; did you mean head?",
    (
        "train.run.jsonl",
        "--over-time",
        "qqq",
    ): "unknown module, parameter or figure 'qqq'; `hookcli show train.run.jsonl` lists modules; figures: ",
    ("train.run.jsonl", "--over-time", "x", "--step", "1"): "--step and --over-time: a chart shows all steps",
    ("train.run.jsonl", "--columns", "ratoi"): "unknown column 'ratoi'; did you mean ratio?",
    ("train.run.jsonl", "--format", "svg"): "--format svg: ",
    ("train.run.jsonl", "--format", "chart"): "--format chart: only for `hookcli show --over-time` or `hookcli memory`",
    ("train.run.jsonl", "--follow", "--format", "json"): "--follow shows the latest steps as they come",
    ("train.run.jsonl", "--follow", "--columns", "ratoi"): "unknown column 'ratoi'; did you mean ratio?",
    ("none/x.jsonl", "--follow"): "no folder none/ to wait in",
    (".", "--follow"): ".: is a folder",
}


@pytest.mark.parametrize("argv", MISTAKES, ids=" ".join)
def test_mistakes(cli: Cli, record: Path, argv: tuple[str, ...]) -> None:
    found = cli("show", *argv)
    assert found.code == 2 and (found.out == "" or '"error": {"id": "HKE001"' in found.out)
    last = found.err.splitlines()[-1]
    assert last.startswith("hookcli: error: ") and MISTAKES[argv] in last, found.err


def test_no_torch(record: Path) -> None:
    code = (
        "import sys; from hookcli.cli import main\n"
        "main(['show', 'train.run.jsonl']); main(['show', 'train.run.jsonl', '--over-time', 'body', '-q'])\n"
        "main(['show', 'train.run.jsonl', '--follow']); main(['show', 'train.run.jsonl', '--step', '3'])\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert forks.run([sys.executable, "-c", code], fresh=True, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("line", EXAMPLES)
def test_examples_work(cli: Cli, record: Path, line: str) -> None:
    cli("show", record.name, "-o", "before.json")
    for name in "abc":
        Path(f"{name}.run.jsonl").write_bytes(record.read_bytes())
    found = cli(*shlex.split(line.replace("layer4.2.conv3", "body.0"))[1:])
    assert found.code == 0 and (found.out or "wrote " in found.err), found.err


@pytest.mark.parametrize("recorded", [(0, 3, 9), ()])
def test_the_loss_over_time_has_every_step(cli: Cli, tmp_path: Path, recorded: tuple[int, ...]) -> None:
    """Whether it was recorded or not, also where none was; charts say how many were."""
    losses = [2.0 / (1 + step) for step in range(12)]
    steps = [replace(recorded_step(step), losses=[losses[step]]) for step in recorded]
    save(tmp_path / "run.jsonl", (HEADER, *steps, StepLosses("Net", 0, losses), end()))
    path = str(tmp_path / "run.jsonl")
    rows = cli("show", path, "--over-time", "loss", "-f", "csv").out.splitlines()
    assert rows == ["step,forward,loss", *(f"{step},,{loss!r}" for step, loss in enumerate(losses))]
    (report,) = json.loads(cli("show", path, "--over-time", "loss", "-f", "json").out)["reports"]
    assert [row["loss"] for row in report["rows"]] == losses
    chart = cli("show", path, "--over-time", "loss").out
    assert chart.startswith(f"Net · train · 12 steps (0 to 11), {len(recorded) or 'none'} recorded\n")


@pytest.mark.parametrize("what", ["input", "output", "gradient", "parameter gradient"])
def test_what_a_search_has_found_is_said_though_the_loss_was_lost(cli: Cli, tmp_path: Path, what: str) -> None:
    found = NonFinite("Net", "train", 1, "head", what, 3, 0, [])
    lost = NonFinite("Net", "train", 1, "", "loss", 1, 0, [], UNSEARCHED)
    for one in (found, lost):
        lines = (HEADER, recorded_step(0), one, StepLosses("Net", 0, [1.0, math.nan]), end())
        save(tmp_path / "run.jsonl", lines)
        said = cli("show", str(tmp_path / "run.jsonl")).err
        assert "the loss was NaN from step 1 on" in said
        assert (f"first non-finite value: 3 NaN in the {what} of head (Net, step 1)" in said) == (one is found)
        assert UNSEARCHED not in said
