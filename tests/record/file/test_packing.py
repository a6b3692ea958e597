"""Packed reports: all that a step holds comes back, figures to nine digits, and names are written once."""

from __future__ import annotations

import json
import math
import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import HEADER, activation, end, recorded_step
from support import swept

from hookcli.record.file.packing import Packer, unpack, unpack_layout
from hookcli.record.file.reading import Record, read_record
from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.file.writer import RecordWriter
from hookcli.table import Column, Report, Row, TensorStats
from hookcli.table.histogram import Histogram

HIST = Histogram(-3, (1, 2), (0, 5), (0, 0, 1, 0))
OLD = Path(__file__).parent / "data" / "schema1.run.jsonl"
"""A record as hookcli wrote it before reports were packed."""


def there_and_back(*steps: list[Report]) -> list[list[Report]]:
    packer, layouts, found = Packer(), {}, []
    for reports in steps:
        new, text = packer.pack(reports)
        layouts |= {number: unpack_layout(layout) for number, layout in new.items()}
        found.append([Report.from_dict(data) for data in unpack(text, layouts.__getitem__)])
    return found


def written(path: Path, *steps: RecordedStep) -> Record:
    writer = RecordWriter(path)
    for line in (HEADER, *steps, end()):
        writer.write(line)
    writer.close()
    return read_record(path)


def assert_alike(a: Any, b: Any, digits: float) -> None:
    """Equal in everything but the last digits of floats, also in the order of keys."""
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_alike(a[key], b[key], digits)
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_alike(one, other, digits)
    elif isinstance(a, float):
        assert type(b) is float and (a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= digits * abs(a)), (
            a,
            b,
        )
    else:
        assert (a, type(a)) == (b, type(b))


def any_float() -> float:
    odd = (0.0, -0.0, math.nan, math.inf, -math.inf, 1e-307, 1.7e308, 1e-300, 3.4e38, 1.0)
    return random.choice(odd) if random.random() < 0.3 else random.gauss(0, 1) * 10.0 ** random.randint(-300, 300)


def any_stats() -> TensorStats:
    counts = {name: random.choice((0, 1, 2**62)) for name in ("zeros", "nan", "inf")}
    return TensorStats(
        random.randint(0, 2**40), *(any_float() for _ in range(5)), **counts, hist=random.choice((None, HIST))
    )


def any_report(dtype: str) -> Report:
    """Rows of several kinds, with and without statistics, with columns of floats, of None and of both."""
    rows = []
    for number in range(random.randint(0, 12)):
        values = {"fqn": f"body.{number}", "type": "Linear", "shape": [random.randint(1, 9), 3], "dtype": dtype}
        values |= {"weight": any_float(), "ratio": random.choice((None, any_float()))}
        values |= random.choice(({}, {"sharded": True}, {"kind": "output"}))
        rows.append(Row(values, random.choice((None, any_stats()))))
    return Report("grads", "Net", (Column("nan", "NaN"),), rows, {"step": random.randint(0, 9)}, {"l2": any_float()})


@pytest.mark.sweep
@pytest.mark.parametrize(("dtype", "digits"), [("float32", 4e-9), swept("bfloat16", 4e-9), swept("float64", 0.0)])
def test_whatever_rows_hold_comes_back(dtype: str, digits: float) -> None:
    random.seed(7)
    steps = [[any_report(dtype) for _ in range(3)] for _ in range(40)]
    for given, found in zip(steps, there_and_back(*steps), strict=True):
        for one, other in zip(given, found, strict=True):
            assert_alike(one.to_dict(), other.to_dict(), digits)


def test_float32_figures_are_exact() -> None:
    random.seed(3)
    values = [
        struct.unpack("f", struct.pack("f", random.gauss(0, 1) * 2.0 ** random.randint(-120, 120)))[0]
        for _ in range(500)
    ]
    rows = [Row({"fqn": str(i), "update": value}) for i, value in enumerate(values)]
    ((found,),) = there_and_back([Report("updates", "Net", (), rows)])
    assert [row["update"] for row in found.rows] == values


def test_names_and_titles_are_written_once(tmp_path: Path) -> None:
    record = written(tmp_path / "a.jsonl", *(recorded_step(step, std=0.1 + step) for step in range(20)))
    lines = [json.loads(line) for line in record.path.read_text().splitlines()]
    assert [line["line"] for line in lines] == ["run", *["layout"] * 3, *["step"] * 20, "end"]
    packed = [len(json.dumps(line)) for line in lines if line["line"] == "step"]
    assert max(packed) * 5 < len(json.dumps(recorded_step(1).to_dict()))


