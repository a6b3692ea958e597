"""Reports read back from files, and what a file can be instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hookcli.errors import UsageError
from hookcli.report import Column, Report, Row, document
from hookcli.saved import looks_saved, read_reports

REPORT = Report("shapes", "net", (Column("fqn", "Layer"),), [Row({"fqn": "a", "params": 3})], {"torch": "2.15"})


def test_reports_come_back(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(document([REPORT, REPORT])))
    found = read_reports(str(file))
    assert len(found) == 2 and found[0].to_dict() == REPORT.to_dict()


WRONG = {
    "": "damaged, or not a saved report: not JSON",
    '{"schema": 1, "repor': "damaged, or not a saved report: not JSON",
    "\x00": "not JSON",
    "[]": "it has no schema number",
    "{}": "it has no schema number",
    '{"schema": 2, "reports": []}': "schema 2 is of a newer hookcli; this one knows 1: upgrade it",
    '{"schema": 1}': "damaged, or not a report of hookcli (no 'reports')",
    '{"schema": 1, "reports": []}': "holds no report",
    '{"schema": 1, "reports": [{"probe": "shapes"}]}': "damaged, or not a report of hookcli (no 'model')",
    '{"schema": 1, "reports": [3]}': "damaged, or not a report of hookcli",
    '{"schema": 1, "reports": {"a": 3}}': "damaged, or not a report of hookcli",
    "[" * 100_000: "not JSON",
}


@pytest.mark.parametrize("text", WRONG, ids=lambda text: repr(text)[:40])
def test_what_is_wrong_with_a_file_is_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(UsageError) as info:
        read_reports(str(file))
    assert str(file) in str(info.value) and WRONG[text] in str(info.value) and "\n" not in str(info.value)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_reports(str(tmp_path / "no.json"))
    with pytest.raises(UsageError, match="Is a directory"):
        read_reports(str(tmp_path))
    (tmp_path / "b.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not JSON"):
        read_reports(str(tmp_path / "b.json"))


def test_files_are_told_from_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").write_text("")
    Path("net.py").write_text("")
    assert looks_saved("run") and looks_saved("gone.json")
    assert not looks_saved("net.py") and not looks_saved("resnet50") and not looks_saved("net.py:Net")
