"""Every rank records its part; together they read as the record of one process with the whole batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ranks import RanksError, run_ranks
from record import rank_jobs
from records import HEADER, bad, end, recorded_step, save
from support import equal, swept

from hookcli.record.file.ranks.parts import RecordFiles
from hookcli.record.file.ranks.ranked_record import RankedRecord, read_ranks
from hookcli.record.file.reading import Record, read_record
from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.file.tail import RankedTail
from hookcli.record.file.views.overview import overview
from hookcli.record.file.views.query import Query
from hookcli.record.file.views.ranks_view import rank_remarks, ranks_beside
from hookcli.table import STATS_KEYS, Reason, Report, Row
from hookcli.table.merged_ranks import SUMMED
from hookcli.table.rank_table import DIVIDED

pytestmark = [pytest.mark.xdist_group("ranks"), pytest.mark.usefixtures("rank_pools")]  # one pool of ranks


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The record of one process with the whole batch."""
    path = tmp_path_factory.mktemp("whole") / "train.run.jsonl"
    rank_jobs.recorded(path, 0, 1, lambda: rank_jobs.train(lambda model: model, slice(None)))
    return read_record(path)


def close(found: Row, expected: Row) -> None:
    for key in STATS_KEYS:
        assert found[key] == pytest.approx(expected[key], rel=1e-5, abs=1e-7, nan_ok=True), (found.values, key)


def by_place(report: Report) -> dict[tuple[object, ...], Row]:
    return {(row.fqn, row.get("kind"), row.get("path")): row for row in report.rows}


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        *(("ddp", 2), ("fsdp", 2), ("tp", 2), ("tp_dtensor", 2)),
        *(swept("fsdp_tp", 4), swept("ddp", 4), swept("hsdp", 4)),
    ],
)
def test_merged_ranks_are_one_process_with_the_whole_batch(kind: str, size: int, tmp_path: Path, whole: Record) -> None:
    for seen, plain in run_ranks(size, rank_jobs.in_ranks, str(tmp_path / "train.run"), kind):
        assert equal(seen, plain)
    record = read_ranks(tmp_path / "train.run")
    assert record.ranks == size and record.header and record.header.name == f"train.py on {size} ranks"
    assert [(e.model, e.phase, e.step) for e in record.entries] == [(e.model, e.phase, e.step) for e in whole.entries]
    model = record.entries[0].model
    assert record.losses_of(model) == pytest.approx(whole.losses_of(model), rel=1e-6) and whole.losses_of(model)
    for found, expected in zip(record.steps(record.entries), whole.steps(whole.entries), strict=True):
        assert found.losses == pytest.approx(expected.losses, rel=1e-6)
        assert not any("shard" in note for note in found.notes)
        probes = {report.probe: report for report in expected.reports}
        for report in found.reports:
            if report.probe not in ("time", "replicas"):  # of which one process alone has none
                remarks = {(item.fqn, item.path) for item in report.skipped if item.reason == DIVIDED}
                _compare(report.probe, kind, by_place(report), by_place(probes[report.probe]), remarks)


