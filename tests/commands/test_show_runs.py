"""`hookcli show A B C` and `hookcli report A B C`: any number of runs in one table, one chart a figure."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from commands.shown import on_terminal
from records import HEADER, end, recorded_step, save
from support import swept

from hookcli.record.file.comparison.loss_verdict import TwoLosses, final_losses, lowest
from hookcli.record.file.record_lines import ModelSettings, StepLosses
from hookcli.reporters.step_figures import curves
from hookcli.table import Report, Row
from hookcli.table.columns import columns_named

Cli = Callable[..., Any]
STEPS = 12
LOSSES: Mapping[str, list[float]] = {
    "slow": [4.0 - 0.1 * step for step in range(STEPS)],
    "fast": [4.0 / (1 + step) for step in range(STEPS)],
    "broken": [4.0, 40.0, 4e9, *[math.nan] * (STEPS - 3)],
    "short": [4.0 - 0.2 * step for step in range(STEPS - 4)],
}
NAMES = [f"{name}.run.jsonl" for name in LOSSES]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a record of each run: every third step is recorded, the loss of every step is kept."""
    for place, (name, losses) in enumerate(LOSSES.items()):
        header = replace(HEADER, argv=["train.py", "--lr", str(0.1 * (1 + place))])
        steps = [recorded_step(step, losses=[losses[step]], at=30.0 + 40 * step) for step in range(0, len(losses), 3)]
        save(tmp_path / f"{name}.run.jsonl", (header, *steps, StepLosses("Net", 0, losses), end()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("columns", [80, swept(120), swept(200)])
def test_a_terminal_names_the_best_run_first(runs: Path, columns: int) -> None:
    text = on_terminal(columns, "show", *NAMES, NO_COLOR="1", LINES="60")
    lines = text.splitlines()
    assert max(map(len, lines)) <= columns and "Traceback" not in text
    first = " ".join(text.split("\nNet\n")[0].split())
    best, next_one = LOSSES["fast"][7], LOSSES["short"][7]
    assert first == (
        f"B has the lowest loss: {best:.4f} at step 7, the last in all, "
        f"{next_one / best:.2g} times lower than D's {next_one:.3f}; C's loss was NaN from step 3 on (9 of 12 steps)"
    )
    table, charts = text.split("\n\n", 1)
    rows = {line[0]: line.split() for line in table.splitlines() if line[:1] in "ABCD" and line[1:2] == " "}
    assert [rows[run][1] for run in "ABCD"] == list(LOSSES)
    assert [rows[run][3] for run in "ABCD"] == ["2.900", f"{LOSSES['fast'][-1]:.4f}", "NaN", "2.600"]
    assert "against A: --lr 0.1 → 0.2" in table
    legend, loss = " ".join(charts.splitlines()[1:3]), charts.partition("Loss (")[2].partition("\nL2 of")[0]
    assert legend.startswith("A: slow.run.jsonl   B: fast.run.jsonl") and "cut where a run diverges" in " ".join(
        loss.split()
    )
    canvas = [line[11:] for line in loss.splitlines() if line[10:11] in "┤│"]
    assert {mark for line in canvas for mark in line} == {
        *"ABD* "
    }  # C goes along the upper edge, where A and D are, too
    assert lines[-1] == "Next: hookcli diff slow.run.jsonl fast.run.jsonl"


@pytest.mark.parametrize("columns", [80, swept(120)])
def test_the_verdict_and_the_table_fit_a_small_screen_and_charts_only_a_larger_one(runs: Path, columns: int) -> None:
    def lines(rows: int, *argv: str) -> list[str]:
        return on_terminal(columns, *argv, both=True, NO_COLOR="1", LINES=str(rows)).splitlines()

    small = lines(24, "show", *NAMES)
    assert len(small) < 24 and small[0].startswith("B has the lowest loss") and not any("┤" in line for line in small)
    told = " ".join(" ".join(small).split()).partition("Net: no room for charts: loss, param_grad, ")[2]
    assert re.match(r"\w+, \w+ and \d+ more; choose with --columns, for example --columns loss,param_grad ", told)
    assert any("┤" in line for line in lines(24, "show", *NAMES, "--columns", "loss,param_grad"))
    large = lines(45, "show", *NAMES)
    assert 24 < len(large) < 45 and any("┤" in line for line in large)
    one = lines(24, "show", NAMES[0], "--over-time", ".")
    assert len(one) < 24 and any("┤" in line for line in one)
    two = lines(24, "show", *NAMES[:2])
    assert len(two) < 24 and two[1] == "the runs differ: --lr 0.1 → 0.2"


@pytest.mark.sweep
def test_a_loss_that_was_not_finite_is_red(runs: Path) -> None:
    assert on_terminal(120, "show", *NAMES).startswith("\x1b[1;31mB has the lowest loss")
    assert on_terminal(120, "show", *NAMES[:2], "short.run.jsonl").startswith("\x1b[1mB has the lowest loss")


@pytest.mark.sweep
def test_figures_are_those_of_the_records(cli: Cli, runs: Path) -> None:
    table, history = json.loads(cli("show", *NAMES, "-f", "json").out)["reports"]
    for row, (name, losses) in zip(table["rows"], LOSSES.items(), strict=True):
        finite = [loss for loss in losses if math.isfinite(loss)]
        assert (row["name"], row["steps"], row["best_loss"]) == (name, len(losses), min(finite))
        assert row["best_step"] == losses.index(min(finite)) and row["seconds"] == 41.2
    sides = history["meta"]["against"]
    assert sides == dict(zip("abcd", NAMES, strict=True))
    for side, name in zip(sides, LOSSES, strict=True):
        key = "loss" if side == "a" else f"loss_{side}"
        told = {row["step"]: row[key] for row in history["rows"] if row[key] is not None}
        assert told == {n: "NaN" if math.isnan(x) else x for n, x in enumerate(LOSSES[name]) if n % 3 == 0}
    assert [len(one) for one in history["meta"]["loss_of_steps"]] == [len(one) for one in LOSSES.values()]
    cli("show", *NAMES, "-o", "saved.json")
    assert cli("show", "saved.json").out.startswith("B has the lowest loss")


@pytest.mark.sweep
@pytest.mark.xdist_group("pictures")
def test_other_formats(cli: Cli, runs: Path) -> None:
    for argv in (("-o", "a.png"), ("-o", "a.svg"), ("--columns", "loss")):
        found = cli("show", *NAMES, *argv)
        assert found.code == 0 and "B has the lowest loss" in found.err, argv
    assert all(f"{letter}: {name}" in Path("a.svg").read_text() for letter, name in zip("ABCD", NAMES, strict=True))
    assert "| fast |" in cli("show", *NAMES, "-f", "markdown").out


def test_two_runs_have_the_same_table(cli: Cli, runs: Path) -> None:
    two = cli("show", *NAMES[:2]).out
    assert two.splitlines()[:3] == [
        "B is better: loss 0.3333 at step 11, 8.7 times lower than A's 2.900",
        "the runs differ: --lr 0.1 → 0.2",
        "losses part at step 1",
    ]
    assert "against A" not in two
    assert (
        two == cli("show", NAMES[0], "--against", NAMES[1]).out and "• A: slow.run.jsonl   x B: fast.run.jsonl" in two
    )


def test_means_over_steps() -> None:
    losses = [*map(float, range(10)), math.nan, 20.0]
    columns = columns_named("step", "loss", "lr")
    rows = [Row({"step": 2 * n, "loss": loss, "lr": loss}) for n, loss in enumerate(losses)]
    loss, rate = curves(Report("over-time", "Net", columns, rows, {"smooth": 6}), columns[1:])
    means = [sum(losses[max(n - 2, 0) : n + 1]) / min(n + 1, 3) for n in range(10)]
    assert [value for _, value in loss.points[0]][:10] == pytest.approx(means)
    assert math.isnan(loss.points[0][10][1]) and loss.points[0][11][1] == (9.0 + 20.0) / 2
    assert "mean over 6 steps" in loss.heading and [value for _, value in rate.points[0]][:10] == losses[:10]


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ({"A": [1.0], "B": [1.0], "C": [1.0]}, "all runs have loss 1.000 at step 0"),
        (
            {"A": [1.0], "B": [1.0], "C": [2.0]},
            "A, B have the lowest loss: 1.000 at step 0, 2 times lower than C's 2.000",
        ),
        (
            {"A": [3.0, 2.0], "B": [1.0, 2.5], "C": []},
            (
                "A has the lowest loss: 2.000 at step 1, 20% lower than B's 2.500; "
                "lowest at any step: B 1.000 (step 0); no loss is recorded in C"
            ),
        ),
        (
            {"A": [math.nan], "B": [math.nan], "C": [math.inf]},
            (
                "no run has a finite loss at step 0; A's loss was NaN from step 0 on (1 of 1 step); "
                "B's loss was NaN from step 0 on (1 of 1 step); C's loss was Inf from step 0 on (1 of 1 step)"
            ),
        ),
        ({"A": [], "B": [], "C": []}, ""),
    ],
)
def test_verdicts(of: Mapping[str, list[float]], said: str) -> None:
    assert lowest({run: dict(enumerate(losses)) for run, losses in of.items()}) == said


