"""The files of one run's record, as several processes open them."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from records import HEADER, recorded_step

from hookcli.record.file.ranks.parts import RecordFiles
from hookcli.record.file.reading import read_record
from hookcli.record.launching.launched import VARIABLE, Launched
from hookcli.record.process_sink import ProcessSink


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jsonl"))


def test_one_program_has_one_file(tmp_path: Path) -> None:
    files = RecordFiles.reserved(tmp_path, "train")
    assert files.record.read_bytes() == b"" and files.folder == tmp_path / "train.run"
    writer = files.take(HEADER)
    writer.write(recorded_step(0))
    writer.close()
    assert names(tmp_path) == ["train.run.jsonl"] and len(read_record(files.record).entries) == 1
    assert not files.release() and files.record.exists()


def test_another_program_of_the_run_has_its_own_record(tmp_path: Path) -> None:
    files = RecordFiles.reserved(tmp_path, "train")
    assert [files.take(HEADER).path.name for _ in range(3)] == [f"train{n}.run.jsonl" for n in ("", "-2", "-3")]
    named = RecordFiles.named(str(tmp_path / "a.jsonl"))
    assert [named.take(HEADER).path.name for _ in range(2)] == ["a.jsonl", "a.run.jsonl"]


def test_ranks_leave_a_folder_alone(tmp_path: Path) -> None:
    files = RecordFiles.reserved(tmp_path, "train")
    for rank in (1, 0, 10, 2):
        files.rank(rank, HEADER).close()
    assert names(tmp_path) == [f"train.run/rank{rank}.jsonl" for rank in (0, 1, 10, 2)]
    assert [path.stem for path in files.parts()] == ["rank0", "rank1", "rank2", "rank10"]
    assert RecordFiles.reserved(tmp_path, "train").record.name == "train-2.run.jsonl"


def test_a_child_writes_beside_its_parent(tmp_path: Path) -> None:
    files = RecordFiles.reserved(tmp_path, "train")
    files.take(HEADER).close()
    files.child(4711, HEADER).close()
    assert names(tmp_path) == ["train.run.jsonl", "train.run/child-4711.jsonl"]


def test_a_reserved_file_that_nobody_took_is_deleted(tmp_path: Path) -> None:
    files = RecordFiles.reserved(tmp_path, "train")
    assert files.release() and names(tmp_path) == [] and not files.release()
    assert names(tmp_path) == []


@pytest.mark.parametrize(("path", "folder"), [("a.jsonl", "a"), ("run", "run.parts"), ("b/c.run.jsonl", "b/c.run")])
def test_the_folder_of_a_named_record(path: str, folder: str, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    assert RecordFiles.named(str(tmp_path / path)).folder == tmp_path / folder


def test_a_named_record_replaces_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("old\n")
    assert RecordFiles.named(str(path)).record.read_bytes() == b""
    with pytest.raises(OSError, match="No space left"):
        RecordFiles.named("/dev/full")
    with pytest.raises(FileNotFoundError):
        RecordFiles.named(str(tmp_path / "no" / "a.jsonl"))
    RecordFiles.named("/dev/null").take(HEADER).remove()
    assert Path("/dev/null").exists()


def test_a_named_record_has_no_parts_of_an_earlier_run(tmp_path: Path) -> None:
    files = RecordFiles(tmp_path / "a.jsonl")
    files.rank(1, HEADER).close()
    files.child(4711, HEADER).close()
    (files.folder / "data.jsonl").touch()
    RecordFiles.named(str(files.record))
    assert names(tmp_path) == ["a.jsonl", "a/data.jsonl"]


def test_no_process_replaces_the_part_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*, child: bool = False) -> str:
        sink = ProcessSink(run, child=child)
        writer = sink.open()
        writer.close()
        return str(writer.path.relative_to(tmp_path))

    run = Launched(os.getpid(), str(tmp_path / "a.run.jsonl"), True, "a.py", ["a.py"], {"every": 1})
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    child = f"a.run/child-{os.getpid()}"
    assert [opened(child=True) for _ in range(2)] == [f"{child}.jsonl", f"{child}-2.jsonl"]
    assert [opened() for _ in range(3)] == [f"a{number}.run/rank1.jsonl" for number in ("", "-2", "-3")]
    header = read_record(tmp_path / "a-2.run" / "rank1.jsonl").header
    assert header is not None and (header.rank, header.ranks) == (1, 2)
    RecordFiles.named(run.record)
    assert not (tmp_path / "a.run").exists()


def test_launches_share_no_folder(tmp_path: Path) -> None:
    """A rank of the first launch died before its first step; and the second launch's ranks have children."""
    record = RecordFiles.reserved(tmp_path, "a").record
    first, second, program = (RecordFiles(record, launch) for launch in ("first", "second", "program"))
    first.rank(1, HEADER).close()
    for rank in (0, 1):
        second.rank(rank, HEADER).close()
    second.child(47, HEADER).close()
    first.child(11, HEADER).close()
    program.take(HEADER).close()
    program.child(12, HEADER).close()
    found = {path: read_record(tmp_path / path).header for path in names(tmp_path)}
    assert {path: header and header.launch for path, header in found.items()} == {
        **dict.fromkeys(("a.run/child-11.jsonl", "a.run/rank1.jsonl"), "first"),
        **dict.fromkeys(("a-2.run/child-47.jsonl", "a-2.run/rank0.jsonl", "a-2.run/rank1.jsonl"), "second"),
        **dict.fromkeys(("a-3.run.jsonl", "a-3.run/child-12.jsonl"), "program"),
    }
    assert [files.of_launch() for files in (program, RecordFiles(record, "none"))] == [
        RecordFiles(tmp_path / "a-3.run.jsonl", "program"),
        None,
    ]


