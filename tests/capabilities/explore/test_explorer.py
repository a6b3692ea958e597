"""What `hookcli explore` shows, without a terminal: reports joined by module, and texts."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import MARKUP, hostile_reports
from records import HEADER, end, recorded_step, save
from rich.console import Console

from hookcli.capabilities.explore.command import of_record, of_reports
from hookcli.capabilities.explore.places import Joined, figures, headline
from hookcli.capabilities.explore.search import search
from hookcli.record.file.reading import read_record
from hookcli.reporters.bars import curve
from hookcli.table import STATS_COLUMNS, Finding, Reason, Report, Row, Skipped, TensorStats, columns_named
from hookcli.table.columns.layouts import FINDINGS

PLACE = columns_named("fqn", "type", "call", "path", "shape", "dtype")


def stats(values: np.ndarray) -> TensorStats:
    norm = float(np.linalg.norm(values))
    zeros = int((values == 0).sum())
    least, most, std = float(values.min()), float(values.max()), float(values.std(ddof=1))
    return TensorStats(values.size, float(values.mean()), std, least, most, norm, zeros=zeros)


CALLS = [np.random.default_rng(0).normal(size=50), np.r_[np.zeros(20), np.arange(30.0)]]


def reports() -> list[Report]:
    """A net of `a` (with `a.b`, called twice, and an operator in it) and `c`, which has a parameter and never ran."""
    place = {"path": "", "shape": [50], "dtype": "float32"}
    rows = [
        Row({"fqn": "a.b", "type": "ReLU", "call": 0, **place}, stats(CALLS[0])),
        Row({"fqn": "a.b", "type": "ReLU", "call": 1, **place}, stats(CALLS[1])),
        Row(
            {"fqn": "a:log_1", "type": "log", "call": 0, **place, "source": "net.py:12"},
            TensorStats(9, 1, 1, 0, 2, 3, inf=2),
        ),
        Row({"fqn": "a", "type": "Block", "call": 0, **place}, TensorStats(9, 1, 1, 0, 2, 3, inf=2)),
        Row({"fqn": "", "type": "Net", "call": 0, **place}, stats(CALLS[0])),
    ]
    costs = [
        Row({"fqn": row.fqn, "type": row["type"], "call": row["call"], "params": 7, "macs": 5_000}) for row in rows
    ]
    weight = Row(
        {"fqn": "c.weight", "kind": "parameter", "type": "Linear", "shape": [50], "dtype": "float32"}, stats(CALLS[0])
    )
    found = Finding("HK008", "warning", "c.weight", "got no gradient")
    skipped = [Skipped("c", "forward never called it", kind=Reason.NEVER_CALLED)]
    return [
        Report("check", "net", FINDINGS, [], findings=[found]),
        Report("shapes", "net", columns_named("fqn", "type", "call", "params", "macs"), costs, skipped=skipped),
        Report("activations", "net", (*PLACE, *STATS_COLUMNS), rows),
        Report("parameters", "net", (*PLACE, *STATS_COLUMNS), [weight]),
    ]


def printed(joined: Joined, fqn: str, width: int = 60) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(figures(joined.near(fqn), joined, (), width))
    return console.file.getvalue()


def test_reports_are_joined_by_module_and_calls_are_merged_exactly() -> None:
    joined = Joined(reports())
    parents = {fqn: place.parent and place.parent.fqn for fqn, place in joined.places.items()}
    assert parents == {"": None, "a": "", "a.b": "a", "a:log_1": "a", "c": ""}
    together = np.concatenate(CALLS)
    row = joined.places["a.b"].rows["act"]
    assert row["std"] == pytest.approx(together.std(ddof=1), rel=1e-12) and row["zeros"] == 21
    assert joined.places["a.b"].rows[""]["calls"] == 2 and joined.near("c.weight").fqn == "c"
    assert "weight" in joined.places["c"].rows and "forward never called it" in printed(joined, "c")


def test_findings_come_first_where_they_begin_and_mark_the_modules_around() -> None:
    joined = Joined(reports())
    assert [(one.fqn, one.severity) for one in joined.findings] == [
        *(("a:log_1", "error"), ("a", "error"), ("c.weight", "warning")),
    ]
    assert [fqn for fqn, place in joined.places.items() if not place.faulty] == ["a.b"]
    (subject,) = of_reports(reports())
    assert headline(subject, joined, 0, 80).plain == "3 faults in 5 modules; HK003 error a:log_1: 2 Inf"
    assert headline(subject, Joined(), 0, 80).plain == "nothing was measured, or it can no longer be read"
    cut = replace(reports()[1], meta={"complete": False})
    assert headline(subject, Joined([cut]), 0, 80).plain == "the run did not end; 0 faults in 5 modules"
    assert (
        len(Joined([replace(cut, probe="flow")]).places) == 5
        and not Joined([replace(cut, probe="flow"), cut]).near("").parent
    )


def test_figures_stand_side_by_side_where_there_is_room() -> None:
    joined = Joined(reports())
    text = printed(joined, "a:log_1")
    assert "HK003 error a:log_1: 2 Inf" in text and "at net.py:12" in text and "MACs" in text and "5 K" in text
    gradients = replace(
        reports()[2], probe="grads", rows=[Row({**r.values, "kind": "output"}, r.stats) for r in reports()[2].rows]
    )
    both = Joined([*reports(), gradients])

    def heads(width: int) -> list[list[str]]:
        lines = map(str.split, printed(both, "a.b", width).splitlines())
        return [line for line in lines if {"act", "grad"} & set(line)]

    assert heads(60) == [["act", "grad"]] and heads(36) == [["act"], ["grad"]]


def test_a_search_has_words_and_comparisons() -> None:
    joined = Joined(reports())
    found = {
        text: [fqn for fqn in joined.places if search(joined, text)(joined.places[fqn])]  # type: ignore[misc]
        for text in ("relu", "-block type!=log", "macs>4.9k calls=1", "act.inf>0", "zeros>=20%", "source=net.py:12")
    }
    assert found == {
        "relu": ["a.b"],
        "-block type!=log": ["a.b", "", "c"],
        "macs>4.9k calls=1": ["a:log_1", "a", ""],
        "act.inf>0": ["a:log_1", "a"],
        "zeros>=20%": ["a.b"],
        "source=net.py:12": ["a:log_1"],
    }
    assert search(joined, " ") is None


def test_a_record_opens_at_its_first_nan_with_the_figures_of_each_step(tmp_path: Path) -> None:
    lines = [HEADER, *(recorded_step(n, std=1.0 + n) for n in range(3)), recorded_step(1, phase="no_grad"), end()]
    train, without = of_record(read_record(save(tmp_path / "a.run.jsonl", lines)))
    assert (train.title, list(train.steps), train.lines) == ("Net · train", [0, 1, 2], {})
    assert (without.title, list(without.steps)) == ("Net · no grad", [1])
    stds = [Joined(train.reports(step)).places["head"].rows[""]["std"] for step in train.steps]
    assert stds == [1.0, 2.0, 3.0]
    (history,) = train.history("body.0")
    assert [row["param_grad"] for row in history.rows] == [5.0, 5.0, 5.0]
    assert train.history("nothing") == () == train.reports(7)
    joined = Joined(train.reports(2))
    console = Console(file=io.StringIO(), width=90, color_system=None)
    console.print(figures(joined.near("head"), joined, train.history("head"), 90))
    line = next(line for line in console.file.getvalue().splitlines() if line.startswith("Std of the output"))
    assert line.split() == ["Std", "of", "the", "output", "▁▅█", "3.000"]


def test_curves_mark_what_is_not_finite_and_keep_the_highest_of_each_stretch() -> None:
    nan = float("nan")
    assert curve([0, 7, nan, None, 3.5], 9) == "▁█! ▅"
    assert curve([0, 1, 0, 0, 0, 0.5], 3) == "█▁▅" and curve([2, 2], 9) == "▁▁" and curve([], 9) == ""
    assert curve([nan, None], 9) == "! "
    assert curve([1, 10, 100], 9) == "▁▂█" and curve([1, 10, 1000, nan], 9) == "▁▃█!"  # from a spread of more than 100


def with_rows(probe: str, names: str, rows: Sequence[Sequence[Any]], **values: Any) -> Report:
    columns = columns_named(*names.split())
    return Report(probe, "net", columns, [Row(dict(zip(names.split(), row, strict=True))) for row in rows], **values)


def test_heads_and_experts_have_lines_of_their_own_and_are_not_added_up() -> None:
    experts = with_rows("experts", "fqn expert tokens", [("moe", None, 128), ("moe", 0, 100), ("moe", 1, 28)])
    heads = with_rows("attention", "fqn head entropy", [("attn", 0, 0.5), ("attn", 1, 0.25)])
    joined = Joined([experts, heads])
    lines = [line.split() for line in printed(joined, "moe").splitlines()]
    assert (
        ["Tokens", "128"] in lines and ["experts", "expert", "1", "28"] in lines and "256" not in printed(joined, "moe")
    )
    assert ["attention", "head", "1", "0.2500"] in [line.split() for line in printed(joined, "attn").splitlines()]
    tests = {text: search(joined, text) for text in ("tokens=128", "tokens>128", "entropy<0.3")}
    found = {text: [fqn for fqn in joined.places if test(joined.places[fqn])] for text, test in tests.items() if test}
    assert found == {"tokens=128": ["moe"], "tokens>128": [], "entropy<0.3": ["attn"]}


def test_a_verdict_comes_first_and_hides_no_fault() -> None:
    sweep = [("b", 1, 1), ("c", 2, 2), ("a", 3, 0)]
    ranked = with_rows("sweep", "fqn order index", sweep, totals={"verdict": "b decides"}, grouping="list")
    (subject,) = of_reports([ranked])
    assert headline(subject, Joined([ranked]), 0, 80).plain == "b decides"
    assert [*Joined([ranked]).places] == ["a", "b", "c"]
    faulty = headline(subject, Joined([ranked, *reports()]), 0, 80).plain
    assert faulty == "b decides; 3 faults in 6 modules; HK003 error a:log_1: 2 Inf"


def test_hostile_names_reach_no_terminal() -> None:
    short = [name for name in MARKUP if len(name) < 1000]
    for reported in hostile_reports().values():
        for subject in of_reports([replace(one, model="\x1b[2J[bold]") for one in reported]):
            joined = Joined(subject.reports(0))
            texts = [
                headline(subject, joined, 0, 80).plain,
                *(printed(joined, fqn) for fqn in joined.places if fqn in short),
            ]
            assert not {letter for text in texts for letter in text if not letter.isprintable()} - {"\n"}
            search(joined, " ".join(MARKUP))
