"""hookcli diff of two records: where two runs diverge, what grew from there, and the settings that differ."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from textwrap import dedent

import forks
import pytest
from commands.diffed import Cli, diffed
from commands.shown import on_terminal
from support import swept

pytestmark = pytest.mark.xdist_group("trained runs")  # one set of them
SCRIPT = """
    import sys
    import torch
    from torch import nn
    rate, activation, steps = float(sys.argv[1]), getattr(nn, sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), activation(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    x = torch.randn(16, 4)
    for step in range(steps):
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
"""
RUNS = {
    "a": ("0.05", "ReLU", "12"),
    "again": ("0.05", "ReLU", "12"),
    "rate": ("0.1", "ReLU", "12"),
    "layer": ("0.05", "GELU", "12"),
    "short": ("0.05", "ReLU", "6"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the records of real runs."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "train.py").write_text(dedent(SCRIPT))
    how = ("-m", "hookcli", "run", "-q", "--every", "3", "-o")
    for name, arguments in RUNS.items():
        command = [sys.executable, *how, f"{name}.run.jsonl", "train.py", *arguments]
        forks.run(command, cwd=folder, check=True, timeout=120)
    return folder


@pytest.fixture
def runs(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    return trained


def losses(name: str, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The losses of the same training without hookcli."""
    found: list[float] = []
    monkeypatch.setattr(sys, "argv", ["train.py", *RUNS[name]])
    exec(dedent(SCRIPT).replace("loss.backward()", "losses.append(loss.item()); loss.backward()"), {"losses": found})
    return found


@pytest.mark.sweep
def test_the_same_seed_is_the_same_run(cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, (report,), err = diffed(cli, "a.run.jsonl", "again.run.jsonl")
    assert code == 0 and (report["totals"]["compared"], report["totals"]["beyond"]) == (4, 0)
    last = losses("a", monkeypatch)[-1]
    assert report["totals"]["verdict"] == f"all within tolerance: both have loss {last:.3f} at step 11"
    assert "settings" not in report["totals"] and not report["findings"]
    assert [row["loss_a"] for row in report["rows"]] == [row["loss_b"] for row in report["rows"]]
    assert "the runs differ" not in err


def test_another_learning_rate_shows_in_the_first_update(cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Activations and gradients of step 0 are those of the same weights."""
    code, (over, place), err = diffed(cli, "a.run.jsonl", "rate.run.jsonl")
    first, second, *_ = over["rows"]
    assert (
        code == 1 and (first["step"], first["loss_a"]) == (0, first["loss_b"]) and second["loss_a"] > second["loss_b"]
    )
    assert place["model"] == "Sequential: updates of step 0"
    twice = [row for row in place["rows"] if row["figure"] in ("update", "ratio")]
    assert len(twice) == 4 and all(row["b"] == pytest.approx(2 * row["a"], rel=1e-4) for row in twice)
    headlines = [over["totals"][key] for key in ("verdict", "settings", "apart", "first")]
    a, b = (losses(name, monkeypatch)[-1] for name in ("a", "rate"))
    less = f"{a / b:.2g} times lower than A's {a:.3f}"
    assert headlines[0] == f"B is better: loss {b:.4f} at step 11, {less}"
    assert headlines[1:3] == ["the runs differ: learning rate 0.05 → 0.1", "losses part at step 1"]
    assert headlines[3].startswith("first beyond tolerance: step 0, updates: 0.weight (Linear): ")
    assert over["totals"]["grew"].startswith("grew most from step 0 to 9: ") and "where A has" in over["totals"]["grew"]
    assert all(line in err for line in headlines)


@pytest.mark.sweep
@pytest.mark.parametrize("columns", [80, swept(120), swept(200)])
def test_a_terminal_says_first_which_run_is_better_and_why(runs: Path, columns: int) -> None:
    """What differs is the second line; remarks on the records come after the table."""
    text = on_terminal(columns, "diff", "short.run.jsonl", "rate.run.jsonl", NO_COLOR="1", LINES="24", both=True)
    better, _, why = text.partition("\nthe runs differ: ")
    assert re.fullmatch(r"B is better: loss \d\.\d+ at step 5, \d+% lower than A's \d\.\d+", better), text
    assert "\nstep 5 is the last in both; best: A " in why
    assert why.startswith("learning rate 0.05 → 0.1;") and "2 recorded steps only in B (6 to 9)" in why
    assert "first beyond tolerance: step 0, updates: 0.weight (Linear)" in " ".join(why.split())
    said = "Sequential: updates of step 0: 4 rows (--depth all shows all)"
    assert len(text.splitlines()) <= 22 and (said in text) != ("\nSequential: updates of step 0 · " in text)
    tall = on_terminal(columns, "diff", "short.run.jsonl", "rate.run.jsonl", NO_COLOR="1", LINES="50", both=True)
    assert said not in tall and "\nSequential: updates of step 0 · " in tall and tall.startswith(better)


def test_another_layer_is_the_first_place(cli: Cli, runs: Path) -> None:
    code, (over, place), _ = diffed(cli, "a.run.jsonl", "layer.run.jsonl")
    assert code == 1 and "step 0, activations: layer 1 (ReLU): zeros" in over["totals"]["first"]
    rows = {row["fqn"]: row for row in place["rows"]}
    assert rows["1"]["change"] == "ReLU → GELU" and rows["1"]["beyond"] and not rows["0"].get("beyond")
    assert over["totals"]["settings"] == "the runs differ: module 1 ReLU → GELU; argument 2: ReLU → GELU"


def test_a_shorter_run_is_compared_as_far_as_it_goes(cli: Cli, runs: Path) -> None:
    code, (report,), err = diffed(cli, "a.run.jsonl", "short.run.jsonl")
    assert code == 0 and report["totals"]["compared"] == 2 and "2 recorded steps only in A (6 to 9)" in err


def test_one_that_was_cut_off_and_one_that_still_runs(cli: Cli, runs: Path, tmp_path: Path) -> None:
    whole = Path("a.run.jsonl").read_bytes()
    cut = tmp_path / "cut.run.jsonl"
    cut.write_bytes(whole[: whole.index(b'"phase":"train","step":6,') + 100])  # in the middle of the step's line
    code, reports, err = diffed(cli, "a.run.jsonl", str(cut))
    assert code == 0 and 0 < reports[0]["totals"]["compared"] < 4
    assert "B (" in err and "no end is recorded; it is still running, or was killed" in err
    assert "is cut (killed, disk full, or still being written): step 6 is incomplete" in err and "only in A" in err


def test_a_tolerance_and_a_part(cli: Cli, runs: Path) -> None:
    assert diffed(cli, "a.run.jsonl", "rate.run.jsonl", "--rtol", "1000")[0] == 0
    code, (over, place), _ = diffed(cli, "a.run.jsonl", "rate.run.jsonl", "--match", "2.*")
    assert code == 1 and {row["fqn"] for row in place["rows"]} == {"2.weight", "2.bias"}
    assert "2.weight" in over["totals"]["first"]
    for narrowing, said in (
        (("--match", "2.wight"), "--match: no module or parameter matches '2.wight'; did you mean '2.weight'"),
        (("--type", "Linea"), "unknown --type 'Linea'; did you mean Linear?"),
        (("--match", "2", "--type", "ReLU"), "nothing to compare: no module or parameter that is selected"),
    ):
        nothing = cli("diff", "a.run.jsonl", "rate.run.jsonl", *narrowing)
        assert (nothing.code, nothing.out) == (2, "") and said in nothing.err
    chosen = cli("diff", "a.run.jsonl", "rate.run.jsonl", "--columns", "step,loss_a,fqn", "-f", "csv")
    assert chosen.code == 1 and "loss_a" in chosen.out and "2.bias" in chosen.out


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["table", "markdown", "csv", "json"])
def test_formats(cli: Cli, runs: Path, name: str) -> None:
    found = cli("diff", "a.run.jsonl", "rate.run.jsonl", "-f", name)
    assert found.code == 1 and "0.weight" in found.out and "learning rate 0.05 → 0.1" in found.out + found.err
    cli("diff", "a.run.jsonl", "rate.run.jsonl", "-o", "saved.json")
    assert "learning rate 0.05 → 0.1" in cli("show", "saved.json").out


@pytest.mark.sweep
def test_two_runs_in_one_chart(cli: Cli, runs: Path) -> None:
    found = cli("show", "a.run.jsonl", "--against", "rate.run.jsonl")
    legend = "• A: a.run.jsonl   x B: rate.run.jsonl   * both\n"
    assert found.code == 0 and f"{legend}Loss (parting at step 1: A " in found.out
    rows = json.loads(cli("show", "a.run.jsonl", "--against", "short.run.jsonl", "-f", "json").out)["reports"][1][
        "rows"
    ]
    assert [row["step"] for row in rows] == [0, 3, 6, 9]
    assert [row["loss_b"] == row["loss"] for row in rows] == [True, True, False, False] and rows[3]["loss_b"] is None
    other = json.loads(cli("show", "short.run.jsonl", "--against", "a.run.jsonl", "-f", "json").out)["reports"][1][
        "rows"
    ]
    assert [(row.get("loss"), row["std_b"]) for row in other[2:]] == [(None, row["std"]) for row in rows[2:]]
