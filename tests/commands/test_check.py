"""hookcli check: exit codes, tables and files."""

from __future__ import annotations

import csv
import json
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from commands.check_nets import IN, PARTS, Cli, ids, reports
from commands.shown import on_terminal
from junitparser import JUnitXml
from support import swept, usual_checks


@pytest.fixture(autouse=True)
def parts(net: Path) -> Path:
    (net / "parts.py").write_text(PARTS)
    return net


def test_all_is_well(cli: Cli) -> None:
    ran = cli("check", "net.py:Net", *IN)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[0] == f"All {usual_checks()} checks passed (4 modules)"
    assert "8x3x4x4 · cpu · float32 · train" in ran.out


@pytest.mark.sweep
@pytest.mark.parametrize("width", [80, swept(120)])
def test_the_verdict_is_the_first_line(width: int, net: Path) -> None:
    (net / "parts.py").write_text(f"{PARTS}\nclass Both(Unused, Forgets): ...\n")

    @cache
    def lines(model: str) -> list[str]:
        return on_terminal(width, "check", f"parts.py:{model}", *IN, "-q", NO_COLOR="1").splitlines()

    assert lines("Net")[0] == f"All {usual_checks()} checks passed (4 modules)"
    assert lines("Forgets")[0] == "HK007  warning  drop: Dropout was never called"
    first, *others = lines("Both")
    assert first.startswith("1 error, 2 warnings; worst: extra: Linear with ")
    assert "was never called; then no gradient reached weight, bias HK006" in " ".join(
        " ".join((first, *others)).split()
    )
    assert [line[:5] for line in others if line.startswith("HK")] == ["HK006", "HK008", "HK007"]
    assert (
        sum("· float32 · train" in " ".join(" ".join(lines(model)).split()) for model in ("Net", "Forgets", "Both"))
        == 3
    )


def test_exit_codes_and_fail_on(cli: Cli) -> None:
    assert cli("check", "parts.py:Unused", *IN).code == 1
    assert cli("check", "parts.py:Forgets", *IN).code == 0
    ran = cli("check", "parts.py:Forgets", *IN, "--fail-on", "warning")
    assert ran.code == 1 and ran.out.startswith("HK007  warning  drop: Dropout was never called\n")
    assert cli("check", "parts.py:Fails", *IN).code == 2


def test_a_model_that_fails_costs_the_others_nothing(cli: Cli) -> None:
    specs = ("parts.py:Fails", "net.py:boom", "parts.py:nope", "parts.py:Unused")
    ran = cli("check", *specs, *IN, "-f", "json")
    found = reports(ran)
    assert ran.code == 2 and [ids(r) for r in found] == [["HK001"], ["HK001"], ["HK006", "HK008"]]
    assert [r["model"] for r in found] == ["parts.py:Fails", "net.py:boom", "parts.py:Unused"]
    for report in found[:2]:  # one crashed, one could not be built
        assert report["meta"]["checks"] == ["HK001"] and report["totals"]["checks"] == 1
        assert {"HK002 input-not-finite", "HK010 dead-units"} <= {item["fqn"] for item in report["skipped"]}
    assert found[0]["findings"][0]["fqn"] == "fc" and "no such config" in found[1]["findings"][0]["message"]
    lines = ran.err.splitlines()
    assert lines[0] == "hookcli: error: 3 models could not be fully checked" and len(lines) == 4
    assert "parts.py:nope: parts.py: unknown name 'nope'" in lines[3] and "Traceback" not in ran.err


