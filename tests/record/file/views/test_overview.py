"""Reports of a step joined, folded, and followed over time, held against figures computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from records import activation, gradient, recorded_step, update

from hookcli.errors import UsageError
from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.file.views.over_time import needed, of_places, over_time
from hookcli.record.file.views.overview import overview
from hookcli.record.file.views.query import known_names
from hookcli.table import Reason, Report, Row, Skipped, TensorStats
from hookcli.table.columns.recorded import STEP
from hookcli.table.folding import folded as fold
from hookcli.table.grouping import group_rows
from hookcli.table.marks import mark
from hookcli.table.stats import norm, ratio

STATS = TensorStats(8, 0.5, 1.0, -1.0, 2.0, 3.0)


def rows(report: Report) -> dict[str, Row]:
    return {row.fqn: row for row in report.rows}


def made(
    activations: list[Row] | None = None, grads: list[Row] | None = None, updates: list[Row] | None = None
) -> RecordedStep:
    """A step of these rows; None: the report is missing."""
    named = {"activations": activations, "grads": grads, "updates": updates}
    return RecordedStep(
        "Net", "train", 0, [Report(name, "Net", (), found) for name, found in named.items() if found is not None]
    )


def test_a_row_has_the_figures_of_each_report() -> None:
    found = rows(overview(recorded_step(step=3)))
    assert list(found) == ["", "body", "body.0", "body.1", "head"]
    linear = found["body.0"]
    assert (linear["type"], linear["calls"], linear["shape"]) == ("Linear", 1, [8, 16])
    assert (linear["mean"], linear["std"], linear["zeros"]) == (-0.1, 0.25, 0)
    assert linear["output_grad"] == 0.125
    assert linear["param_grad"] == math.hypot(3, 4) == 5
    assert (linear["weight"], linear["update"]) == (50, pytest.approx(0.05))
    assert linear["ratio"] == pytest.approx(0.001)
    assert [found["body"][key] for key in ("output_grad", "param_grad", "ratio")] == [
        None
    ] * 3  # it has none of its own
    assert found["body.1"]["output_grad"] == 0.25 and found["head"]["param_grad"] == 12


def test_a_tied_parameter_says_to_what_it_is_tied() -> None:
    step = made([activation("embed", "Embedding", STATS), activation("head", "Linear", STATS)])
    tied = Skipped("head.weight", "tied to embed.weight", kind=Reason.TIED)
    report = overview(replace(step, reports=[replace(step.reports[0], skipped=[tied])]))
    assert [mark(row) for row in report.rows] == ["", "weight tied to embed.weight"] and report.skipped == [tied]


@pytest.mark.parametrize(
    ("weights", "dtype", "note"),
    [(1.0, "float32", "weight did not move"), (1e6, "float32", ""), (1e6, "bfloat16", "weight did not move")],
)
def test_a_parameter_that_did_not_move_is_no_news_where_the_others_moved_by_next_to_nothing(
    weights: float, dtype: str, note: str
) -> None:
    """The bias moves by 0.1, beside weights of 1 or of a million; in 16 bits, updates are lost that way."""
    changes = [update("norm.weight", "BatchNorm2d", weights, 0.0), update("norm.bias", "BatchNorm2d", 0.1, 0.1)]
    changes = [replace(row, values={**row.values, "dtype": dtype}) for row in changes]
    grads = [gradient(f"norm.{name}", "parameter", "BatchNorm2d", 1.0) for name in ("weight", "bias")]
    report = overview(made([activation("norm", "BatchNorm2d", STATS)], grads, changes))
    assert mark(rows(report)["norm"]) == note


def test_the_whole_model_and_the_run() -> None:
    report = overview(recorded_step(step=3))
    assert report.totals["param_grad"] == 13 and report.totals["ratio"] == pytest.approx(0.001)
    assert [item.reason for item in report.skipped] == ["got no gradient"]
    assert (report.meta["step"], report.meta["losses"], report.meta["device"]) == (3, [0.5], "cpu")
    assert {column.name for column in STEP} <= {key for row in report.rows for key in row.flat()}


@pytest.mark.parametrize("depth", [1, 2, math.inf])
def test_at_any_depth_the_rows_add_up_to_the_model(depth: float) -> None:
    report = overview(recorded_step())
    folded = group_rows(report, depth)
    for name, whole in (("param_grad", 13.0), ("weight", 130.0), ("update", 0.13)):
        assert math.hypot(*(row[name] for row in folded.rows if row[name] is not None)) == pytest.approx(whole)
    if depth == 1:
        assert list(rows(folded)) == ["", "body", "head"]
        body = rows(folded)["body"]
        assert (body["param_grad"], body["weight"], body["std"]) == (5, 50, 0.5)  # all within; what it returned itself
        assert body["ratio"] == pytest.approx(0.001)


def test_folding_loses_no_parameter_below_a_container_that_never_ran() -> None:
    """A ModuleList of blocks, one of which has a parameter beside its parts."""
    stats = TensorStats(4, 1.0, 1.0, 0.0, 2.0, 3.0)
    seen = [activation(name, "T", stats) for name in ("blocks.0", "blocks.0.fc", "blocks.1", "blocks.1.fc")]
    grads = [
        gradient("blocks.0.scale", "parameter", "Block", 2.0),
        gradient("blocks.0.fc.weight", "parameter", "Linear", 3.0),
        gradient("blocks.1.fc.weight", "parameter", "Linear", 6.0, nan=1),
    ]
    folded = group_rows(overview(made(seen, grads)), 1)
    assert [row.fqn for row in folded.rows] == ["blocks"]
    assert folded.rows[0]["param_grad"] == 7 and folded.rows[0]["grad_nan"] == 1


def test_folded_blocks_have_the_gradients_and_times_of_all() -> None:
    names = [f"blocks.{n}" for n in range(12)]
    seen = [activation(name + part, "T", STATS) for name in names for part in ("", ".fc")]
    grads = [gradient(name, "output", "T", 1.0 + n) for n, name in enumerate(names)]
    seconds = [Row({"fqn": name, "forward_us": 0.5 + n, "backward_us": 2.0}) for n, name in enumerate(names)]
    step = made(seen, grads)
    each = overview(replace(step, reports=[*step.reports, Report("time", "Net", (), seconds)]))
    parts = [rows(each)[name] for name in names]
    block = rows(group_rows(fold(each), 2))["blocks.0-11"]
    assert block["output_grad"] == pytest.approx(math.hypot(*(row["output_grad"] for row in parts)))
    assert (
        (block["forward_us"], block["backward_us"])
        == (72, 24)
        == (
            sum(row["forward_us"] for row in parts),
            sum(row["backward_us"] for row in parts),
        )
    )
    assert block.stats == TensorStats.merge([STATS] * 12) and block["folded"] == 12


def test_what_is_not_finite_in_gradients_is_marked_also_when_it_is_folded() -> None:
    base = recorded_step()
    grads = replace(
        base.reports[1],
        rows=[*base.reports[1].rows, gradient("body.0.extra", "parameter", "Linear", 0.0, nan=2, inf=3)],
    )
    report = overview(replace(base, reports=[base.reports[0], grads]))
    assert mark(rows(report)["body.0"]) == "2 NaN in gradients, 3 Inf in gradients"
    assert mark(rows(group_rows(report, 1))["body"]) == "▲ body.0 2 NaN in gradients, 3 Inf in gradients"
    assert mark(rows(group_rows(report, 1))["head"]) == ""


def test_modules_that_did_not_run_stand_beside_their_siblings() -> None:
    """The projection of nn.MultiheadAttention, whose weights are used without calling it; a model that ran in parts."""
    stats = TensorStats(4, 1.0, 1.0, 0.0, 2.0, 3.0)
    seen = [activation(name, "T", stats) for name in ("attn", "attn.norm", "head")]
    updates = [update(f"{name}.weight", "T", 1.0, 0.5) for name in ("attn.out_proj", "tail", "attn")]
    report = overview(made(seen, None, [*updates, update("scale", "Net", 1.0, 0.5)]))
    assert [row.fqn for row in report.rows] == ["", "attn", "attn.norm", "attn.out_proj", "head", "tail"]
    assert rows(report)["attn.out_proj"].stats is None and rows(report)["attn.out_proj"]["ratio"] == 0.5


def test_several_tensors_of_a_module_have_a_row_each_and_parameters_count_once() -> None:
    stats = TensorStats(4, 1.0, 1.0, 0.0, 2.0, 3.0)
    seen = [activation("lstm", "LSTM", stats, path=path) for path in ("[0]", "[1][0]")]
    grads = [gradient("lstm", "output", "LSTM", 2.0, path="[0]"), gradient("lstm.w", "parameter", "LSTM", 3.0)]
    report = overview(made(seen, grads))
    assert [(row["path"], row["output_grad"], row["param_grad"]) for row in report.rows] == [
        ("[0]", 2, 3),
        ("[1][0]", None, None),
    ]
    assert [row["param_grad"] for row in group_rows(report, 1).rows] == [3, None] and report.totals["param_grad"] == 3


@pytest.mark.parametrize("missing", ["activations", "grads", "updates"])
def test_a_report_may_be_missing(missing: str) -> None:
    base = recorded_step()
    report = overview(replace(base, reports=[r for r in base.reports if r.probe != missing]))
    assert {"body.0", "head"} <= set(rows(report))
    has = {key: any(row.get(key) is not None for row in report.rows) for key in ("std", "param_grad", "ratio")}
    gone = {"activations": "std", "grads": "param_grad", "updates": "ratio"}[missing]
    assert has == {key: key != gone for key in has}


def test_an_empty_step() -> None:
    report = overview(made())
    assert report.rows == [] and report.totals == {}


def test_norms_that_are_not_finite() -> None:
    assert math.isnan(norm([1.0, math.nan, math.inf])) and norm([1.0, math.inf]) == math.inf and norm([]) == 0
    assert ratio(0.5, 0.0) == math.inf and ratio(1.0, 4.0) == 0.25 and ratio(None, 4.0) is None
    assert math.isnan(ratio(0.0, 0.0) or 0) and math.isnan(ratio(math.nan, 0.0) or 0)
    assert norm([1e200, 1e200]) == pytest.approx(math.sqrt(2) * 1e200)  # squares of which overflow


# Over time.

STEPS = [recorded_step(step, std=1.0 + step) for step in (0, 10, 20)]


def test_a_module_over_time() -> None:
    (report,) = over_time(STEPS, "body.0")
    assert [row["step"] for row in report.rows] == [0, 10, 20]
    assert [row["std"] for row in report.rows] == [0.25, 2.75, 5.25]
    assert {(row["output_grad"], row["param_grad"], row["weight"]) for row in report.rows} == {(0.125, 5.0, 50.0)}
    assert all(row["loss"] is None for row in report.rows) and report.model == "Net: body.0"


def test_the_model_and_a_container_have_all_that_lies_within() -> None:
    (model,) = over_time(STEPS, "")
    assert [row["loss"] for row in model.rows] == [2.0, 2 / 11, 2 / 21]
    assert {row["param_grad"] for row in model.rows} == {13.0}
    (body,) = over_time(STEPS, "body")
    assert {row["param_grad"] for row in body.rows} == {5.0}


def test_a_parameter_over_time() -> None:
    (report,) = over_time(STEPS, "head.weight")
    assert {(row["param_grad"], row["weight"], row["ratio"]) for row in report.rows} == {(12.0, 120.0, 0.001)}


def test_the_loss_of_several_backward_calls_is_their_sum() -> None:
    (report,) = over_time([replace(recorded_step(), losses=[1.0, 2.0, 6.0])], "")
    assert report.rows[0]["loss"] == 9


def test_each_model_and_phase_by_itself_and_a_container_that_never_ran() -> None:
    other = replace(recorded_step(), model="Other")
    found = over_time([*STEPS, other, recorded_step(phase="no_grad")], "head")
    assert [(report.model, report.meta["mode"]) for report in found] == [
        ("Net: head", "train"), ("Other: head", "train"), ("Net: head", "no grad"),
    ]  # fmt: skip
    stats = TensorStats(4, 1.0, 1.0, 0.0, 2.0, 3.0)
    grads = [gradient("blocks.0.w", "parameter", "T", 3.0), gradient("blocks.1.w", "parameter", "T", 4.0)]
    (blocks,) = over_time([made([activation("blocks.0", "T", stats)], grads)], "blocks")
    assert blocks.rows[0]["param_grad"] == 5


def test_rows_that_are_left_out_change_nothing() -> None:
    for fqn in ("", "body", "body.0", "head.weight"):
        keep = needed(fqn)
        narrowed = [
            replace(w, reports=[replace(r, rows=[row for row in r.rows if keep(row.flat())]) for r in w.reports])
            for w in STEPS
        ]
        assert sum(len(r.rows) for r in narrowed[0].reports) < sum(len(r.rows) for r in STEPS[0].reports)
        assert over_time(narrowed, fqn) == over_time(STEPS, fqn)


def test_a_name_of_which_there_is_nothing() -> None:
    assert over_time(STEPS, "zzz") == []
    assert {"body", "body.0", "body.0.bias", "head.weight"} <= known_names(STEPS[0]) and "" not in known_names(STEPS[0])


def test_a_module_without_gradients_has_its_type_and_an_operator_its_line() -> None:
    operator = activation("a:relu", "relu", STATS)
    operator = replace(operator, values={**operator.values, "source": "net.py:7"})
    found = rows(overview(made([activation("a", "ReLU", STATS), operator])))
    assert (found["a"]["type"], found["a"].get("source")) == ("ReLU", None)
    assert (found["a:relu"]["type"], found["a:relu"]["source"]) == ("relu", "net.py:7")


def test_a_norm_over_a_modules_parameters_is_had_by_pattern_as_by_name() -> None:
    steps = [recorded_step(0), recorded_step(1)]
    [report] = of_places(steps, "param_grad", "*d*")  # 3 and 4 together; and head's 12
    by_name = {c.name: [row.get(c.name) for row in report.rows] for c in report.columns if "[" in c.name}
    assert by_name == {
        "param_grad[head]": [12.0, 12.0],
        "param_grad[body]": [5.0, 5.0],
        "param_grad[body.0]": [5.0, 5.0],
    }
    assert report.totals["recorded_steps"] == 2
    with pytest.raises(UsageError, match=r"nothing that matches 'body\.1' has it"):
        of_places(steps, "param_grad", "body.1")
