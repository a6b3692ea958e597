"""The verdict on a record: that of its steps and that of the whole run, whichever command shows it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from records import HEADER, end, ran, recorded_step, save

from hookcli.checks.judgement import Judgement
from hookcli.commands.show import remarks
from hookcli.record.file.page.record_page import RecordPage
from hookcli.record.file.ranks.ranked_record import open_record
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import Header, RecordedStep, StepLosses
from hookcli.record.file.views.headlines import wrong_lines
from hookcli.record.file.views.outcome import fault
from hookcli.record.file.views.query import Query
from hookcli.reporters.html.page import page
from hookcli.table import Finding

LOST = StepLosses("Net", 0, [1.0, 2.0, math.nan])


def checked(step: RecordedStep) -> RecordedStep:
    """The step, which one check has passed."""
    passed = Judgement([], [], ["HK003"]).report(step.model, {}, modules=5, steps=1)
    return replace(step, reports=[*step.reports, passed])


def record_of(path: Path, header: Header) -> Record:
    return open_record(save(path, [header, checked(recorded_step(2)), LOST, end([ran(no_grad_forwards=0)])]))


@pytest.mark.parametrize("probe", [None, "check"])
@pytest.mark.parametrize(
    ("name", "argv", "script"),
    [
        ("train.py", ("train.py", "--data", "my data"), "train.py --data 'my data'"),
        ("train.py", ("torchrun", "train.py"), "torchrun train.py"),
        ("pkg.train", ("pkg.train", "x.py"), "SCRIPT"),  # python -m
        ("train.py", (), "SCRIPT"),
    ],
)
def test_advice_names_the_script_as_it_was_typed(
    probe: str | None, name: str, argv: tuple[str, ...], script: str, tmp_path: Path
) -> None:
    record = record_of(tmp_path / "x.run.jsonl", replace(HEADER, name=name, argv=argv))
    (verdict,) = (report for report in Query(probe=probe).within(record).reports() if report.probe == "check")
    (finding,) = verdict.findings
    assert (finding.check, finding.message) == ("HK038", "the loss was NaN from step 2 on (1 of 3 steps)")
    assert (
        finding.remedy == verdict.rows[0]["remedy"] == f"`hookcli run --first-bad stop {script}` finds where it begins"
    )
    assert verdict.totals["checks"] > 1 and verdict.totals["of_steps"] == 3


def test_advice_names_the_script_of_ranks(tmp_path: Path) -> None:
    for rank in range(2):
        record_of(tmp_path / f"rank{rank}.jsonl", replace(HEADER, argv=("torchrun", "train.py"), rank=rank, ranks=2))
    (verdict,) = Query(probe="check").within(record := open_record(tmp_path)).reports()
    assert "stop torchrun train.py`" in verdict.findings[0].remedy
    assert fault(record) == "Net: the loss was NaN from step 2 on (1 of 3 steps)" and fault(record, checked=False) == ""


def test_a_verdict_of_each_step_names_the_script(tmp_path: Path) -> None:
    found = Finding(
        "HK003", "error", "body", "its output is NaN", remedy="`hookcli run --first-bad stop SCRIPT` finds it"
    )
    judged = Judgement([found], [], ["HK003"]).report("Net", {}, modules=5, steps=1)
    step = replace(recorded_step(), reports=[*recorded_step().reports, judged])
    record = open_record(save(tmp_path / "x.run.jsonl", [HEADER, step, end()]))
    (verdict,) = (report for report in Query(every_step=True).within(record).each() if report.probe == "check")
    assert verdict.findings[0].remedy == "`hookcli run --first-bad stop train.py --epochs 3` finds it"


def test_a_page_begins_with_the_lines_that_show_begins_with(tmp_path: Path) -> None:
    record = record_of(tmp_path / "x.run.jsonl", HEADER)
    payload = RecordPage(record).payload()
    assert payload["steps"]["faults"] == wrong_lines(record) == remarks(record)[:1]
    said = "Net: the loss was NaN from step 2 on (1 of 3 steps)"
    assert remarks(record)[0] == said and said not in payload["steps"]["notes"]
    assert f"<noscript>\n<p><strong>{said}</strong></p>" in page(payload)  # also where no script runs