def test_no_format_counts_a_check_as_passed_that_a_crash_cut_short(cli: Cli) -> None:
    ran = cli("check", "parts.py:Fails", "net.py:boom", "net.py:Net", *IN, "-f", "json", "--report", "all.xml")
    found = reports(ran)
    suites = list(JUnitXml.fromstring(Path("all.xml").read_bytes()))
    assert [s.tests for s in suites] == [usual_checks()] * 3
    assert (
        [s.tests - s.skipped for s in suites]
        == [report["totals"]["checks"] for report in found]
        == [1, 1, usual_checks()]
    )
    cases = {case.name: case.result for case in suites[0]}
    [reason] = cases["HK010 dead-units"]
    assert reason.message == "not judged: the run crashed" and suites[0].errors == suites[1].errors == 1


def test_a_table_of_several_models_tells_which_and_has_no_control_characters(cli: Cli, parts: Path) -> None:
    said = r"'a \x1b[31mred\x1b[0m\a b\tc'"
    noisy = f"\nclass Noisy(Net):\n    def forward(self, x):\n        raise ValueError({said})\n"
    (parts / "parts.py").write_text(PARTS + noisy)
    ran = cli("check", "parts.py:Noisy", "parts.py:Unused", *IN, "-f", "csv", "--report", "t.txt", "--report", "r.json")
    lines = list(csv.DictReader(ran.out.splitlines()))
    assert next(iter(lines[0])) == "model" and "probe" not in lines[0]
    assert [(line["model"], line["check"]) for line in lines] == [
        ("parts.py:Noisy", "HK001"), ("parts.py:Unused", "HK006"), ("parts.py:Unused", "HK008"),
    ]  # fmt: skip
    assert "ValueError: a red? b c" in lines[0]["message"]
    for text in (ran.out, ran.err, Path("t.txt").read_text(), cli("check", "parts.py:Noisy", *IN, "-f", "github").out):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)


@pytest.mark.sweep
def test_a_model_that_fails_in_eval_mode_alone(cli: Cli) -> None:
    for more in ((), ("--max-macs", "1"), ("--save", "base.json")):
        ran = cli("check", "parts.py:Trains", *IN, "-f", "json", *more)
        [report] = reports(ran)
        assert ran.code == 2 and ids(report) == ["HK001", "HK006", "HK008"] and not Path("base.json").exists()
        assert report["findings"][0]["message"].startswith("in eval mode: fc (Linear) failed")
        assert "fc (Linear) failed" in ran.err and "Traceback" not in ran.err


def test_findings_are_in_rows_and_of_the_models_own_code(cli: Cli) -> None:
    [report] = reports(cli("check", "parts.py:Unused", *IN, "-f", "json"))
    [silent, lost] = report["findings"]
    line = PARTS.splitlines().index("class Unused(Net):") + 2
    assert (lost["file"], lost["line"], lost["severity"], lost["value"]) == ("parts.py", line, "error", 2)
    assert [row["check"] for row in report["rows"]] == ["HK006", "HK008"]
    assert report["rows"][1]["source"] == f"parts.py:{line}" and report["rows"][1]["hint"] == lost["hint"]
    assert report["totals"] == {"errors": 1, "warnings": 1, "checks": usual_checks(), "modules": 5}
    assert report["meta"]["fail_on"] == "error" and silent["check"] == "HK006"


@pytest.mark.sweep
def test_select_ignore_and_thresholds(cli: Cli) -> None:
    one = ("check", "parts.py:Unused", *IN, "-f", "json")
    assert ids(reports(cli(*one, "--select", "HK006"))[0]) == ["HK006"]
    assert ids(reports(cli(*one, "--ignore", "no-gradient,HK00"))[0]) == []
    [report] = reports(cli(*one, "--select", "hk010,dead-units", "--threshold", "dead-units=0.125"))
    assert report["meta"]["checks"] == ["HK010"]


