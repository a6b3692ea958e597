"""hookcli trace: kinds, summaries and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from commands.graph_nets import NET, OWN, Cli, global_hooks, read
from support import require_clear_error, swept
from torch.autograd import graph


@pytest.fixture
def own(net: Path) -> Path:
    (net / "own.py").write_text(OWN)
    return net


# trace


def test_what_forward_showed_is_printed_where_there_are_no_gradients(cli: Cli, own: Path) -> None:
    ran = cli("trace", "own.py:Frozen", "-i", "3x4", "--depth", "all")
    assert ran.code == 2 and len(ran.err.splitlines()) == 1
    assert "parameter_registration" in ran.out and "first.weight" in ran.out
    assert ran.out.count("forward_pre") == 3 and " · incomplete" in ran.out


def test_a_freed_graph_shows_what_came_before(cli: Cli, own: Path) -> None:
    ran = cli("trace", "own.py:Frees", "-i", "3x4", "--kinds", "node*,forward")
    assert ran.code == 2 and "AddmmBackward0" in ran.out and "incomplete" in ran.out


def test_trace_of_all_kinds_builds_runs_steps_and_saves(cli: Cli, own: Path) -> None:
    report = read(cli("trace", "own.py:Plain", "-i", "3x4", "--optimizer", "adamw", "--format", "json"))
    kinds = [row["kind"] for row in report["rows"]]
    order = (
        *("parameter_registration", "forward_pre", "forward", "full_backward_pre", "optimizer_step_pre"),
        *("optimizer_step_post", "state_dict_pre", "load_state_dict_pre", "optimizer_load_state_dict_post"),
    )
    assert [kinds.index(kind) for kind in order] == sorted(kinds.index(kind) for kind in order)
    assert {row["name"] for row in report["rows"] if row["kind"] == "optimizer_step_pre"} == {"AdamW"}
    since = set() if hasattr(graph, "node_creation_hook") else {"node_creation"}
    assert {item["path"] for item in report["skipped"]} == {"buffer_registration"} | since
    assert [row["index"] for row in report["rows"]] == list(range(len(kinds)))


def test_globs_choose_kinds_and_the_rest_does_not_fire(cli: Cli, own: Path) -> None:
    report = read(cli("trace", "own.py:Plain", "-i", "3x4", "--kinds", "*_pre, node", "--format", "json"))
    found = {row["kind"] for row in report["rows"]}
    assert found == {
        "forward_pre", "node_pre", "node", "full_backward_pre", "optimizer_step_pre", "state_dict_pre",
        "load_state_dict_pre", "optimizer_state_dict_pre", "optimizer_load_state_dict_pre",
    }  # fmt: skip


def test_forward_kinds_alone_run_no_backward(cli: Cli, own: Path) -> None:
    ran = cli("trace", "own.py:Frozen", "-i", "3x4", "--kinds", "forward*,module_registration")
    assert ran.code == 0 and "loss" not in ran.out


def test_summary_counts_as_the_trace_does(cli: Cli, own: Path) -> None:
    rows = read(cli("trace", "own.py:Plain", "-i", "3x4", "--format", "json"))["rows"]
    found = read(cli("trace", "own.py:Plain", "-i", "3x4", "--summary", "--format", "json"))
    summary = {r["fqn"]: r for r in found["rows"]}
    names, units = ([column[key] for column in found["columns"]] for key in ("name", "unit"))
    assert names[:2] == ["fqn", "type"] and names[-1] == "kept" and {*units[2:-1]} == {"firings"}
    assert next(c["title"] for c in found["columns"] if c["name"] == "forward_pre") == "fwd pre"
    parameters = {f"{layer}.{name}": layer for layer in ("first", "second") for name in ("weight", "bias")}
    for kind in {row["kind"] for row in rows}:
        for fqn in summary:
            of = [r for r in rows if r["kind"] == kind and parameters.get(r["fqn"], r["fqn"]) == fqn]
            assert summary[fqn][kind] == len(of), (kind, fqn)
    assert {r["fqn"] for r in rows} - set(parameters) == set(summary)
    assert [*summary][:3] == ["", "first", "second"] and summary["first"]["type"] == "Linear"
    assert sum(row["kept"] or 0 for row in rows) == sum(row["kept"] for row in summary.values()) == 3 * 4 * 4 * 2


def test_global_hooks_see_what_local_ones_do_not(cli: Cli, own: Path) -> None:
    before = global_hooks()
    argv = ("trace", "own.py:Plain", "-i", "3x4", "--kinds", "forward*", "--loss", "own.py:mse")
    report = read(cli(*argv, "--kinds", "forward*,node", "--global", "--format", "json"))
    noted = {(row["kind"], row["fqn"]): row["note"] for row in report["rows"] if row.get("note")}
    assert noted == {
        ("forward_pre", "(outside) MSELoss"): "globally only", ("forward", "(outside) MSELoss"): "globally only",
    }  # fmt: skip
    assert report["totals"]["order"] == "2 differ from local hooks"
    assert global_hooks() == before
    same = read(cli("trace", "own.py:Plain", "-i", "3x4", "--kinds", "forward*", "--global", "--format", "json"))
    assert same["totals"]["order"] == "same order as local hooks" and len(same["rows"]) == 6


def test_global_hooks_on_an_encoder_layer_in_eval_mode(cli: Cli, own: Path) -> None:
    """PyTorch's fused path is taken with global hooks, and by hookcli's local ones."""
    argv = ("trace", "own.py:Encoder", "-i", "2x3x8", "--eval", "--kinds", "forward", "--format", "json")
    for extra in ((), ("--global",)):
        report = read(cli(*argv, *extra))
        assert [row["fqn"] for row in report["rows"]] == ["layers.0", ""]
        assert "layers.0.linear1" in {item["fqn"] for item in report["skipped"]}


def test_a_refused_full_backward_hook_is_left_out_and_told(cli: Cli, net: Path) -> None:
    ran = cli("trace", *NET)
    assert ran.code == 0 and ran.err == ""
    assert "(model) full_backward_pre and 1 more: act (ReLU) failed on input 2x8x4x4: " in ran.out
    report = read(cli("trace", *NET, "--format", "json"))
    assert {"full_backward", "full_backward_pre"}.isdisjoint(row["kind"] for row in report["rows"])
    reasons = {item["path"]: item["reason"] for item in report["skipped"]}
    assert "act (ReLU)" in reasons["full_backward"] and "act (ReLU)" in reasons["full_backward_pre"]
    assert ("node", "act") in {(row["kind"], row["fqn"]) for row in report["rows"]}


def test_chosen_kinds_without_full_backward_need_no_second_run(cli: Cli, net: Path) -> None:
    report = read(cli("trace", *NET, "--kinds", "forward,post_accumulate_grad", "--format", "json"))
    assert [row["fqn"] for row in report["rows"] if row["kind"] == "post_accumulate_grad"] == [
        "fc.bias", "fc.weight", "conv.weight", "conv.bias",
    ]  # fmt: skip


def test_a_table_tells_how_much_it_leaves_out(cli: Cli, own: Path) -> None:
    ran = cli("trace", "own.py:Plain", "-i", "3x4")
    total = len(read(cli("trace", "own.py:Plain", "-i", "3x4", "--format", "json"))["rows"])
    assert f"of {total} rows hidden, deeper than 1 (--depth all shows all)" in ran.out


def test_before_torch_2_15(cli: Cli, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(graph, "node_creation_hook", raising=False)
    assert "not seen before torch 2.14" in cli("graph", "own.py:Plain", "-i", "3x4").out
    ran = cli("trace", "own.py:Plain", "-i", "3x4", "--kinds", "node_creation,node")
    assert ran.code == 0 and "PyTorch has this hook since 2.14" in ran.out


DETECTOR = ("ssdlite320_mobilenet_v3_large", "--kinds", "forward,post_acc*,saved*")


def test_a_detector_with_targets(cli: Cli) -> None:
    report = read(cli("trace", *DETECTOR, "--arg", "weights_backbone=null", "--format", "json"))
    assert report["totals"]["kept_bytes"] > 0 and not torch.is_inference_mode_enabled()
    assert {"post_accumulate_grad", "saved_tensor_pack"} <= {row["kind"] for row in report["rows"]}


MISTAKES: dict[tuple[str, ...], str] = {
    ("trace", "own.py:Plain", "-i", "3x4", "--kinds", "forwrd"): "unknown --kinds 'forwrd'; did you mean forward",
    ("trace", "own.py:Plain", "-i", "3x4", "--kinds", "forward,nod"): "unknown --kinds 'nod'; did you mean node",
    ("trace", "own.py:Plain", "-i", "3x4", "--kinds", ","): "--kinds: name at least one",
    ("trace", "own.py:Plain", "-i", "3x4", "--optimizer", "adam"): "unknown --optimizer 'adam'; did you mean adamw?",
    ("trace", "own.py:Plain", "-i", "3x4", "--global", "--summary"): "--global and --summary",
    ("trace", "own.py:Plain", "-i", "3x4", "--summary", "--format", "chrome"): "(this report has no column us or kind)",
    ("trace", "own.py:Plain", "-i", "3x4", "--format", "dot"): "only for `hookcli graph`",
    ("trace", "own.py:Frozen", "-i", "3x4"): "no gradients: nothing in the output requires grad",
    ("trace", "own.py:Frees", "-i", "3x4"): "the graph was freed by an earlier backward",
    ("trace", "own.py:HookFails", "-i", "3x4"): "second (Linear) failed on input 3x4: ValueError: a hook of theirs",
    ("trace", "own.py:HookFails", "-i", "3x4", "--arg", "when=backward"): "backward failed: ValueError: a hook of",
    ("trace", *NET, "--kinds", "full_backward"): "a full backward hook has made a view, which PyTorch refuses",
    ("trace", "quantized_resnet18", "--arg", "quantize=true", "-i", "1x3x64x64", "--kinds", "node"): "no gradients",
}


@pytest.mark.parametrize("argv", [swept(argv) if "quantize=true" in argv else argv for argv in MISTAKES], ids=" ".join)
def test_mistakes_get_a_clear_line(cli: Cli, own: Path, argv: tuple[str, ...]) -> None:
    before = global_hooks()
    require_clear_error(cli(*argv), MISTAKES[argv])
    assert global_hooks() == before
