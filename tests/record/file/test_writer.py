"""A record on disk: whole lines, whatever ends the process or the disk."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import forks
import pytest
from records import HEADER, bad, end, recorded_step, same

from hookcli.record.file.ranks.parts import RecordFiles
from hookcli.record.file.reading import read_record
from hookcli.record.file.writer import RecordWriter

LINES = (HEADER, recorded_step(0), bad(), end())


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "a.jsonl")
    for line in LINES:
        writer.write(line)
    record = read_record(writer.path)
    assert record.header is not None and record.end is not None and record.damaged == []
    assert same([record.header, *record.steps(record.entries), *record.non_finite, record.end], LINES)


def test_each_line_is_one_write_and_nothing_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RecordWriter(tmp_path / "a.jsonl")
    sizes: list[int] = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: sizes.append(len(data)) or write(file, data))
    count = 0
    for line in (*LINES[:2], *LINES[1:]):
        writer.write(line)
        count += 1 if count != 1 else 4  # the first step comes with the layouts of its three reports
        assert len(lines_of(writer.path)) == count
    assert sizes == [len(line) for line in lines_of(writer.path)]


def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    writer = RecordWriter("a.jsonl")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    writer.write(HEADER)
    assert writer.path == tmp_path / "a.jsonl" and len(lines_of(writer.path)) == 1


def test_default_names_count_up_also_when_several_runs_start_at_once(tmp_path: Path) -> None:
    made: list[Path] = []
    starts = [
        threading.Thread(target=lambda: made.append(RecordFiles(tmp_path / "train.run.jsonl").take(HEADER).path))
        for _ in range(8)
    ]
    for start in starts:
        start.start()
    for start in starts:
        start.join()
    names = ["train.run.jsonl", *(f"train-{n}.run.jsonl" for n in range(2, 9))]
    assert sorted(path.name for path in made) == sorted(names)


def test_a_name_that_was_given_replaces_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("old\n" * 100)
    RecordWriter(path).write(HEADER)
    assert read_record(path).header == HEADER and read_record(path).lines == 1
    with pytest.raises(FileExistsError):
        RecordWriter(path, new=True)


def test_a_folder_that_is_not_there_is_the_callers_to_tell(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RecordWriter(tmp_path / "none" / "a.jsonl")


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """No file can grow beyond it: the kernel cuts a write short there and refuses the next, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("left", [0, 1, 100, -1])
def test_a_full_disk_costs_the_lines_that_did_not_fit_and_no_other(tmp_path: Path, left: int) -> None:
    writer = RecordWriter(tmp_path / "a.jsonl")
    writer.write(HEADER)
    if left == -1:
        writer.write(recorded_step(0))  # with its layouts, so that the next step is one line of the same size
    before = writer.path.stat().st_size
    room = left if left >= 0 else len(lines_of(writer.path)[-1]) - 1  # all but the line's end
    with disk_of(before + room):
        for _ in range(2):
            with pytest.raises(OSError, match="File too large"):
                writer.write(recorded_step(0))
    writer.write(recorded_step(100))
    record = read_record(writer.path)
    whole = [0, 0, 100] if left == -1 else [100]
    assert [entry.step for entry in record.entries] == whole
    assert record.damaged == ([2] if left > 0 else [])


def test_a_deleted_folder_is_no_reason_to_fail(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    writer = RecordWriter(folder / "a.jsonl")
    writer.path.unlink()
    folder.rmdir()
    writer.write(HEADER)
    writer.close()
    writer.write(HEADER)  # after the end: dropped


@pytest.mark.parametrize("taken", [True, False])
def test_a_program_that_closes_all_files_keeps_its_own(tmp_path: Path, taken: bool) -> None:
    """Also one that has the number of the record by now."""
    writer = RecordWriter(tmp_path / "a.jsonl")
    writer.write(HEADER)
    assert writer._file is not None
    theirs = os.open(tmp_path / "theirs", os.O_RDWR | os.O_CREAT)
    number = writer._file
    if taken:
        os.dup2(theirs, number)
    else:
        os.close(number)
    with pytest.raises(OSError, match="the program has closed the file"):
        writer.write(recorded_step(0))
    writer.write(recorded_step(1))  # told once
    writer.close()
    if taken:
        assert os.write(number, b"more") == 4
        os.close(number)
    os.close(theirs)
    assert (tmp_path / "theirs").read_bytes() == (b"more" if taken else b"")
    assert read_record(writer.path).lines == 1


def test_arguments_that_are_not_utf8(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "a.jsonl")
    header = type(HEADER)("tr\udce4in.py", ["tr\udce4in.py"], "now", 1, {})
    writer.write(header)
    assert read_record(writer.path).header == header


def run(code: str, *arguments: str) -> subprocess.Popen[str]:
    prefix = "import os, sys; sys.path.insert(0, 'tests')\nfrom records import *\n"
    prefix += "from hookcli.record.file.writer import RecordWriter\n"
    prefix += "writer = RecordWriter(sys.argv[1])\nwriter.write(HEADER)\n"
    return forks.Popen([sys.executable, "-c", prefix + code, *arguments], stdout=subprocess.PIPE, text=True)


@pytest.mark.sweep
def test_killed_in_the_middle_it_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    process = run(
        "for step in range(10**9):\n    writer.write(recorded_step(step))\n    print(step, flush=True)", str(path)
    )
    assert process.stdout is not None
    for _ in range(50):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    record = read_record(path)
    assert [entry.step for entry in record.entries] == list(range(len(record.entries))) and len(record.entries) >= 50
    assert record.damaged in ([], [record.lines])


@pytest.mark.sweep
def test_children_write_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    code = "if os.fork() == 0:\n    writer.write(recorded_step(7)); os._exit(0)\n"
    code += "os.wait(); writer.write(recorded_step(8))\n"
    code += "print(os.get_inheritable(writer._file))"
    process = run(code, str(path))
    assert process.communicate()[0] == "False\n"
    assert [entry.step for entry in read_record(path).entries] == [8]


@pytest.mark.sweep
def test_lines_of_several_threads_do_not_mix(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "a.jsonl")

    def write(first: int) -> None:
        for step in range(first, first + 50):
            writer.write(recorded_step(step))

    work: list[Callable[[], None]] = [lambda first=first: write(first) for first in (0, 50, 100)]  # type: ignore[misc]
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record = read_record(writer.path)
    assert record.damaged == [] and sorted(entry.step for entry in record.entries) == list(range(150))