def test_what_differs_from_the_layout_is_in_the_step(tmp_path: Path) -> None:
    """Another batch size, a module that is not called, one with another dtype."""
    first, second = recorded_step(0), recorded_step(1)
    rows = [replace(row, values={**row.values, "shape": [2, 16], "dtype": "float16"}) for row in second.reports[0].rows]
    third = recorded_step(2)
    fewer = replace(third.reports[0], rows=third.reports[0].rows[1:])
    steps = [first, replace(second, reports=(replace(second.reports[0], rows=rows), *second.reports[1:]))]
    steps.append(replace(third, reports=(fewer, *third.reports[1:])))
    record = written(tmp_path / "a.jsonl", *steps)
    for given, found in zip(steps, record.steps(record.entries), strict=True):
        for one, other in zip(given.reports, found.reports, strict=True):
            assert_alike(one.to_dict(), other.to_dict(), 2e-9)
    assert sum('"layout"' in line for line in record.path.read_text().splitlines()) == 4


def of_expert(number: int) -> RecordedStep:
    """A step that only one of 50 experts takes part in, in turn."""
    rows = [activation(f"expert.{number % 50}", "Linear", TensorStats(8, 0.5, float(number), -1.0, 1.0, 2.0))]
    return RecordedStep("Net", "no_grad", number, [Report("activations", "Net", (), rows)])


def test_many_layouts_in_turn_are_each_written_once(tmp_path: Path) -> None:
    record = written(tmp_path / "a.jsonl", *map(of_expert, range(120)))
    assert sum('"layout"' in line for line in record.path.read_text().splitlines()) == 50


def test_a_model_of_many_paths_defines_layouts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookcli.record.file.packing._ROWS", 40)
    record = written(tmp_path / "a.jsonl", *map(of_expert, range(120)))
    assert sum('"layout"' in line for line in record.path.read_text().splitlines()) == 120
    found = list(record.steps(record.entries))
    assert [(w.reports[0].rows[0].fqn, w.reports[0].rows[0]["std"]) for w in found] == [
        (f"expert.{number % 50}", float(number)) for number in range(120)
    ]
    assert not record.damaged


def test_a_layout_whose_line_failed_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RecordWriter(tmp_path / "a.jsonl")
    writer.write(HEADER)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr("os.write", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        writer.write(recorded_step(0))
    writer.write(recorded_step(1))
    record = read_record(writer.path)
    assert [w.step for w in record.steps(record.entries)] == [1] and not record.damaged


def test_an_old_record_is_read() -> None:
    record = read_record(OLD)
    assert record.header is not None and record.header.schema == 1 and record.damage() is None
    steps = list(record.steps(record.entries))
    assert [(w.phase, w.step) for w in steps] == [
        ("train", 0),
        ("no_grad", 1),
        ("train", 1),
        ("no_grad", 2),
        ("train", 2),
        ("no_grad", 3),
    ]
    raw = [json.loads(line) for line in OLD.read_text().splitlines()[1:-1]]
    assert [w.to_dict()["reports"] for w in steps] == [line["reports"] for line in raw]
    assert [w.losses for w in steps] == [line["losses"] for line in raw]
    last = steps[-1].reports[0].rows[0]
    assert last["nan"] == 6 and math.isnan(last["mean"])


def test_an_old_record_and_a_packed_one_hold_the_same(tmp_path: Path) -> None:
    old = read_record(OLD)
    steps = list(old.steps(old.entries))
    packed = written(tmp_path / "a.jsonl", *steps)
    assert packed.path.stat().st_size * 3 < OLD.stat().st_size
    for one, other in zip(steps, packed.steps(packed.entries), strict=True):
        assert_alike(one.to_dict(), other.to_dict(), 2e-9)


@pytest.mark.sweep
@pytest.mark.fuzz
def test_damage_anywhere_is_counted_and_never_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random.seed(11)
    path = tmp_path / "a.jsonl"
    written(path, recorded_step(0), recorded_step(1), recorded_step(2))
    whole = path.read_bytes()
    for _ in range(150):
        broken = bytearray(whole)
        for _ in range(random.randint(1, 3)):
            broken[random.randrange(len(broken))] = random.randrange(32, 127)
        path.write_bytes(broken)
        record = read_record(path)
        steps = list(record.steps(record.entries))
        assert len(steps) + len(record.damaged) >= 3 or record.damaged


def test_steps_whose_layout_is_lost_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    written(path, recorded_step(0), recorded_step(1), recorded_step(2, phase="no_grad"))
    lines = path.read_bytes().splitlines(keepends=True)
    kinds = [json.loads(line)["line"] for line in lines]
    assert kinds == ["run", "layout", "layout", "layout", "step", "step", "step", "end"]
    lines[2] = lines[2][:40] + b"\n"  # the gradients'
    path.write_bytes(b"".join(lines))
    record = read_record(path)
    assert [w.step for w in record.steps(record.entries)] == [2]
    assert record.damage() == "3 of 8 lines are damaged and left out: 3, 5, 6"


def test_a_text_that_would_fill_the_memory_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookcli.record.file.packing._LARGEST", 1000)
    record = written(tmp_path / "a.jsonl", recorded_step(0))
    assert list(record.steps(record.entries)) == [] and record.damaged