@pytest.mark.parametrize(("offset", "clear"), [(0.3, True), (0.001, False)])
def test_three_runs_are_judged_as_two_are(offset: float, clear: bool) -> None:
    noise = random.Random(0)
    a, b, c = ({step: level + noise.random() for step in range(128)} for level in (0.0, offset, 9.0))
    a[127] = 0.9 + offset  # one batch says the opposite
    two = TwoLosses(a, b, 0.0, 0.0).headlines()["verdict"]
    three, means = lowest({"A": a, "B": b, "C": c}), [fmean(own[n] for n in range(96, 128)) for own in (a, b, c)]
    assert two.startswith("A is better" if clear else "neither is clearly better")
    words = "A has the lowest mean loss: " if clear else "A, B are not clearly apart: mean loss "
    assert three.startswith(words) and all(f"{mean:.4g}"[:5] in three for mean in means[:2])
    assert "over steps 96 to 127" in three and ("within their spread" in three) is not clear
    assert final_losses({"A": a, "B": b, "C": c}) == dict(zip("ABC", means, strict=True))


def test_mistakes(cli: Cli, runs: Path) -> None:
    cli("show", NAMES[0], "-o", "saved.json")
    for argv, said in (
        (("show", NAMES[0], NAMES[1], "saved.json"), "saved.json: is not a record of hookcli run"),
        (("show", *NAMES, "--step", "3"), "--step and several records"),
        (("show", *NAMES, "--follow"), "--follow shows one record"),
        (("show", NAMES[0], "--smooth", "3"), "--smooth: is for charts"),
        (("report", *NAMES[:2], "resnet18"), "resnet18: is not a record of hookcli run"),
        (("report", *NAMES, "--rtol", "1"), "--rtol: no checks run where several are compared"),
    ):
        found = cli(*argv)
        assert found.code == 2 and said in found.err and len(found.err.splitlines()) == 1, found.err