@pytest.mark.sweep
def test_what_is_asked_for(cli: Cli) -> None:
    asked = ("--repeat", "2", "--split-batch", "--expect-output", "*x11", "--max-params", "1K", "--max-macs", "0.1M")
    ran = cli("check", "net.py:Net", *IN, *asked, "--max-activation-memory", "1MiB", "-f", "json")
    [report] = reports(ran)
    shapes = reports(cli("shapes", "net.py:Net", *IN, "-f", "json"))[0]["totals"]
    found = {finding["check"]: finding["value"] for finding in report["findings"]}
    assert found == {"HK021": None, "HK022": shapes["params"]}
    assert ran.code == 1 and report["totals"]["checks"] == 35
    [report] = reports(cli("check", "net.py:Net", *IN, "--max-macs", "30K", "-f", "json"))
    assert report["findings"][0]["value"] == shapes["macs"]


@pytest.mark.sweep
def test_macs_are_those_of_one_item_as_shapes_counts_them(cli: Cli) -> None:
    shapes = reports(cli("shapes", "squeezenet1_1", "-f", "json"))[0]["totals"]
    [report] = reports(cli("check", "squeezenet1_1", "--select", "HK023", "--max-macs", "1", "-f", "json"))
    assert report["findings"][0]["value"] == shapes["macs"]


@pytest.mark.sweep
def test_without_backward_and_on_meta(cli: Cli) -> None:
    [report] = reports(cli("check", "parts.py:Unused", *IN, "--no-backward", "-f", "json"))
    left = {item["fqn"].split()[0]: item["reason"] for item in report["skipped"]}
    assert ids(report) == [] and left["HK008"] == "not judged: skipped by --no-backward"
    [report] = reports(cli("check", "parts.py:Unused", *IN, "--meta", "--max-params", "1K", "-f", "json"))
    assert ids(report) == ["HK006", "HK008", "HK022"] and report["meta"]["device"] == "meta"
    assert report["meta"]["checks"] == [f"HK{n:03}" for n in (1, 6, 7, 8, 19, 22, 30, 31, 32, 34, 36)]
    assert cli("check", "parts.py:Fails", *IN, "--meta").code == 2


def test_what_is_selected_with_others_may_not_judge(cli: Cli) -> None:
    [report] = reports(cli("check", "net.py:Net", *IN, "--no-backward", "--select", "HK00", "-f", "json"))
    assert "HK021" not in report["meta"]["checks"] and "HK003" in report["meta"]["checks"]
    assert "HK006 never-called" in [item["fqn"] for item in report["skipped"]]
    [report] = reports(cli("check", "net.py:Net", *IN, "--select", "HK025,HK026", "-f", "json"))
    assert report["meta"]["checks"] == ["HK025", "HK026"]


def test_a_frozen_eval_model(cli: Cli) -> None:
    ran = cli("check", "net.py:Net", *IN, "--eval", "--expect-output", "8x10:float32")
    assert ran.code == 0 and " · eval · " in ran.out


def test_more_files_from_one_run(cli: Cli) -> None:
    ran = cli(
        "check", "parts.py:Unused", *IN, "-f", "github", "--report", "a.md", "--report", "b.sarif", "--report", "c.xml"
    )
    assert ran.code == 1 and "\n::error file=parts.py,line=6,title=HK008 no-gradient::" in ran.out
    assert "| HK008 | error | extra |" in Path("a.md").read_text()
    assert json.loads(Path("b.sarif").read_text())["version"] == "2.1.0" and "<testsuite " in Path("c.xml").read_text()