def _compare(probe: str, kind: str, rows: dict, wanted: dict, remarks: set[tuple[str, str]]) -> None:
    # The gradient of what is the same for every batch is a sum over ranks, of which each has a summand.
    spread = kind in rank_jobs.SPREAD
    left_out = {key for key in wanted if key[:2] == ("positions", "output") and not kind.startswith("tp")}
    assert rows.keys() == wanted.keys() - left_out
    for place, row in rows.items():
        assert "sharded" not in row.values
        if probe in ("updates", "optimizer"):
            for key in ("weight", "update", "ratio", *(("lr", "param_grad") if probe == "optimizer" else ())):
                assert row[key] == pytest.approx(wanted[place][key], rel=1e-5)
        elif place == ("", None, "[1]"):  # the loss that it returns: one number on each rank
            assert row["mean"] == pytest.approx(wanted[place]["mean"], rel=1e-6)
        else:
            whole = wanted[place]["shape"]
            parts = [*whole[:-1], whole[-1] // 2] if spread and place[0].startswith("body") else whole
            assert row["shape"] in (whole, parts), place
            assert row["shape"] == whole or place[::2] in remarks
            if place != ("", "output", "[1]"):
                close(row, wanted[place])


def test_gradients_that_are_summed_later_have_no_norm_yet(tmp_path: Path) -> None:
    """Under sequence parallel each rank has the summand of its part of the sequences."""
    run_ranks(2, rank_jobs.of_sequence, str(tmp_path / "train.run"))
    torch.manual_seed(0)
    alone = tmp_path / "alone.jsonl"
    rank_jobs.recorded(alone, 0, 1, lambda: rank_jobs.normed_step(rank_jobs.Normed(), slice(None)))
    record, whole = read_ranks(tmp_path / "train.run"), read_record(alone)
    (found,), (expected,) = record.steps(record.entries), whole.steps(whole.entries)
    grads, wanted = ({r.fqn: r for r in s.reports[1].rows if r["kind"] == "parameter"} for s in (found, expected))
    assert [s.reports[1].probe for s in (found, expected)] == ["grads"] * 2
    assert wanted.keys() - grads.keys() == {"norm.weight", "norm.bias"}
    for name, row in grads.items():
        close(row, wanted[name])
    said = {item.fqn: item.kind for item in found.reports[1].skipped if item.reason == SUMMED}
    assert said == dict.fromkeys(("norm.weight", "norm.bias"), Reason.SUMMED)
    groups = next(report for report in found.reports if report.probe == "optimizer")
    assert groups.rows[0]["param_grad"] is groups.rows[0]["unclipped_grad"] is None
    assert "the norm of the gradients is unknown" in groups.skipped[-1].reason
    shown = overview(found)
    assert "param_grad" not in shown.totals
    assert [r.fqn for r in shown.rows if r["param_grad"] is not None] == ["up", "down"]


def test_ranks_that_end_at_different_steps_and_the_first_nan(tmp_path: Path) -> None:
    folder = tmp_path / "train.run"
    run_ranks(2, rank_jobs.uneven, str(folder))
    record = read_ranks(folder)
    train = [entry for entry in record.entries if entry.phase == "train"]
    assert [(entry.step, sorted(record.held(entry))) for entry in train] == [(n, [0, 1]) for n in range(3)] + [(3, [1])]
    last = next(step for step in record.last() if step.phase == "train")
    assert last.step == 2 and not any("did not record" in note for note in last.notes)
    [alone] = record.steps(train[-1:])
    assert "rank 0 did not record this step" in alone.notes
    remarks = rank_remarks(record)
    assert "non-finite first on rank 1, rank 0 from step 2" in remarks
    assert "rank 1: exit code 0; last recorded step 3" in remarks
    first = record.non_finite[0]
    assert first.step == 1
    table, step, *_ = ranks_beside(record, Query(step=1, phase="train").within(record), None)
    assert [row["rank"] for row in table.rows] == [0, 1] and table.model.endswith(" on 2 ranks")
    assert [bool(row["non_finite"]) for row in table.rows] == [True, True]
    assert table.rows[1]["deviates"].startswith("the model: NaN here alone") and table.rows[0]["deviates"] is None
    assert {row["rank"] for row in step.rows} == {0, 1}


@pytest.mark.sweep
def test_ranks_that_watch_agree_on_a_folder(tmp_path: Path) -> None:
    (tmp_path / "Net-2.run.jsonl").touch()  # another's
    for name, settings in (("Net.run", {}), ("Net-3.run", {}), ("mine", {"output": "mine.jsonl"})):
        assert run_ranks(2, rank_jobs.watched, str(tmp_path), **settings) == [str(tmp_path / name)] * 2
        record = read_ranks(tmp_path / name)
        assert (record.ranks, list(record.parts), record.missing()) == (2, [0, 1], [])
        assert [(e.step, len(record.held(e))) for e in record.entries if e.phase == "train"] == [(0, 2), (1, 2), (2, 2)]


def test_the_note_of_a_folder_tells_runs_apart(tmp_path: Path) -> None:
    def folder(rank: int, launch: str, parent: Path = tmp_path) -> str:
        writer = RecordFiles(parent / "train.run.jsonl", launch).rank(rank, HEADER)
        writer.close()
        return writer.path.parent.name

    assert [folder(rank, "a") for rank in (1, 0)] == ["train.run"] * 2
    assert folder(0, "b") == "train-2.run"
    assert folder(0, "a") == "train-3.run"  # "a" has been run before
    assert folder(2, "a") == "train.run"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train-2.run", "train-3.run", "train.run"]
    with pytest.raises(OSError, match="No such file"):
        folder(0, "a", tmp_path / "gone")


def test_parts_of_an_earlier_run_are_left_out(tmp_path: Path) -> None:
    for rank, (started, ranks) in enumerate((("2026-11-22", 2), ("2026-11-22", 2), ("2026-11-21", 4))):
        header = replace(HEADER, started=started, rank=rank, ranks=ranks)
        save(tmp_path / f"rank{rank}.jsonl", (header, recorded_step(0), end()))
    record = read_ranks(tmp_path)
    assert list(record.parts) == [0, 1] and record.ranks == 2 and record.end
    assert rank_remarks(record) == ["rank 2 is left out: it is of an earlier run, on 4 ranks"]
    tail = RankedTail(tmp_path)
    assert tail.poll() and list(tail.record.parts) == [0, 1] and len(tail.record.entries) == 1
    tail.close()


def test_first_non_finite_values_come_by_step_and_then_by_rank(tmp_path: Path) -> None:
    for rank, steps in enumerate(((9, 4), (4,), (2,), (4,))):
        lines = (recorded_step(step) for step in range(10))
        save(tmp_path / f"rank{rank}.jsonl", (replace(HEADER, rank=rank, ranks=4), *lines, *map(bad, steps), end()))
    record = read_ranks(tmp_path)
    found = [(rank, one.step) for rank, one in record.non_finite_by_rank()]
    assert found == [(2, 2), (0, 4), (1, 4), (3, 4), (0, 9)] and [one.step for one in record.non_finite] == [
        2,
        4,
        4,
        4,
        9,
    ]
    assert "non-finite first on rank 2, rank 0 from step 4, rank 1 from step 4, rank 3 from step 4" in rank_remarks(
        record
    )


def test_steps_of_another_model_do_not_pass_a_rank_by(tmp_path: Path) -> None:
    def joined(*by_rank: list[RecordedStep]) -> list[tuple[str, int, list[int]]]:
        files = [tmp_path / f"rank{rank}.jsonl" for rank in range(2)]
        for rank, steps in enumerate(by_rank):
            save(files[rank], (replace(HEADER, rank=rank, ranks=2), *steps))
        found = RankedRecord(tmp_path, parts={rank: read_record(file) for rank, file in enumerate(files)})
        found.join(growing=True)
        return [(entry.model, entry.step, list(found.held(entry))) for entry in found.entries]

    first, *five = [recorded_step(0, model="G"), *(recorded_step(n, model="D") for n in range(5))]
    second, evals = recorded_step(1, model="G"), [recorded_step(n, model="G", phase="eval") for n in range(2)]
    both = [("G", 0, [0, 1]), *(("D", n, [0, 1]) for n in range(5))]
    assert joined([first, *five, second], [first, *five]) == both  # rank 1 will have step 1 of G, too
    assert joined([first, *five, second], [first, *five, second]) == [*both, ("G", 1, [0, 1])]
    assert joined([first, *five, evals[0]], [first, *five]) == both
    assert joined([first, *five, *evals], [first, *five]) == [*both, ("G", 0, [0])]  # rank 0 alone evaluates


def test_a_rank_that_is_killed_leaves_its_part(tmp_path: Path) -> None:
    folder = tmp_path / "train.run"
    with pytest.raises(RanksError, match="rank 1 died"):
        run_ranks(2, rank_jobs.killed, str(folder))
    record = read_ranks(folder)
    assert record.end is None and len(record.parts[1].entries) == 1
    [shown] = [step for step in record.last() if step.phase == "train"]
    assert shown.step == 0  # the last one of both
    alike = record.parts[0].end is None and len(record.parts[0].entries) == 1  # rank 0 was ended as soon
    assert ("rank 1: no end: killed, or still running; last recorded step 0" in rank_remarks(record)) is not alike
