"""`hookcli report A B`: the comparison of `hookcli diff`, and beside it what each side measured for itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from records import HEADER, end, recorded_step, text

Cli = Callable[..., Any]
MODELS = ("net.py:Net", "net.py:Net --seed 1")
INPUT = ("--input", "2x3x4x4")


def saved(cli: Cli, *argv: str) -> tuple[list[dict[str, Any]], str]:
    ran = cli("report", *argv, "--output", "page.json")
    assert ran.code == 0, ran.err
    reports: list[dict[str, Any]] = json.loads(Path("page.json").read_text())["reports"]
    return reports, ran.err


@pytest.mark.sweep
def test_two_models(cli: Cli, net: Path) -> None:
    """The differences are those of `hookcli diff`; a side's figures are those of the model alone on the same input."""
    (diff, *others), err = saved(cli, *MODELS, *INPUT)
    told = json.loads(cli("diff", *MODELS, *INPUT, "--backward", "--format", "json").out)["reports"][0]
    assert (diff["rows"], diff["columns"]) == (told["rows"], told["columns"])
    assert diff["totals"] == told["totals"] and diff["totals"]["beyond"] > 0
    assert diff["totals"]["verdict"] in err and "--same-weights" in diff["meta"]["next"]
    probes = ["shapes", "flow", "activations", "grads", "grads", "parameters"]
    assert [(r["probe"], r["meta"]["side"]) for r in others] == [(probe, side) for side in "ab" for probe in probes]
    again = cli("report", "page.json", "--format", "json")  # a saved comparison is read back whole
    assert json.loads(again.out)["reports"][0]["rows"] == diff["rows"]
    assert cli("report", "page.json", "--output", "page.html").code == 0
    by_place = {(row["fqn"], row["kind"]): row for row in diff["rows"]}
    for report, side in ((others[2], "a"), (others[8], "b")):
        assert len(report["rows"]) > 3
        for row in report["rows"]:
            assert row["l2"] == pytest.approx(by_place[row["fqn"], "output"][f"{side}_l2"], rel=1e-6) and "hist" in row


def test_the_same_model_in_another_tree(cli: Cli, net: Path) -> None:
    (net / "old").mkdir()
    code = (net / "net.py").read_text()
    (net / "old/net.py").write_text(code.replace("self.fc(self.act(", "self.fc(0.5 * self.act("))
    (diff, *others), _ = saved(cli, "net.py:Net --path old", "net.py:Net", *INPUT, "--no-backward", "--same-weights")
    beyond = {row["fqn"] for row in diff["rows"] if row.get("beyond")}
    assert beyond == {"", "fc"} and {row["kind"] for row in diff["rows"]} == {"output"}
    assert [r["probe"] for r in others] == ["shapes", "flow", "activations", "parameters"] * 2
    fc = [row for r in others if r["probe"] == "activations" for row in r["rows"] if row["fqn"] == "conv"]
    assert fc[0]["l2"] == fc[1]["l2"]


def test_two_saved_reports_of_which_some_parts_compare(cli: Cli, net: Path) -> None:
    for name, model in zip(("one.json", "two.json"), MODELS, strict=True):
        assert cli("report", *model.split(), *INPUT, "--output", name).code == 0
    reports, _ = saved(cli, "one.json", "two.json")
    diffs = [report for report in reports if report["probe"] == "diff"]
    assert [diff["meta"]["of"] for diff in diffs] == [
        "shapes",
        "activations",
        "grads",
        "grads",
        "settings",
        "parameters",
    ]
    told = json.loads(cli("diff", "one.json", "two.json", "--format", "json").out)["reports"]
    assert [(r["rows"], r["totals"]) for r in told] == [(r["rows"], r["totals"]) for r in diffs]
    assert {"check", "activations"} <= {r["probe"] for r in reports if r["meta"].get("side") == "b"}


def records(folder: Path) -> None:
    """Two records that part in step 1, where a loss differs within tolerance and activations beyond it."""
    for name, off in (("a", 0.0), ("b", 1.0)):
        steps = [recorded_step(n, std=1.0 + off * n, losses=[2.0 + 1e-5 * off]) for n in range(4)]
        (folder / f"{name}.run.jsonl").write_text(text([HEADER, *steps, end()]))


def test_two_records(cli: Cli, net: Path) -> None:
    records(net)
    (over, place, history), err = saved(cli, "a.run.jsonl", "b.run.jsonl")
    assert over["totals"]["verdict"] == "both have loss 2.000 at step 3; other figures part at step 1"
    assert over["totals"]["first"].startswith("first beyond tolerance: step 1, activations: ")
    assert over["totals"]["verdict"] in err
    assert over["totals"]["grew"] and place["model"] == "Net: activations of step 1"
    assert [(row["step"], row["loss"], row["loss_b"]) for row in history["rows"]] == [
        (n, 2.0, 2.0 + 1e-5) for n in range(4)
    ]
    assert cli("report", "page.json", "--output", "again.json").code == 0
    assert Path("again.json").read_text() == Path("page.json").read_text()
    assert history["meta"]["against"] == {"a": "a.run.jsonl", "b": "b.run.jsonl"}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("net.py:Net", "a.run.jsonl"), "A 'net.py:Net': a.run.jsonl is a record"),
        (("net.py:Net", "net.py:Net", "--select", "HK010"), "--select: no checks run where two are compared"),
        (("net.py:Net", "--same-weights"), "--same-weights: name a second model"),
        (("net.py:Net", "net.py:Net --input 3"), "put all others outside the quotes"),
    ],
)
def test_mistakes(cli: Cli, net: Path, argv: tuple[str, ...], said: str) -> None:
    records(net)
    ran = cli("report", *argv, "--output", "page.html")
    assert ran.code == 2 and said in ran.err and len(ran.err.splitlines()) == 1 and not Path("page.html").exists()


def test_a_model_without_gradients_and_one_that_fails(cli: Cli, net: Path) -> None:
    (net / "plain.py").write_text(
        "from torch import nn\nclass Plain(nn.Module):\n    def forward(self, x):\n        return 2 * x\n"
    )
    (diff, *_), err = saved(cli, "plain.py:Plain", "plain.py:Plain", "--input", "3")
    assert diff["totals"]["verdict"] == "Identical, bit for bit" and "only forward is compared" in err
    ran = cli("report", "net.py:Net", "net.py:Crashes", *INPUT, "--output", "failed.json")
    assert ran.code == 2 and "B: " in ran.err
