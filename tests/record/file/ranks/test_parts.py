"""The files of one run's record, as several processes open them."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from records import HEADER, recorded_step

from hookcli.record.file.ranks.parts import NOTE, RecordFiles, leave_note, noted
from hookcli.record.file.reading import read_record
from hookcli.record.launching.launched import Launched
from hookcli.record.process_recording import ProcessSink


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jsonl"))


def test_one_program_has_one_file(tmp_path: Path) -> None:
    files = RecordFiles.reserve(tmp_path, "train")
    assert files.record.read_bytes() == b"" and files.folder == tmp_path / "train.run"
    writer = files.take(HEADER)
    writer.write(recorded_step(0))
    writer.close()
    assert names(tmp_path) == ["train.run.jsonl"] and len(read_record(files.record).entries) == 1
    assert not files.release() and files.record.exists()


def test_another_program_of_the_run_has_its_own_record(tmp_path: Path) -> None:
    files = RecordFiles.reserve(tmp_path, "train")
    assert [files.take(HEADER).path.name for _ in range(3)] == [f"train{n}.run.jsonl" for n in ("", "-2", "-3")]
    named = RecordFiles.named(str(tmp_path / "a.jsonl"))
    assert [named.take(HEADER).path.name for _ in range(2)] == ["a.jsonl", "a.run.jsonl"]


def test_ranks_leave_a_folder_alone(tmp_path: Path) -> None:
    files = RecordFiles.reserve(tmp_path, "train")
    for rank in (1, 0, 10, 2):
        files.rank(rank, HEADER).close()
    assert names(tmp_path) == [f"train.run/rank{rank}.jsonl" for rank in (0, 1, 10, 2)]
    assert [path.stem for path in files.parts()] == ["rank0", "rank1", "rank2", "rank10"]
    assert RecordFiles.reserve(tmp_path, "train").record.name == "train-2.run.jsonl"
    files.child(1, HEADER).close()
    files.rank(1000, HEADER).close()
    assert [path.stem for path in files.parts()] == ["rank0", "rank1", "rank2", "rank10", "rank1000", "child-1"]


def test_a_child_writes_beside_its_parent(tmp_path: Path) -> None:
    files = RecordFiles.reserve(tmp_path, "train")
    files.take(HEADER).close()
    files.child(4711, HEADER).close()
    assert names(tmp_path) == ["train.run.jsonl", "train.run/child-4711.jsonl"]


def test_a_reserved_file_that_nobody_took_is_deleted(tmp_path: Path) -> None:
    files = RecordFiles.reserve(tmp_path, "train")
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
    files = RecordFiles(tmp_path / "a.jsonl", "first")
    files.rank(1, HEADER).close()
    files.child(4711, HEADER).close()
    (files.folder / "data.jsonl").touch()
    files = replace(RecordFiles.named(str(files.record)), launch="second")
    assert names(tmp_path) == ["a.jsonl", "a/data.jsonl"]
    assert files.rank(1, HEADER).path == tmp_path / "a" / "rank1.jsonl"


def test_a_named_record_deletes_no_folder_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    RecordFiles.named(str(tmp_path / "a.jsonl"))
    assert (tmp_path / "a").is_dir()
    RecordFiles(tmp_path / "b.jsonl", "first").rank(0, HEADER).close()
    RecordFiles.named(str(tmp_path / "b.jsonl"))
    assert not (tmp_path / "b").exists()


def test_an_empty_file_is_of_the_run_that_has_reserved_it(tmp_path: Path) -> None:
    """A command has picked the same name, and keeps it free for whoever comes first."""
    command = replace(RecordFiles(tmp_path / "a.run.jsonl"), launch="command")
    script = replace(RecordFiles.reserve(tmp_path, "a"), launch="script")
    assert command.rank(0, HEADER).path == tmp_path / "a-2.run" / "rank0.jsonl" and not command.release()
    assert replace(command, launch="another").take(HEADER).path.name == "a-3.run.jsonl"
    assert script.rank(0, HEADER).path == tmp_path / "a.run" / "rank0.jsonl"
    assert names(tmp_path) == ["a-2.run/rank0.jsonl", "a-3.run.jsonl", "a.run/rank0.jsonl"]


@pytest.mark.parametrize("links", [True, False])
def test_a_note_is_there_whole_or_not_at_all(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(number, os.strerror(number))

    def left() -> list[str]:
        return [path.name for path in tmp_path.iterdir()]

    number = errno.ENOSPC
    for name in ("write_text", "hardlink_to"):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
            patch.setattr(Path, name, refuse)
            leave_note(tmp_path, "first")
        assert left() == [] and noted(tmp_path) is None
    number = errno.EPERM
    with monkeypatch.context() as patch:
        if not links:
            patch.setattr(Path, "hardlink_to", refuse)
        leave_note(tmp_path, "first")
    with pytest.raises(FileExistsError):
        leave_note(tmp_path, "second")
    assert left() == [NOTE] and noted(tmp_path) == "first"


def test_an_unfinished_note_is_of_no_launch(tmp_path: Path) -> None:
    (tmp_path / "a.run").mkdir()
    (tmp_path / "a.run" / NOTE).touch()
    (tmp_path / "a-2.run.jsonl").write_text(json.dumps(HEADER.to_dict()))  # of `watch`, which is of no launch
    assert RecordFiles(tmp_path / "a.run.jsonl", "first").rank(0, HEADER).path.parent.name == "a-3.run"


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
    files = RecordFiles.reserve(tmp_path, "a")
    first, second, program = (replace(files, launch=launch) for launch in ("first", "second", "program"))
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
    assert [one.of_launch() for one in (program, replace(files, launch="none"))] == [
        RecordFiles(tmp_path / "a-3.run.jsonl", "program"),
        None,
    ]


def test_a_rank_that_is_quicker_by_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It claims the folder, and leaves its part, right after this rank has looked for the note."""
    first, second = (RecordFiles(tmp_path / "train.run.jsonl", "ranks") for _ in range(2))

    def looked_up_just_before(folder: Path) -> str | None:
        found = noted(folder)
        monkeypatch.undo()
        first.rank(0, HEADER).close()
        return found

    monkeypatch.setattr("hookcli.record.file.ranks.parts.noted", looked_up_just_before)
    second.rank(1, HEADER).close()
    assert names(tmp_path) == ["train.run/rank0.jsonl", "train.run/rank1.jsonl"]


