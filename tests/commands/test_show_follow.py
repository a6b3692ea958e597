"""hookcli show --follow: a record while it is written."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import forks
import pytest
from commands.shown import on_terminal
from records import HEADER, RUN, bad, end, ran, recorded_step, save, text


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a record, as the working directory."""
    monkeypatch.chdir(tmp_path)
    return save(tmp_path / "train.run.jsonl", RUN)


# While it is written.


def following(*argv: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hookcli", "show", *argv, "--follow"]
    return forks.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def append(path: Path, *lines: Any) -> None:
    with path.open("a") as file:
        file.write(text(lines))


@pytest.mark.sweep
def test_a_line_per_step_as_they_come(record: Path) -> None:
    record.unlink()
    process = following(record.name)
    assert process.stdout is not None and process.stderr is not None
    assert "does not exist yet; waiting for it" in process.stderr.readline()
    append(record, HEADER, recorded_step(0))
    assert process.stdout.readline() == "Net  step 0  train  loss 2.000  gradient 13.00  |dw|/|w| 0.001000\n"
    whole = text([recorded_step(100)])
    with record.open("a") as file:  # a line that is written in two parts is shown once, and whole
        file.write(whole[:200])
        file.flush()
        time.sleep(0.6)
        file.write(whole[200:])
    assert process.stdout.readline().startswith("Net  step 100  train")
    append(record, bad(), end())
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and "300 steps of 1 model in 41.2 s, exit code 0" in err
    assert out == "first non-finite value: 12 NaN and 1 Inf in the output of body.1 (Net, step 100)\n"


@pytest.mark.sweep
def test_a_new_run_in_the_same_file_is_followed_from_its_beginning(record: Path) -> None:
    save(record, RUN[:3])
    process = following(record.name, "--phase", "train")
    assert process.stdout is not None
    assert [process.stdout.readline().split()[2] for _ in range(2)] == ["0", "100"]
    save(record, (HEADER, recorded_step(7), recorded_step(8, phase="no_grad"), end()))
    out, _ = process.communicate(timeout=120)
    assert [line.split()[2] for line in out.splitlines()] == ["7"] and process.returncode == 0


def test_ctrl_c_ends_it_as_it_ends_tail(record: Path) -> None:
    save(record, RUN[:2])
    process = following(record.name)
    assert process.stdout is not None and process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130 and err.splitlines()[-1] == "hookcli: interrupted" and "Traceback" not in err


def test_a_reader_that_has_seen_enough(record: Path) -> None:
    save(record, RUN[:2])
    process = following(record.name)
    assert process.stdout is not None and process.stderr is not None and process.stdout.readline()
    process.stdout.close()
    append(record, recorded_step(1))
    assert process.wait(timeout=120) == 0 and process.stderr.read() == ""
    process.stderr.close()


def test_a_writer_that_died_is_noticed_and_waited_for(record: Path) -> None:
    save(record, RUN[:2])
    written = time.time() - 200
    os.utime(record, (written, written))
    process = following(record.name)
    assert process.stderr is not None
    said = re.search(r"the last line came (\d+) min (\d+) s ago, without an end; waiting", process.stderr.readline())
    assert said and 200 <= 60 * int(said[1]) + int(said[2]) <= round(time.time() - written)
    append(record, end())
    process.communicate(timeout=120)
    assert process.returncode == 0


def test_on_a_terminal_the_table_is_the_latest(record: Path) -> None:
    found = on_terminal(80, "show", record.name, "--follow", NO_COLOR="1")
    assert "Net · step 200 · loss" in found and "\x1b[31m" not in found
    charts = on_terminal(80, "show", record.name, "--follow", "--over-time", "body.0", NO_COLOR="1")
    assert "Std of the output" in charts


@pytest.mark.sweep
def test_a_record_of_two_models_in_a_pipe(record: Path) -> None:
    other = replace(recorded_step(0), model="Other")
    save(record, (HEADER, recorded_step(0), other, end([ran(), ran("Other")])))
    out, _ = following(record.name, "--model", "Other").communicate(timeout=120)
    assert [line.split()[0] for line in out.splitlines()] == ["Other"]
