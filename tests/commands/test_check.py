"""hookcli check and hookcli explain: exit codes, configuration, and one clear line for each mistake."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from junitparser import JUnitXml

from hookcli.checks.selection import known_checks

Cli = Callable[..., Any]

PARTS = """
from torch import nn
from net import Net

class Unused(Net):
    def __init__(self):
        super().__init__()
        self.extra = nn.Linear(2, 2)

class Forgets(Net):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout()

class Fails(Net):
    def forward(self, x):
        return self.fc(self.act(self.conv(x)))

class Trains(Unused):
    def forward(self, x):
        return super().forward(x) if self.training else self.fc(x)

class Reads(Net):
    def forward(self, x):
        return super().forward(x) * float(x.sum() > 0)
"""
IN = ("--input", "8x3x4x4")


@pytest.fixture(autouse=True)
def parts(net: Path) -> Path:
    (net / "parts.py").write_text(PARTS)
    return net


def reports(ran: Any) -> list[dict[str, Any]]:
    return json.loads(ran.out)["reports"]


def ids(report: dict[str, Any]) -> list[str]:
    return [finding["check"] for finding in report["findings"]]


def write(text: str) -> None:
    Path("pyproject.toml").write_text(text)


def test_all_is_well(cli: Cli) -> None:
    ran = cli("check", "net.py:Net", *IN)
    assert (ran.code, ran.err) == (0, "")
    assert (
        ran.out.splitlines()[0] == "All 25 checks passed (4 modules)" and "8x3x4x4 · cpu · float32 · train" in ran.out
    )


def test_exit_codes_and_fail_on(cli: Cli) -> None:
    assert cli("check", "parts.py:Unused", *IN).code == 1
    assert cli("check", "parts.py:Forgets", *IN).code == 0
    ran = cli("check", "parts.py:Forgets", *IN, "--fail-on", "warning")
    assert ran.code == 1 and re.search(r"HK007 +warning +drop +1 +Dropout was never called", ran.out)
    assert cli("check", "parts.py:Fails", *IN).code == 2


def test_a_model_that_fails_costs_the_others_nothing(cli: Cli) -> None:
    specs = ("parts.py:Fails", "net.py:boom", "parts.py:nope", "parts.py:Unused")
    ran = cli("check", *specs, *IN, "-f", "json")
    found = reports(ran)
    assert ran.code == 2 and [ids(r) for r in found] == [["HK001"], ["HK001"], ["HK008", "HK006"]]
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
    assert [s.tests for s in suites] == [len([kind for kind in known_checks() if not kind.asked_by])] * 3
    assert [s.tests - s.skipped for s in suites] == [report["totals"]["checks"] for report in found] == [1, 1, 25]
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
        ("parts.py:Noisy", "HK001"), ("parts.py:Unused", "HK008"), ("parts.py:Unused", "HK006"),
    ]  # fmt: skip
    assert "ValueError: a red? b c" in lines[0]["message"]
    for text in (ran.out, ran.err, Path("t.txt").read_text(), cli("check", "parts.py:Noisy", *IN, "-f", "github").out):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)


def test_a_model_that_fails_in_eval_mode_alone(cli: Cli) -> None:
    for more in ((), ("--max-macs", "1"), ("--save", "base.json")):
        ran = cli("check", "parts.py:Trains", *IN, "-f", "json", *more)
        [report] = reports(ran)
        assert ran.code == 2 and ids(report) == ["HK001", "HK008", "HK006"] and not Path("base.json").exists()
        assert report["findings"][0]["message"].startswith("in eval mode: fc (Linear) failed")
        assert "fc (Linear) failed" in ran.err and "Traceback" not in ran.err


def test_findings_are_in_rows_and_of_the_models_own_code(cli: Cli) -> None:
    [report] = reports(cli("check", "parts.py:Unused", *IN, "-f", "json"))
    [lost, silent] = report["findings"]
    line = PARTS.splitlines().index("class Unused(Net):") + 2
    assert (lost["file"], lost["line"], lost["severity"], lost["value"]) == ("parts.py", line, "error", 2)
    assert [row["check"] for row in report["rows"]] == ["HK008", "HK006"]
    assert report["rows"][0]["source"] == f"parts.py:{line}" and report["rows"][0]["hint"] == lost["hint"]
    assert report["totals"] == {"errors": 1, "warnings": 1, "checks": 25, "modules": 5}
    assert report["meta"]["fail_on"] == "error" and silent["check"] == "HK006"


def test_select_ignore_and_thresholds(cli: Cli) -> None:
    one = ("check", "parts.py:Unused", *IN, "-f", "json")
    assert ids(reports(cli(*one, "--select", "HK006"))[0]) == ["HK006"]
    assert ids(reports(cli(*one, "--ignore", "no-gradient,HK00"))[0]) == []
    [report] = reports(cli(*one, "--select", "hk010,dead-units", "--threshold", "dead-units=0.125"))
    assert report["meta"]["checks"] == ["HK010"]


def test_what_is_asked_for(cli: Cli) -> None:
    asked = ("--repeat", "2", "--split-batch", "--expect-output", "*x11", "--max-params", "1K", "--max-macs", "0.1M")
    ran = cli("check", "net.py:Net", *IN, *asked, "--max-activation-memory", "1MiB", "-f", "json")
    [report] = reports(ran)
    shapes = reports(cli("shapes", "net.py:Net", *IN, "-f", "json"))[0]["totals"]
    found = {finding["check"]: finding["value"] for finding in report["findings"]}
    assert found == {"HK021": None, "HK022": shapes["params"]}
    assert ran.code == 1 and report["totals"]["checks"] == 31
    [report] = reports(cli("check", "net.py:Net", *IN, "--max-macs", "30K", "-f", "json"))
    assert report["findings"][0]["value"] == shapes["macs"]


def test_macs_are_those_of_one_item_as_shapes_counts_them(cli: Cli) -> None:
    shapes = reports(cli("shapes", "squeezenet1_1", "-f", "json"))[0]["totals"]
    [report] = reports(cli("check", "squeezenet1_1", "--select", "HK023", "--max-macs", "1", "-f", "json"))
    assert report["findings"][0]["value"] == shapes["macs"]


def test_without_backward_and_on_meta(cli: Cli) -> None:
    [report] = reports(cli("check", "parts.py:Unused", *IN, "--no-backward", "-f", "json"))
    left = {item["fqn"].split()[0]: item["reason"] for item in report["skipped"]}
    assert ids(report) == [] and left["HK008"] == "not judged: skipped by --no-backward"
    [report] = reports(cli("check", "parts.py:Unused", *IN, "--meta", "--max-params", "1K", "-f", "json"))
    assert ids(report) == ["HK008", "HK022", "HK006"] and report["meta"]["device"] == "meta"
    assert report["meta"]["checks"] == [f"HK{n:03}" for n in (1, 6, 7, 8, 19, 22, 30, 31, 32)]
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
    assert ran.code == 1 and ran.out.startswith("::error file=parts.py,line=6,title=HK008 no-gradient::")
    assert "| HK008 | error | extra |" in Path("a.md").read_text()
    assert json.loads(Path("b.sarif").read_text())["version"] == "2.1.0" and "<testsuite " in Path("c.xml").read_text()


def test_the_table_fits_80_columns_and_says_why_below(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    out = cli("check", "parts.py:Unused", *IN).out
    assert max(map(len, re.sub("\x1b.*?m", "", out).splitlines())) <= 80
    assert "no gradient reached weight, bias" in out and "HK008: the loss does not depend on it" in out


# The configuration.


def test_plain_check_does_what_the_file_says(cli: Cli) -> None:
    write(
        "[tool.hookcli]\ninput = '4x3x4x4'\nfail-on = 'warning'\nignore = ['HK006']\nthresholds = {HK010 = 0.9}\n"
        "[[tool.hookcli.models]]\nmodel = 'parts.py:Unused'\n"
        "[[tool.hookcli.models]]\nmodel = 'net.py:Net'\nmax-params = '1K'\ninput = '6x3x4x4'\narg = ['width=4']\n"
    )
    ran = cli("check", "-f", "json")
    first, second = reports(ran)
    assert ran.code == 1 and (ids(first), ids(second)) == (["HK008"], [])
    assert (first["meta"]["input"], second["meta"]["input"]) == ("4x3x4x4", "6x3x4x4")
    assert second["meta"]["checks"].count("HK022") == 1 and "HK022" not in first["meta"]["checks"]
    [report] = reports(cli("check", "net.py:Net", "-f", "json", "--input", "8x3x4x4", "--max-params", "100"))
    assert report["meta"]["input"] == "8x3x4x4" and ids(report) == ["HK022"]
    assert report["findings"][0]["threshold"] == 100


def test_a_default_that_was_typed_beats_the_file(cli: Cli) -> None:
    write("[tool.hookcli]\nmodel = 'parts.py:Forgets'\ninput = '8x3x4x4'\nfail-on = 'warning'\nseed = 3\n")
    assert cli("check").code == 1
    ran = cli("check", "--fail-on", "error", "--seed", "0", "-f", "json")
    assert ran.code == 0 and reports(ran)[0]["meta"]["seed"] == 0


def test_what_was_typed_overrules_what_contradicts_it_in_the_file(cli: Cli) -> None:
    write("[tool.hookcli]\nmodel = 'net.py:Net'\ninput = '8x3x4x4'\nrepeat = 2\nmax-activation-memory = '1GiB'\n")
    assert reports(cli("check", "-f", "json"))[0]["meta"]["checks"][-7:-5] == ["HK024", "HK025"]
    assert "HK025" not in reports(cli("check", "--meta", "-f", "json"))[0]["meta"]["checks"]
    assert "HK024" not in reports(cli("check", "--no-backward", "-f", "json"))[0]["meta"]["checks"]


def test_a_budget_among_the_thresholds_is_overruled_too(cli: Cli) -> None:
    write("[tool.hookcli]\nmodel = 'net.py:Net'\ninput = '8x3x4x4'\nthresholds = {max-activation-memory = '1GiB'}\n")
    assert "HK024" in reports(cli("check", "-f", "json"))[0]["meta"]["checks"]
    ran = cli("check", "--no-backward", "-f", "json")
    assert ran.code == 0 and "HK024" not in reports(ran)[0]["meta"]["checks"]
    write("[tool.hookcli]\nmodel = 'net.py:Net'\ninput = '8x3x4x4'\nbackward = false\n")
    ran = cli("check", "--threshold", "HK024=1GiB", "-f", "json")
    assert ran.code == 0 and "HK024" in reports(ran)[0]["meta"]["checks"]


def test_checks_that_were_typed_overrule_the_file(cli: Cli) -> None:
    write("[tool.hookcli]\nmodel = 'net.py:Net'\ninput = '8x3x4x4'\nselect = ['HK012', 'HK003']\n")
    [report] = reports(cli("check", "--ignore", "vanishing-gradients", "-f", "json"))
    assert report["meta"]["checks"] == ["HK003"]
    ran = cli("check", "--ignore", "HK012,HK003")
    assert ran.code == 2 and "--ignore leaves none of what pyproject.toml [tool.hookcli] select names" in ran.err
    assert "unknown --ignore 'HK999'" in cli("check", "--ignore", "HK999").err
    write("[tool.hookcli]\nmodel = 'net.py:Net'\ninput = '8x3x4x4'\nignore = ['HK012', 'HK003']\n")
    assert reports(cli("check", "--select", "HK012", "-f", "json"))[0]["meta"]["checks"] == ["HK012"]


def test_another_file_and_no_section(cli: Cli) -> None:
    Path("ci.toml").write_text("[tool.hookcli]\nmodel = 'net.py:Net'\ninput = '8x3x4x4'\n")
    write("[tool.ruff]\nline-length = 120\n")
    assert "net.py:Net" in cli("check", "--config", "ci.toml").out
    assert cli("check", "net.py:Net", *IN).code == 0


WRONG_FILES = {
    "tool = 3": "pyproject.toml: tool = 3 is no section",
    "[tool.hookcli]\nbackward = false\nthresholds = {HK024 = 5}": "[tool.hookcli]: backward = false and max-",
    "[tool.hookcli": "pyproject.toml: can't be read as TOML: ",
    "[tool.hookcli]\ntreshold = 1": "pyproject.toml [tool.hookcli]: unknown key 'treshold'; did you mean thresholds?",
    "[tool.hookcli]\nmodel = 'a'\nmodels = ['b']": "[tool.hookcli]: has both model and models: leave one",
    "[tool.hookcli]\nmodels = ['a', 'a']": "pyproject.toml [tool.hookcli] models: 'a' is there twice",
    "[tool.hookcli]\nmodels = [3]": "pyproject.toml [tool.hookcli] models: 3 is neither a name nor a table",
    "[tool.hookcli]\nseed = '3'": "pyproject.toml [tool.hookcli] seed = '3': give a whole number",
    "[tool.hookcli]\nbatch-size = 0": "pyproject.toml [tool.hookcli] batch-size = 0: give a whole number from 1",
    "[tool.hookcli]\nmeta = 1": "pyproject.toml [tool.hookcli] meta = 1: give true or false",
    "[tool.hookcli]\nthresholds = {HK012 = 5}": "[tool.hookcli] thresholds: HK012=5: out of range; "
    "HK012 (vanishing-gradients) takes 0 to 1",
    "[tool.hookcli]\nthresholds = {HK112 = 5}": "HK112=5: unknown check 'HK112'; did you mean HK011 or HK012",
    "[tool.hookcli]\nmax-params = 3\nthresholds = {max-params = 5}": "max-params is given twice, once as a threshold",
    "[tool.hookcli]\nthresholds = {max-params = 5, HK022 = 5}": "HK022 is given two thresholds",
    "[tool.hookcli]\nselect = 'HK012'\nignore = 'vanishing-gradients'": "[tool.hookcli]: vanishing-gradients is "
    "both selected and ignored",
    "[tool.hookcli]\nselect = 'HK9'": "[tool.hookcli]: unknown check in select 'HK9'",
    "[tool.hookcli]\nignore = 'HK01x'": "[tool.hookcli]: unknown check in ignore 'HK01x'; did you mean HK010 or HK011",
    "[tool.hookcli]\nselect = 'max-params'": "[tool.hookcli]: HK022 (max-params) has no default: give max-params",
    "[tool.hookcli]\nmax-params = 'lots'": "[tool.hookcli] max-params=lots: give a number, such as 25M",
    "[tool.hookcli]\neval = true": "[tool.hookcli]: unknown key 'eval': write train = false",
    "[tool.hookcli]\nmode = 'eval'": "[tool.hookcli]: unknown key 'mode': write train = true, or train = false",
    "[tool.hookcli]\nmodel = 'net.py:Net'\ndevice = 'no'": "[tool.hookcli]: device no: not available; available: ",
    "[tool.hookcli]\nmodel = 'net.py:Net'\ninput = '2y3'": "[tool.hookcli]: input '2y3': give sizes as in ",
    "[tool.hookcli]\nmodel = 'net.py:Net'\nloss = 'no'": "[tool.hookcli]: unknown loss 'no'; choose from: cross",
    "[tool.hookcli]\nmodels = [{model = 'net.py:Net', fill = 'no'}]": "'net.py:Net': unknown fill 'no'; choose from: ",
    "[tool.hookcli]\nselect = 'HK021'": "select: HK021 (unexpected-output) is selected but can't",
    "[tool.hookcli]\nmeta = true\nrepeat = 2": "[tool.hookcli]: meta and repeat: without values there is "
    "nothing to compare; leave one out",
    "[tool.hookcli]\nbackward = false\nloss = 'sum'": "[tool.hookcli]: backward = false and loss: nothing is",
    "[tool.hookcli]\nfail-on = 'never'": "[tool.hookcli] fail-on: unknown fail-on 'never'",
    "[tool.hookcli]\nexpect-output = 'axb'": "[tool.hookcli] expect-output: 'axb': give a shape",
    "[[tool.hookcli.models]]\nmodel = 'a'\nfail-on = 'error'": "models 'a' fail-on: holds for all models",
    "[[tool.hookcli.models]]\nmodel = 'net.py:Net'\nignor = 'HK01'": "models 'net.py:Net': unknown key 'ignor'; did "
    "you mean ignore?",
}


@pytest.mark.parametrize("text", WRONG_FILES)
def test_a_wrong_file_is_told_with_its_key(cli: Cli, text: str) -> None:
    write(text)
    ran = cli("check")
    assert (ran.code, ran.out) == (2, "") and len(ran.err.splitlines()) == 1 and "Traceback" not in ran.err
    assert ran.err.startswith("hookcli: error: pyproject.toml") and WRONG_FILES[text] in ran.err, ran.err


WRONG_OPTIONS: dict[tuple[str, ...], str] = {
    ("--select", "HK0112"): "unknown --select 'HK0112'; did you mean HK011 or HK012",
    ("--select", "dead-unit"): "unknown --select 'dead-unit'; did you mean dead-units",
    ("--ignore", "everything"): "unknown --ignore 'everything'; `hookcli check --list` lists them",
    ("--ignore", "HK"): "no check is left to run",
    ("--select", "HK021"): "HK021 (unexpected-output) is selected but can't judge: give --expect-output",
    ("--select", "changed"): "HK027 (changed) is selected but can't judge: give --against",
    (
        "--select",
        "HK006,HK01",
        "--no-backward",
    ): "HK006 (never-called) is selected but can't judge: remove --no-back",
    ("--select", "HK012", "--meta"): "HK012 (vanishing-gradients) is selected but can't judge: remove --meta",
    ("--select", "HK022"): "HK022 (max-params) has no default: give --max-params",
    ("--threshold", "HK012"): "--threshold HK012: give ID=FIGURE, as in HK012=1e-6",
    ("--threshold", "HK012=much"): "--threshold HK012=much: give a number, such as 0.0001",
    ("--threshold", "HK010=1.5"): "out of range; HK010 (dead-units) takes 0 to 1",
    ("--threshold", "HK010=nan"): "--threshold HK010=nan: give a number",
    ("--threshold", "HK001=1"): "HK001 (crash) has no threshold",
    ("--max-params", "lots"): "--max-params=lots: give a number, such as 25M",
    ("--max-activation-memory", "5GO"): "give a number, such as 512MiB",
    ("--fail-on", "warnings"): "unknown --fail-on 'warnings'; did you mean warning?",
    ("--expect-output", "2x"): "--expect-output '2x': give a shape such as *x1000",
    ("--meta", "--split-batch"): "--meta and --split-batch: without values there is nothing to compare; leave one out",
    ("--no-backward", "--loss", "sum"): "--no-backward and --loss: nothing is differentiated",
    ("--no-backward", "--max-activation-memory", "1GiB"): "--no-backward and --max-activation-memory",
    ("--device", "meta"): "--device meta: no values to check; --meta runs the checks that need none",
    ("--config", "no.toml"): "--config no.toml: no such file",
    ("--report", "x.jsn"): "--report x.jsn: unknown suffix '.jsn'; did you mean .json",
    ("--report", "no/x.json"): "--report no/x.json: can't write to no/",
    ("--report", "."): "--report .: is a folder",
    ("--no-backward", "--threshold", "HK024=1"): "--no-backward and --max-activation-memory",
    ("--columns", "id"): "--columns: unknown column 'id'",
    ("--repeat", "0"): "--repeat",
}


@pytest.mark.parametrize("argv", WRONG_OPTIONS, ids=" ".join)
def test_a_wrong_option_is_told(cli: Cli, argv: tuple[str, ...]) -> None:
    ran = cli("check", "net.py:Net", *IN, *argv)
    assert (ran.code, ran.out) == (2, "") and len(ran.err.splitlines()) == 1
    assert ran.err.startswith("hookcli: error: ") and WRONG_OPTIONS[argv] in ran.err, ran.err


def test_other_mistakes(cli: Cli) -> None:
    ran = cli("check", "parts.py:Reads", *IN, "--meta")
    assert ran.code == 2 and "remove --meta" in ran.err
    assert "--meta: parts.py:Reads reads values while it runs" in ran.err
    assert "unknown model 'resnt'" in cli("check", "resnt").err
    ran = cli("shapes", "net.py:Net", *IN, "-f", "sarif")
    assert ran.code == 2 and "--format sarif: only for `hookcli check` (" in ran.err
    assert ", junit" not in ran.err.replace("sarif: shows", "")


# What documents them.


def test_every_check_is_listed_and_explained(cli: Cli) -> None:
    rows = {row["check"]: row for row in reports(cli("check", "--list", "-f", "json"))[0]["rows"]}
    for kind in known_checks():
        assert rows[kind.id]["name"] == kind.name and rows[kind.id]["severity"] == kind.severity
        ran = cli("explain", kind.id)
        assert ran.code == 0 and ran.out.startswith(f"{kind.id} {kind.name} ({kind.severity})\n\n")
        assert "Usually means  " in ran.out and "Try            " in ran.out
        assert (f"--ignore {kind.id}" in ran.out) == (kind.id != "HK001")  # a crash is always told
        assert max(map(len, ran.out.splitlines())) <= 100 and len(kind.explanation()) > len(kind.means)
    assert rows["HK012"]["asked_by"] is None and rows["HK026"]["asked_by"] == "--split-batch"


def test_explain_by_name_and_the_nearest(cli: Cli) -> None:
    assert "HK010 dead-units" in cli("explain", "dead-units", "HK011").out
    ran = cli("explain", "HK31")
    assert ran.code == 2 and "unknown check 'HK31'; did you mean" in ran.err


def test_as_a_process_and_mistakes_need_no_torch() -> None:
    command = [sys.executable, "-m", "hookcli", "check", "parts.py:Unused", *IN]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and ran.stderr == "" and ran.stdout.startswith("Check  Severity  Layer  Figure  Finding")
    code = (
        "import sys; from hookcli.cli import main\n"
        "main(['explain', 'HK012']); main(['check', '--list'])\n"
        "assert main(['check', '--select', 'HK99']) == main(['check', '--max-params', 'x']) == 2\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