def test_models_of_other_names_and_runs_without_one(cli: Cli, runs: Path) -> None:
    steps = [recorded_step(step, model="Renamed", losses=[0.5]) for step in (0, 3)]
    save(runs / "renamed.run.jsonl", (HEADER, *steps, end()))
    save(runs / "empty.run.jsonl", (HEADER, end()))
    table, history = json.loads(cli("show", NAMES[0], "renamed.run.jsonl", "empty.run.jsonl", "-f", "json").out)[
        "reports"
    ]
    assert [row["loss"] for row in table["rows"]] == [LOSSES["slow"][-1], 0.5, None]
    assert "no loss is recorded in C" in table["totals"]["verdict"] and table["model"] == "Net, Renamed"
    assert [row.get("loss_b") for row in history["rows"]] == [0.5, 0.5, None, None]


def test_curves_over_time(cli: Cli, runs: Path) -> None:
    """Steps that were not recorded lie between those that were; runs of other speeds end at other times."""
    save(runs / "late.run.jsonl", [HEADER, *(recorded_step(step, at=100.0 * step + 50) for step in (0, 2)), end()])
    shown = cli("show", "short.run.jsonl", "late.run.jsonl", "--x", "time")
    loss = shown.out.partition("Loss (")[2].partition("\n          └")[2].splitlines()
    assert shown.code == 0 and loss[1].split() == ["1", "min", "2", "min", "3", "min", "4", "min", "5", "min"]
    alone = cli("show", "slow.run.jsonl", "--over-time", "loss", "--x", "time").out
    assert "Loss (over time)" in alone and alone.split("\n")[-2].split() == ["2", "min", "4", "min", "6", "min"]
    assert "step 9" not in alone
    save(runs / "long.run.jsonl", [HEADER, *(recorded_step(step, at=1 + 600.0 * step) for step in range(7)), end()])
    drawn = cli("show", "long.run.jsonl", "--over-time", "loss", "--x", "time", "--output", "long.svg")
    assert drawn.code == 0 and {*re.findall(r">([\d.]+ \w+)<", Path("long.svg").read_text())} == {
        *("0 s", "10 min", "20 min", "30 min", "40 min", "50 min", "1 h")
    }
    save(runs / "old.run.jsonl", [HEADER, recorded_step(0), recorded_step(1), end()])
    ran = cli("show", "slow.run.jsonl", "old.run.jsonl", "--x", "time")
    assert ran.code == 2 and "--x time: a record" in ran.err
    for arguments, told in ((["--x", "hours"], "unknown --x 'hours'"), (["--x", "time"], "is for charts")):
        ran = cli("show", "slow.run.jsonl", *arguments)
        assert ran.code == 2 and told in ran.err


def test_settings_of_modules_are_what_runs_differ_in(cli: Cli, tmp_path: Path) -> None:
    """An epsilon of PyTorch's modules is a cause; a counter of a class of the program's is none."""
    files = []
    for eps, folder in ((1e-5, "runs/1"), (1e-3, "runs/2")):
        norms = [Row({"fqn": f"body.{i}", "type": "LayerNorm", "attributes": {"eps": eps}}) for i in range(2)]
        own = Row({"fqn": "", "type": "Net", "attributes": {"folder": folder}, "source": "net.py:3"})
        columns = columns_named("fqn", "type", "attributes", "source")
        settings = ModelSettings("Net", [Report("settings", "Net", columns, [own, *norms])])
        steps = [recorded_step(step, losses=[1 / (step + 1) + eps]) for step in range(3)]
        files.append(str(save(tmp_path / f"{eps}.run.jsonl", [HEADER, steps[0], settings, *steps[1:], end()])))
    for ran in (cli("diff", *files), cli("show", *files)):
        assert "eps 1e-05 → 0.001 in 2 LayerNorms" in " ".join(ran.out.split()) and "runs/1" not in ran.out


def test_a_page_says_of_how_many_runs_it_is(cli: Cli, runs: Path) -> None:
    assert f"wrote all.html: {len(NAMES)} runs" in cli("report", *NAMES, "-o", "all.html").err
    assert "wrote all.json: 2 reports, " in cli("report", *NAMES, "-o", "all.json").err