def test_a_child_that_is_before_its_program(tmp_path: Path) -> None:
    files = RecordFiles.reserve(tmp_path, "a")
    replace(files, launch="first").take(HEADER).close()
    second = replace(files, launch="second")
    second.child(12, HEADER).close()
    assert second.take(HEADER).path.name == "a-2.run.jsonl" and names(tmp_path) == [
        "a-2.run.jsonl",
        "a-2.run/child-12.jsonl",
        "a.run.jsonl",
    ]


def _take(files: RecordFiles, start: Any, told: Any) -> None:
    start.wait()
    told.put(files.take(HEADER).path.name)


@pytest.mark.sweep
def test_of_several_programs_at_once_one_takes_the_file(tmp_path: Path) -> None:
    context = get_context("fork")
    files, start, told = RecordFiles.reserve(tmp_path, "train"), context.Event(), context.Queue()
    processes = [context.Process(target=_take, args=(files, start, told)) for _ in range(6)]
    for process in processes:
        process.start()
    start.set()
    found = [told.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    assert sorted(found) == sorted(["train.run.jsonl", *(f"train-{n}.run.jsonl" for n in range(2, 7))])


def test_an_empty_file_that_nobody_has_reserved_is_anothers(tmp_path: Path) -> None:
    (tmp_path / "train.run.jsonl").write_text("")
    assert RecordFiles(tmp_path / "train.run.jsonl").take(HEADER).path.name == "train-2.run.jsonl"
    assert (tmp_path / "train.run.jsonl").read_bytes() == b""