@pytest.mark.sweep
def test_findings_are_lines_with_their_remedy_below_at_any_width(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    _, *piped = cli("check", "parts.py:Unused", *IN).out.splitlines()
    assert piped[:5] == [
        "HK006  warning  extra: Linear with 6 parameters was never called",
        "       Try: call it, remove it, or use an input that reaches it",
        "HK008  error    extra: no gradient reached weight, bias",
        "       May follow from HK006 extra: fix that first",
        "       Else: use it, freeze it, or look for a detach between it and the loss",
    ]
    assert piped[-1] == "Next: hookcli explain HK006"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for width in ("80", "120", "200"):
        monkeypatch.setenv("COLUMNS", width)
        plain = re.sub("\x1b.*?m", "", cli("check", "parts.py:Unused", *IN).out).splitlines()
        first = plain.index(piped[0])
        assert max(map(len, plain)) <= int(width) and plain[first : first + 5] == piped[:5] and plain[-1] == piped[-1]


def test_the_next_command_runs_on_the_same_input(cli: Cli) -> None:
    (Path() / "zero.py").write_text(
        "from torch import nn\n\ndef net():\n    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))\n"
        "    net[0].bias.data.fill_(-100)\n    return net\n"
    )
    ran = cli("check", "zero.py:net", "-i", "16x4", "--seed", "3")
    assert [line.split()[0] for line in ran.out.splitlines() if line.startswith("HK")] == ["HK010", "HK009"]
    *_, last = ran.out.splitlines()
    assert last == "Next: hookcli activations zero.py:net --seed 3 --input 16x4 --train --sort -zeros"
    assert "all zero" in cli(*shlex.split(last)[2:]).out
    *_, last = cli("check", "parts.py:Fails", *IN, "--loss", "mean").out.splitlines()
    assert last == "Next: hookcli check parts.py:Fails --input 8x3x4x4 --loss mean --debug"


def test_the_next_command_differentiates_what_the_check_did(cli: Cli) -> None:
    Path("root.py").write_text(
        "from torch import nn\n\nclass Root(nn.Linear):\n    def forward(self, x):\n"
        "        return super().forward(x).mul(0).sqrt()\n\ndef plain():\n    return nn.Linear(4, 2)\n\n"
        "def nan(y):\n    return y.sum() * float('nan')\n"
    )
    made = ("root.py:Root", "--arg", "in_features=4", "--arg", "out_features=2", "--input", "2x4")
    *_, last = cli("check", *made).out.splitlines()
    assert last == f"Next: hookcli grads {shlex.join(made)} --backward-vector randn --of outputs"
    assert "gradients of a random projection of the output" in cli(*shlex.split(last)[2:]).out
    chosen = ("root.py:plain", "--input", "2x4", "--loss", "root.py:nan")
    *_, last = cli("check", *chosen).out.splitlines()
    assert last == f"Next: hookcli grads {shlex.join(chosen)} --of outputs"


def test_without_a_model_it_asks_for_one(cli: Cli) -> None:
    ran = cli("check")
    assert (ran.code, ran.out) == (2, "") and len(ran.err.splitlines()) == 1
    assert "no model to check: give one, as in `hookcli check net.py:Net`" in ran.err


def test_explain_says_the_default_threshold_or_that_there_is_none(cli: Cli) -> None:
    assert "\nThreshold      1.000e-04: relative gradient" in cli("explain", "HK012").out
    assert "\nThreshold      none: bytes saved for backward" in cli("explain", "HK024").out


@pytest.mark.sweep
@pytest.mark.parametrize("command", ["shapes", swept("activations"), "check"])
def test_a_failure_is_told_once_and_first_on_a_terminal(command: str, cli: Cli) -> None:
    argv = (command, "parts.py:Fails", *IN)
    words = " ".join(on_terminal(120, *argv, "-q", both=True, NO_COLOR="1").split())
    assert words.count("fc (Linear) failed on input") == 1 and words.count("at parts.py:17 forward") == 1
    assert words.startswith("HK001 error fc: fc (Linear)" if command == "check" else "fc (Linear) failed on input 8x")
    assert "to train" not in words and "MACs ·" not in words and "hookcli: error" not in words
    alone = on_terminal(120, *argv, "-q", NO_COLOR="1")  # its stderr goes elsewhere
    ran = cli(*argv)
    assert "failed on input" in alone and ran.code == 2 and ran.err.startswith("hookcli: error: fc (Linear) failed on")
    assert ran.out.startswith(("HK001  error    fc", "fc (Linear) failed on input 8x"))
