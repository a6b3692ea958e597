"""Ranks whose weights have come apart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from record.odd_rank_jobs import record_of
from records import HEADER, end, recorded_step, save
from support import swept

from hookcli.capabilities.replicas.differing import apart
from hookcli.errors import UsageError
from hookcli.record.file.page.record_page import RecordPage
from hookcli.record.file.ranks.ranked_record import read_ranks
from hookcli.record.file.reading import read_record
from hookcli.record.file.views.headlines import wrong_lines
from hookcli.record.file.views.query import Query
from hookcli.record.file.views.ranks_view import rank_remarks
from hookcli.record.file.views.summary import summary
from hookcli.record.file.views.verdict import verdict_on
from hookcli.table.grouping import View

pytestmark = [pytest.mark.xdist_group("ranks"), pytest.mark.usefixtures("rank_pools")]  # one pool of ranks


SINCE = "Sequential: the replicas' weights differ from step"
BIAS = "in 1 of 4 parameters, the first is 2.bias"
PLANTED = {
    "seed by hand": f"{SINCE} 0 on: ranks 0, 1 differ, in 4 of 4 parameters, the first is 0.weight",
    "changed": f"{SINCE} 5 on (they agreed at step 4): ranks 0, 1 differ, {BIAS}",
    "changed by hand": f"{SINCE} 5 on (they agreed at step 4): ranks 0, 1 differ, {BIAS}",
    "seed": "",  # DistributedDataParallel broadcasts rank 0's weights
    "buffers": "",
    "models": "",
    "own": "",
    "own seed": "",
}


ALIKE = ("changed by hand", "seed", "seed by hand", "models", "own seed")  # as another is, by hand or of another cause


@pytest.mark.sweep
@pytest.mark.parametrize("how", [swept(how) if how in ALIKE else how for how in PLANTED])
def test_weights_that_differ_are_found_where_they_should_not(how: str, tmp_path: Path) -> None:
    record = record_of(tmp_path, how)
    assert apart(record) == PLANTED[how] and wrong_lines(record) == [PLANTED[how]] * bool(PLANTED[how])
    own = "Sequential: ranks 0, 1 train their own weights: nothing makes their gradients alike"
    assert (own in rank_remarks(record)) is how.startswith("own")
    found = [one.check for report in verdict_on(record) for one in report.findings]
    assert found == ["HK052"] * bool(PLANTED[how])


@pytest.mark.parametrize("checked", [True, False])
def test_show_and_report_find_what_the_end_of_the_run_finds(checked: bool, tmp_path: Path) -> None:
    """The verdict on the whole run stands after those on steps; not where one model is asked for, or no check ran."""
    record = record_of(tmp_path, "changed", check=checked)
    (wanted,) = verdict_on(record)
    assert wanted.model == "train.py on 2 ranks" and [one.message for one in wanted.findings] == [PLANTED["changed"]]
    shown = [Query(), Query(probe="check")] if checked else [Query()]
    for query in shown:
        assert [wanted] * checked == [one for one in query.within(record).reports() if one.findings]
    for query in (Query(model="Sequential"), Query(step=7)):
        assert not [one for one in query.within(record).reports() if one.findings]
    with pytest.raises(UsageError, match="unknown --probe 'compiled'"):  # that is of torch.compile alone
        Query(probe="compiled").within(record).reports()
    of_page = RecordPage(record).payload()["reports"]
    assert [one["findings"][0]["check"] for one in of_page if one["findings"]] == ["HK052"] * checked
    ended = summary(record, record.parts[0], "train.run", View(), checked=checked)
    assert (f"HK052  error    (model): {PLANTED['changed']}" in ended) is checked


def test_the_rank_that_is_alone_and_its_parameter(tmp_path: Path) -> None:
    record = record_of(tmp_path, "changed", size=3, every=2)
    said = "6 on (they agreed at step 4): rank 1 differs from ranks 0, 2"
    assert apart(record) == f"{SINCE} {said}, {BIAS}"
    steps = {step.step: step for step in record.steps(record.entries)}
    for number, differing in ((4, []), (6, ["2.bias"])):
        rows = steps[number].rows("replicas")
        assert [row.fqn for row in rows if row["checksum"] is None] == differing and len(rows) == 4


def test_older_records_and_those_of_one_process_have_no_digests(tmp_path: Path) -> None:
    for rank in range(2):
        header = replace(HEADER, rank=rank, ranks=2)
        save(tmp_path / f"rank{rank}.jsonl", (header, *map(recorded_step, range(2)), end()))
        lines = [json.loads(line) for line in (tmp_path / f"rank{rank}.jsonl").read_text().splitlines()]
        old = [{key: value for key, value in line.items() if key != "weights"} for line in lines]
        (tmp_path / f"rank{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in old))
    record = read_ranks(tmp_path)
    assert [entry.step for entry in record.entries] == [0, 1] and not record.damaged and wrong_lines(record) == []
    assert wrong_lines(read_record(tmp_path / "rank0.jsonl")) == []
