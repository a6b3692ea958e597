"""Records that are damaged, half written, or none at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import HEADER, RUN, bad, end, recorded_step, same, save, text

from hookcli.errors import UsageError
from hookcli.record.file.ranks.ranked_record import read_ranks
from hookcli.record.file.reading import read_record
from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.file.tail import Tail
from hookcli.record.file.views.query import Query
from hookcli.record.file.writer import RecordWriter


def test_the_last_step_of_each_model_and_phase(tmp_path: Path) -> None:
    record = read_record(save(tmp_path / "a.jsonl", RUN))
    assert same(record.last(), [RUN[4], RUN[3]])
    assert record.damage() is None


@pytest.mark.parametrize("cut", [1, 50, 200])
def test_a_last_line_that_was_cut_is_no_damage(tmp_path: Path, cut: int) -> None:
    """As `kill -9` or a full disk leaves it."""
    path = tmp_path / "a.jsonl"
    for lines, step, said in ((RUN, 200, ""), (RUN[:-1], 100, ": step 200 is incomplete")):
        path.write_text(text(lines[:-1]) + text(lines[-1:])[:-1][:-cut])
        record = read_record(path)
        assert record.end is None and record.entries[-1].step == step and record.damaged == []
        why = "killed, disk full, or still being written"
        assert record.damage() == f"the last line is cut ({why}){said}"
    path.write_text(text(RUN[:2]) + text(RUN[2:3])[: -1 - cut] + "\n" + text(RUN[3:]))
    assert read_record(path).damage() == "1 of 6 lines is damaged and left out: 3"


def test_a_record_that_was_cut_in_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(text(RUN)[:30])
    with pytest.raises(UsageError, match=r"its first line is cut .* nothing has been recorded"):
        read_record(tmp_path / "a.jsonl")


def test_a_last_line_without_its_end_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text(RUN).rstrip("\n"))
    found = read_record(path).end
    assert found is not None and same([found], [end()])


NOT_WHOLE = {
    "not JSON": b"{oops\n",
    "bytes": b"\x00\xff\xfe\x80\n",
    "not an object": b"[1, 2]\n",
    "a number": b"3\n",
    "no kind": b"{}\n",
    "unknown kind": b'{"line": "poem"}\n',
    "no fields": b'{"line": "step", "model": "Net"}\n',
    "wrong fields": b'{"line": "step", "model": "Net", "phase": "train", "step": "two", "forward": 0}\n',
    "half a header": b'{"line": "run", "name": "train.py", "schema": 1}\n',
    "odd schema": b'{"line": "run", "name": "train.py", "schema": "x"}\n',
    "deep": b"[" * 100_000 + b"\n",
    "half an end": b'{"line": "end", "exit_code": 0}\n',
}


@pytest.mark.parametrize("damage", NOT_WHOLE.values(), ids=NOT_WHOLE)
def test_damage_in_the_middle_costs_its_lines_alone(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(text(RUN[:2]).encode() + damage + b"\n" + text(RUN[2:]).encode())
    record = read_record(path)
    assert record.damaged == [3] and record.header == HEADER and record.end is not None and len(record.entries) == 4
    assert same(record.steps(record.entries), [line for line in RUN if isinstance(line, RecordedStep)])


def test_a_step_whose_reports_are_damaged_is_counted_when_it_is_read(tmp_path: Path) -> None:
    broken = recorded_step(300).to_dict()
    broken["reports"][0].pop("columns")
    path = tmp_path / "a.jsonl"
    path.write_text(text(RUN[:2]) + json.dumps(broken) + "\n")
    record = read_record(path)
    assert [w.step for w in record.steps(record.entries)] == [0]
    assert record.damage() == "1 of 3 lines is damaged and left out: 3"


@pytest.mark.parametrize("probe", ["activations", "grads", "updates"])
def test_a_step_that_lacks_the_rows_of_a_probe_is_whole_on_each_rank_and_merged(tmp_path: Path, probe: str) -> None:
    """As the one at which `--first-bad stop` ends a program: no gradient has come yet."""
    step = recorded_step(100, complete=False)
    step = replace(step, reports=[replace(r, rows=[] if r.probe == probe else r.rows) for r in step.reports])
    for rank in range(2):
        lines = (replace(HEADER, rank=rank, ranks=2), recorded_step(0), step, bad(100))
        writer = RecordWriter(tmp_path / f"rank{rank}.jsonl")
        for line in lines:
            writer.write(line)
        writer.close()
    ranked = read_ranks(tmp_path)
    alone = list(ranked.parts[0].steps(ranked.parts[0].entries))
    assert [len(report.rows) for report in alone[1].reports] == [len(report.rows) for report in step.reports]
    merged = list(ranked.steps(ranked.entries))
    assert [w.step for w in merged] == [0, 100] and ranked.damage() is None


def test_a_fault_of_hookcli_is_no_damage(tmp_path: Path) -> None:
    def keep(row: Mapping[str, Any]) -> bool:
        raise KeyError("ours")

    record = read_record(save(tmp_path / "a.jsonl", RUN))
    with pytest.raises(KeyError, match="ours"):
        list(record.steps(record.entries, keep))
    assert record.damaged == []


def test_many_damaged_lines_are_named_in_part(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text(RUN[:1]) + "x\n" * 1500)
    said = read_record(path).damage()
    assert said == "1,500 of 1,501 lines are damaged and left out: 2, 3, 4, 5, 6 and 1,495 more"


def test_steps_without_a_header(tmp_path: Path) -> None:
    record = read_record(save(tmp_path / "a.jsonl", RUN[1:]))
    assert record.header is None and len(record.entries) == 4 and record.damaged == []


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.jsonl", b"", "is empty: nothing has been recorded"),
        ("train.py", b"import torch\n", "`hookcli run "),
        ("model.pt", b"PK\x03\x04\x00\n\x80\x02", "not a record, or damaged: none of its lines"),
        ("new.jsonl", b'{"line": "run", "schema": 99}\n', "schema 99 is of a newer hookcli; this one knows 3"),
    ],
)
def test_what_is_no_record(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError, match="(?s)" + said) as error:
        read_record(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_no_file_a_folder_a_device(tmp_path: Path) -> None:
    for path, said in (
        (tmp_path / "none", "no such file"),
        (tmp_path, "is a folder"),
        (Path("/dev/null"), "not a file"),
    ):
        with pytest.raises(UsageError, match=said):
            read_record(path)


def test_a_tail_takes_lines_when_they_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    tail = Tail(path)
    assert not tail.poll() and tail.changed() is None
    first, second = text(RUN[:2]).splitlines(keepends=True)
    with path.open("w") as file:
        for part in (first, second[:300], second[300:-1]):
            file.write(part)
            file.flush()
            assert tail.poll() == (part is first)
        file.write("\n")
        file.flush()
        assert tail.poll() and not tail.poll()
    assert tail.record.damaged == [] and same(tail.record.steps(tail.record.entries), [RUN[1]])
    tail.close()


@pytest.mark.parametrize("by", ["emptying", "another file"])
def test_a_tail_goes_on_with_a_new_run(tmp_path: Path, by: str) -> None:
    path = save(tmp_path / "a.jsonl", RUN)
    tail = Tail(path)
    assert tail.poll() and tail.record.end is not None
    if by == "emptying":
        save(path, RUN[:2])
    else:
        save(tmp_path / "b.jsonl", [HEADER, recorded_step(5), bad()]).replace(path)
    assert tail.poll() and tail.record.end is None and len(tail.record.entries) == 1
    path.unlink()
    assert not tail.poll() and len(tail.record.entries) == 1  # what is deleted can still be read
    tail.close()


def test_a_step_with_a_non_finite_value_is_shown_though_it_is_incomplete(tmp_path: Path) -> None:
    """`--first-bad stop` ends a program there; other incomplete steps come after whole ones."""
    lines = (
        HEADER,
        recorded_step(0),
        recorded_step(100, complete=False),
        bad(100),
        recorded_step(200, complete=False),
        end(),
    )
    record = read_record(save(tmp_path / "run.jsonl", lines))
    assert [recorded.step for recorded in record.last()] == [100]
    (chart,) = Query(over_time=".").within(record).reports()
    assert [row["step"] for row in chart.rows] == [0, 100] and [s.fqn for s in chart.skipped] == ["Net, step 200"]
