"""The top of a page: what ran, totals, and runs that did not end."""

from __future__ import annotations

from typing import Any

from hookcli.reporters.html.facts import heads
from hookcli.table import Finding, Report


def report(probe: str, meta: dict[str, Any], totals: dict[str, Any] | None = None, **more: Any) -> Report:
    return Report(probe, more.pop("model", "net"), (), (), meta, totals or {}, **more)  # type: ignore[arg-type]


def test_facts_are_those_of_all_runs() -> None:
    shapes = report("shapes", {"device": "meta", "input": "1x3", "mode": "eval", "seconds": 0.5, "torch": "2.14"})
    measured = {"device": "cuda", "input": "1x3", "mode": "train", "weights": "random", "fill": "randn", "seconds": 1.0}
    loss = {"loss_value": float("nan"), "loss": "mean", "hookcli_seconds": 0.15}
    head = heads([shapes, report("grads", {**measured, **loss})], "reports")[""]
    assert dict(head["facts"]) == {
        "Weights": "random",
        "Input": "1x3 (random)",
        "Mode": "eval / train",
        "Loss": "NaN (mean)",
        "Device": "cuda (shapes, MACs and memory: meta)",
        "Took": "1.50 s",
        "hookcli's part": "0.15 s (10%)",
        "Versions": "torch 2.14",
    }
    assert dict(heads([shapes], "reports")[""]["facts"]).keys() == {"Input", "Device", "Mode", "Took", "Versions"}


def test_totals_name_the_forward_that_they_are_of() -> None:
    totals = {"params": 1500, "trainable": 1500, "macs": 2_000_000, "kept_bytes": 2048, "kept_mode": "train"}
    whole = report("shapes", {"batch": 2, "mode": "eval"}, totals)
    assert heads([whole], "reports")[""]["tiles"] == [
        ("Parameters", "1.5 K", "all trainable"),
        ("MACs", "2 M", "2,000,000 in one forward at batch 2, eval"),
        ("Kept for backward", "2 KiB", "by one forward at batch 2, eval in train mode"),
    ]
    failed = report("shapes", {"complete": False, "error": "boom"}, {**totals, "trainable": 0})
    head = heads([failed], "reports")[""]
    assert [note for _, _, note in head["tiles"]][:2] == ["0 trainable", "2,000,000 in the forward until it failed"]
    assert head["failures"] == ["Incomplete: boom"] and heads([whole], "reports")[""]["failures"] == []
    check = report("check", {}, findings=[Finding("HK001", "error", "", "the forward failed")])
    assert heads([failed, check], "reports")[""]["failures"] == []


def test_each_of_several_models_has_facts_of_its_own_and_a_comparison_those_of_its_differences() -> None:
    a, b = (report("check", {"mode": mode}, model=mode) for mode in ("eval", "train"))
    found = heads([a, b], "model")
    assert dict(found["train"]["facts"]) == {"Mode": "train"} and dict(found[""]["facts"]) == {"Mode": "eval / train"}
    compared = heads([a, report("diff", {"mode": "both"})], "diff")
    passed = {"lamp": "good", "judged": "passed"}
    assert compared == {"": {"facts": [("Mode", "both")], "tiles": [], "failures": [], **passed}}
    faulty = report("check", {}, {"errors": 2, "warnings": 0, "infos": 1})
    assert heads([faulty], "model")[""].items() >= {"lamp": "error", "judged": "2 errors, 1 info"}.items()
    noted = report("check", {}, {"errors": 0, "warnings": 0, "infos": 1})
    assert heads([noted], "model")[""].items() >= {"lamp": "info", "judged": "1 info"}.items()
