"""The lines below a recorded step: parameter groups, times, memory."""

from __future__ import annotations

from typing import Any

from hookcli import registry
from hookcli.reporters.step_lines import before_clipping, step_lines
from hookcli.table import Column, Report, Row
from hookcli.table.grouping import View

_TIMES = {"data": 0.005, "forward": 0.08, "backward": 0.12, "optimizer": 0.01, "rest": 0.0031, "hookcli": 0.05}
TIMES = {f"{part}_seconds": seconds for part, seconds in _TIMES.items()}


def group(number: int = 0, **values: Any) -> dict[str, Any]:
    settings = {"lr": 0.001, "weight_decay": 0.01, "momentum": None, "betas": [0.9, 0.999]}
    norms = {"unclipped_grad": 45.0, "param_grad": 1.0, "weight": 120.0, "update": 0.12, "ratio": 0.001}
    return {"optimizer": "AdamW", "group": number, "parameters": 25_000_000, **settings, **norms} | values


def test_one_group() -> None:
    assert step_lines({"groups": [group()], **TIMES, "resident_bytes": 3 * 2**30}) == [
        "AdamW: learning rate 0.001, betas 0.9, 0.999, weight decay 0.01",
        "time: data 5 ms, forward 80 ms, backward 0.12 s, optimizer 10 ms, rest 3 ms",
        "hookcli's own work 50 ms · 3 GiB resident",
    ]


def test_several_groups_are_a_table_of_what_differs() -> None:
    lines = step_lines({"groups": [group(), group(1, lr=0.1, weight_decay=0.0, ratio=float("nan"))]})
    assert lines == [
        "AdamW: betas 0.9, 0.999",
        "group  params  learning rate  weight decay  gradient  weights  |dw|/|w|",
        "    0    25 M          0.001          0.01     1.000    120.0  0.001000",
        "    1    25 M            0.1             0     1.000    120.0         -",
    ]
    assert step_lines({"groups": [group(n) for n in range(9)]})[-1] == (
        "… and 3 more groups (--probe optimizer shows them)"
    )
    both = step_lines({"groups": [group(betas=None), group(optimizer="SGD", momentum=0.9)]})
    assert both[0] == "AdamW, SGD: learning rate 0.001, weight decay 0.01" and "momentum" in both[1]


def test_the_norm_before_clipping_is_beside_the_one_after() -> None:
    report = Report("run", "Net", [Column("fqn", "Layer")], [Row({"fqn": "a"})], totals={"param_grad": 1.0})
    for before, said in (
        (45.0, "parameters 1.000 (45.00 before clipping)"),
        (1.0000001, "parameters 1.000\n"),
        (float("nan"), "parameters 1.000\n"),
    ):
        whole = Report(**{f: getattr(report, f) for f in ("probe", "model", "columns", "rows")},
                       totals={**report.totals, "unclipped_grad": before, **TIMES})  # fmt: skip
        text = registry.load("reporters", "table")().render([whole], View(width=80))
        assert f"gradient of the {said}" in text and max(map(len, text.splitlines())) <= 80
    cleared = {"param_grad": 0.0, "unclipped_grad": 3.25}
    assert before_clipping(cleared) == " (3.250 before the program cleared it)"