def test_a_child_that_is_before_its_program(tmp_path: Path) -> None:
    record = RecordFiles.reserved(tmp_path, "a").record
    RecordFiles(record, "first").take(HEADER).close()
    second = RecordFiles(record, "second")
    second.child(12, HEADER).close()
    assert second.take(HEADER).path.name == "a-2.run.jsonl" and names(tmp_path) == [
        "a-2.run.jsonl",
        "a-2.run/child-12.jsonl",
        "a.run.jsonl",
    ]


def test_the_launch_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Launched(1, "a.run.jsonl", False, "a.py", ["a.py"], {})
    monkeypatch.setenv(VARIABLE, "")
    program = run.joined()
    assert program.launch.endswith(f" {os.getpid()}") and json.loads(os.environ[VARIABLE])["launch"] == program.launch
    assert program.joined() is program
    monkeypatch.setattr(sys, "orig_argv", ["python", "-c", "from multiprocessing.spawn import spawn_main; ..."])
    child = replace(run, launch="of its parent")
    assert child.joined() is child and run.joined().launch.endswith(f" {os.getppid()}")
    monkeypatch.undo()
    ranks = []
    for rank, launcher in ((0, "x"), (1, "x"), (0, "y")):
        values = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2, VARIABLE: ""}
        file = f"/tmp/{launcher}/attempt_0/{rank}/error.json"
        for name, value in (values | {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_ERROR_FILE": file}).items():
            monkeypatch.setenv(name, str(value))
        ranks.append(program.joined())
        assert ranks[-1].joined() is ranks[-1]  # in a program that the rank has started
    assert ranks[0] == ranks[1] != ranks[2]


def _take(files: RecordFiles, start: Any, told: Any) -> None:
    start.wait()
    told.put(files.take(HEADER).path.name)


def test_of_several_programs_at_once_one_takes_the_file(tmp_path: Path) -> None:
    context = get_context("fork")
    files, start, told = RecordFiles.reserved(tmp_path, "train"), context.Event(), context.Queue()
    processes = [context.Process(target=_take, args=(files, start, told)) for _ in range(6)]
    for process in processes:
        process.start()
    start.set()
    found = [told.get(timeout=30) for _ in processes]
    for process in processes:
        process.join()
    assert sorted(found) == sorted(["train.run.jsonl", *(f"train-{n}.run.jsonl" for n in range(2, 7))])
