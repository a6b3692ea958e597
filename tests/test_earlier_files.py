"""Files that earlier versions wrote are read: shown, compared with each other, and with what is measured today.

`tests/data` has a folder for each version whose files have another form. None of them is written anew.
"""

from __future__ import annotations

import json
import re
import runpy
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import paged
import pytest

from hookcli.record.file.reading import read_record
from hookcli.table import Report

DATA = Path(__file__).parent / "data"
REPORTS = sorted(path.relative_to(DATA).as_posix() for path in DATA.glob("*/*.json") if path.name != "baseline.json")
RECORDS = {"before_v0_1/train.run.jsonl": 2, "v0_1/train.run.jsonl": 3}
OLDEST = Path(__file__).parent / "record" / "file" / "data" / "schema1.run.jsonl"
Cli = Callable[..., Any]


@pytest.fixture(autouse=True)
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in DATA.iterdir():
        shutil.copytree(folder, tmp_path / folder.name)
    shutil.copy(DATA / "v0_1" / "net.py", tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("file", REPORTS)
def test_saved_reports_are_shown_and_compared(cli: Cli, file: str) -> None:
    shown = cli("show", file)
    assert shown.code == 0 and "net.py:net" in shown.out, shown.err
    again = json.loads(cli("show", file, "--format", "json").out)
    written = json.loads(Path(file).read_text())
    for ours, theirs in zip(again["reports"], written["reports"], strict=True):
        for key in ("probe", "model", "rows", "findings"):
            assert ours[key] == theirs[key]
    if "check" not in file:
        ran = cli("diff", file, file)
        assert ran.code == 0 and ran.out.startswith("Equal in every figure"), ran.out + ran.err


@pytest.mark.parametrize("file", ["before_v0_1/activations.json", "v0_1/activations.json", "v0_1/grads.json"])
def test_saved_reports_agree_with_what_is_measured_today(cli: Cli, file: str) -> None:
    ran = cli("diff", file, "net.py:net")
    assert ran.code == 0 and " compared · 0 beyond" in ran.out, ran.out + ran.err


def test_their_figures_are_those_of_the_model() -> None:
    """Against PyTorch in float64."""
    model, x = runpy.run_path("net.py")["net"]()
    outputs = model.double()(x.double())
    for file in ("before_v0_1/activations.json", "v0_1/activations.json"):
        whole = json.loads(Path(file).read_text())["reports"][0]["rows"][0]
        assert whole["fqn"] == "" and whole["shape"] == list(outputs.shape)
        assert whole["mean"] == pytest.approx(outputs.mean().item(), rel=1e-6)
        assert whole["l2"] == pytest.approx(outputs.norm().item(), rel=1e-6)


@pytest.mark.parametrize("file", [str(OLDEST), *RECORDS])
def test_records_are_read_shown_and_made_a_page_of(cli: Cli, file: str) -> None:
    record = read_record(Path(file))
    assert record.header is not None and record.header.schema == RECORDS.get(file, 1) and record.damage() is None
    assert len([*record.steps(record.entries)]) == len(record.entries) > 0
    for words in (("show", file), ("show", file, "--over-time", "."), ("report", file, "-o", "page.html")):
        ran = cli(*words)
        assert ran.code == 0, ran.err
    assert "|dw|/|w|" in cli("show", file).out


def test_records_of_two_versions_are_compared(cli: Cli) -> None:
    ran = cli("diff", *RECORDS)
    assert ran.code == 0 and ran.out.startswith("all within tolerance: both have loss 0.008294 at step 0"), ran.out


def test_baselines_and_dumps_are_compared_with_today(cli: Cli) -> None:
    ran = cli("check", "net.py:net", "--against", "v0_1/baseline.json")
    assert ran.code == 0 and " checks passed" in ran.out, ran.out + ran.err
    ran = cli("diff", "v0_1/dump", "net.py:net")
    assert ran.code == 0 and "4 compared · 0 beyond" in ran.out, ran.out + ran.err


@pytest.mark.parametrize("file", ["v0_1/activations.json", "v0_1/baseline.json", "v0_1/train.run.jsonl"])
def test_a_file_of_a_newer_version_is_told_as_that(cli: Cli, file: str) -> None:
    text = Path(file).read_text()
    now = '"schema":3' if file.endswith("l") else '"schema": 1'
    assert text.count(now) == 1
    Path(file).write_text(text.replace(now, now[:-1] + "9"))
    words = ("check", "net.py:net", "--against", file) if "baseline" in file else ("show", file)
    ran = cli(*words)
    assert ran.code == 2 and "schema 9 is of a newer hookcli" in ran.err and "upgrade it" in ran.err, ran.err


def test_a_page_says_what_made_it_and_when_and_holds_reports_that_are_read(cli: Cli) -> None:
    """`page.html` is a page without its scripts and styles, which each page has inside."""
    saved = json.loads(Path("v0_1/activations.json").read_text())["reports"]
    assert cli("report", "v0_1/activations.json", "-o", "today.html").code == 0
    for file in ("v0_1/page.html", "today.html"):
        text = Path(file).read_text()
        head, _, _ = text.partition("</head>")
        (made,) = re.findall(r'<meta name="generator" content="hookcli ([^"]+)">', head)
        (created,) = re.findall(r'<meta name="dcterms.created" content="([^"]+)">', head)
        assert made and datetime.fromisoformat(created).tzinfo
        document, _ = paged.data(text)
        reports = [Report.from_dict(one) for one in json.loads(document)["reports"]]
        assert [report.to_dict()["rows"] for report in reports] == [one["rows"] for one in saved]
