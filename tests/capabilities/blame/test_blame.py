"""The rank, micro-batch and row that made a gradient large or NaN."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from record.odd_rank_jobs import record_of
from records import HEADER, end, recorded_step, save

from hookcli.capabilities.blame.headline import headline
from hookcli.capabilities.blame.lines import Blame
from hookcli.record.file.ranks.ranked_record import read_ranks
from hookcli.record.file.reading import Record, read_record
from hookcli.record.file.record_lines import StepLosses
from hookcli.record.file.views.headlines import Aside, Remark, wrong_lines
from hookcli.record.file.views.ranks_view import rank_remarks
from hookcli.record.file.views.summary import summary
from hookcli.table.grouping import View
from hookcli.table.losses import jumps

pytestmark = [pytest.mark.xdist_group("ranks"), pytest.mark.usefixtures("rank_pools")]  # one pool of ranks


def test_the_rank_and_micro_batch_of_a_jump_and_of_a_nan(tmp_path: Path) -> None:
    record = record_of(tmp_path / "far", "far", steps=13, parts=3)
    line = headline(record)
    assert line.startswith("Sequential: the gradient's norm jumped to ") and " at step 12, " in line
    assert line.endswith(
        ": micro-batch 2 of 3 on rank 1 (100% of the rows' squared gradients), there row 3 of 8 (100%), most in 2"
        "; all counted from 0"
    )
    record = record_of(tmp_path / "nan", "nan", steps=14, parts=3, first_bad="report")
    where = "micro-batch 2 of 3 on rank 1, there row 3 of 8, first in 2; all counted from 0"
    lost = "Sequential: the loss was NaN from step 12 on (2 of 14 steps)"
    assert wrong_lines(record) == [f"Sequential: the gradient was not finite at step 12: {where}", lost]
    found = record.non_finite_by_rank()
    assert [rank for rank, one in found] == [1, 0] and found[0][1].cause.endswith(
        "in micro-batch 2 of 3 (counted from 0)"
    )
    assert "non-finite first on rank 1" in rank_remarks(record)


def lines_of(tmp_path: Path, *of_ranks: list[Blame]) -> str:
    tmp_path.mkdir(exist_ok=True)
    for rank, blames in enumerate(of_ranks):
        header = replace(HEADER, rank=rank, ranks=len(of_ranks))
        save(tmp_path / f"rank{rank}.jsonl", (header, *map(recorded_step, range(30)), *blames, end()))
    return headline(read_ranks(tmp_path))


def test_what_stands_out_is_said_and_what_does_not(tmp_path: Path) -> None:
    jump = Blame("Net", 20, 50.0, 2.0, [3.0, 4.0], [], 8, 0.0, "head")
    said = "Net: the gradient's norm jumped to 50.00 at step 20, 25 times the median before: "
    assert lines_of(tmp_path, [jump], [jump]) == f"{said}no micro-batch, rank or row stands out"
    assert lines_of(tmp_path / "hostile", [replace(jump, passes=[])]) == ""
    later = replace(jump, step=21)
    assert lines_of(tmp_path, [jump, later], []) == (
        f"{said}micro-batch 1 of 2 on rank 0 (57% of the rows' squared gradients), there no row of 8 stands out;"
        " all counted from 0;"
        " so it did in 1 more recorded step"
    )
    bad = Blame("Net", 25, None, 2.0, [float("inf")] * 2, [], 8, 0.0, "head")
    assert lines_of(tmp_path, [replace(jump, step=3), bad], [bad]) == ""  # all of it is bad, and the jump long ago
    assert lines_of(tmp_path, [jump, bad], [jump, bad]).startswith(said)  # which led there
    one = replace(bad, passes=[1.0], rows=[1, 4, 5, 6], mixed="bn")
    spread = lines_of(tmp_path, [replace(one, passes=[float("inf")])], [replace(one, rows=[])])
    where = "rank 0, there rows 1, 4, 5 ... of 8, first in head (bn mixes rows); all counted from 0"
    assert spread == f"Net: the gradient was not finite at step 25: {where}"
    unknown = lines_of(tmp_path, [replace(jump, passes=[1e9], size=0)], [replace(jump, passes=[1.0])])
    assert "rank 0 (100% of the rows' squared gradients), there its rows are unknown" in unknown


def test_a_gradient_that_may_have_grown_over_steps_that_were_not_recorded_did_not_jump(tmp_path: Path) -> None:
    """The recorded steps have gradients of norm 13: a norm of 140 stands out from those beside it, 120 does not."""

    def record_with(norm: float, *, steps: Collection[int], losses: Sequence[float] = ()) -> Record:
        blame = Blame("Net", 20, norm, 1.0, [3.0], [], 8, 0.0, "head")
        told = [StepLosses("Net", 0, losses)] if losses else []
        save(tmp_path / "record.jsonl", (HEADER, *map(recorded_step, steps), blame, *told, end()))
        return read_record(tmp_path / "record.jsonl")

    gap, every = [*range(17), 20, 30, 40, 50], range(31)
    assert headline(record_with(120, steps=gap)) == "" != headline(record_with(120, steps=every))
    assert headline(record_with(140, steps=gap)) != "" == headline(record_with(140, steps=gap[:18]))
    jumped = record_with(120, steps=gap, losses=[1.0] * 20 + [50.0] * 11)
    loss = jumps(jumped.courses())
    assert wrong_lines(jumped) == [loss, headline(jumped)]  # which names no row, and so comes last
    assert "no row of 8 stands out" in headline(jumped) and loss
    lines = summary(jumped, jumped, jumped.path, View()).splitlines()
    assert [lines[0], lines[2]] == [f"hookcli: {loss}", f"hookcli: {headline(jumped)}"]
    assert "recorded steps in" in lines[1]
    for last, where in ((0.5, Remark), (0.9, Aside)):
        said = headline(record_with(120, steps=every, losses=[1.0] * 20 + [last] * 11))
        assert type(said) is where and "jumped to 120" in said
