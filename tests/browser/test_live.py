"""The page of `hookcli report RECORD --serve` while the record grows, in a browser."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forks
import pytest
from records import HEADER, recorded_step

from hookcli.capabilities.rules.lines import RuleFired
from hookcli.record.file.writer import RecordWriter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.run.jsonl"


@pytest.fixture
def address(path: Path) -> Iterator[str]:
    """Where the record is served; nothing of the server stays behind."""
    command = [sys.executable, "-m", "hookcli", "report", str(path), "--serve"]
    process = forks.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    found = re.search(r"http://\S+", process.stderr.readline())
    yield found[0] if found else ""
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130


def test_charts_follow_the_record(chromium: Any, address: str, path: Path) -> None:
    writer = RecordWriter(path).begun(HEADER)
    for number in (0, 100):
        writer.write(recorded_step(number))
    page = chromium.new_page()
    page.goto(address)
    page.locator(".step-name", has_text="step 100 · 2 of 2").wait_for()
    writer.write(recorded_step(200))
    page.locator(".step-name", has_text="step 200 · 3 of 3").wait_for()
    writer.write(RuleFired("Net", 150, "spike", ["loss"], [54.2]))
    said = "rule spike fired at step 150 (Net): loss 54.2"
    page.locator(".record-head .failure", has_text=said).wait_for()  # and at the recorded step after it, in the charts
    assert said in str(page.locator(".step-charts .chart-plot").first.get_attribute("aria-valuetext"))
    assert page.locator(".step-charts canvas").count() > 1
    assert page.get_by_role("button", name="Reset zoom").count() == 0  # the first steps are not the reader's zoom
    page.close()
    writer.close()
