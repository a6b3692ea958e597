"""Event files, read back with the reader of TensorBoard."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reporters.exports import (
    INF,
    figures,
    float32,
    one_shot,
    reports,
    require_library,
    require_refused,
    same,
    tag,
    with_histogram,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hookcli import registry
from hookcli.table import TensorStats
from hookcli.table.grouping import View

Cli = Callable[..., Any]


def test_tensorboard_has_every_figure_of_every_step(cli: Cli, record: Path) -> None:
    ran = cli("show", record.name, "-f", "tensorboard", "-o", "runs/x")
    assert ran.code == 0 and ran.out == ""
    assert "wrote runs/x: " in ran.err and "`tensorboard --logdir runs/x` shows them" in ran.err
    assert "the last line is cut (" in ran.err
    folders = {("Net", "train"): "Net/train", ("Net", "no_grad"): "Net/no_grad", ("../G /x", "train"): "_G _x/train"}
    assert {str(path.parent.relative_to("runs/x")) for path in Path("runs").rglob("*tfevents*")} == set(
        folders.values()
    )
    expected: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for report in reports(cli, "show", record.name, "--step", "all"):
        for row, name, value in figures(report):
            run = folders[report["model"], report["meta"]["phase"]]
            expected.setdefault((run, tag(report, row, name)), []).append((row["step"], float32(value)))
    found = {}
    for run in folders.values():
        events = EventAccumulator(f"runs/x/{run}", {"scalars": 0, "tensors": 0}).Reload()
        found |= {(run, t): [(e.step, e.value) for e in events.Scalars(t)] for t in events.Tags()["scalars"]}
        said = events.Tensors("run")[0].tensor_proto.string_val[0].decode()
        assert "    command: train.py --epochs 3" in said and "    phase: " in said
    assert found.keys() == expected.keys() and len(found) > 90
    for key, values in expected.items():
        assert all(s == t and same(v, w) for (s, v), (t, w) in zip(values, found[key], strict=True)), key
    assert [v for _, v in found["Net/train", "(model)/loss"]] == [2.0, float32(2 / 101), INF]
    assert [s for s, _ in found["Net/no_grad", "activations.std/head"]] == [100, 100]


def test_a_folder_that_holds_something_is_left_alone(cli: Cli, record: Path) -> None:
    Path("runs").mkdir()
    assert cli("show", record.name, "-f", "tensorboard", "-o", "runs").code == 0
    before = sorted(Path("runs").rglob("*"))
    ran = cli("show", record.name, "-f", "tensorboard", "-o", "runs")
    assert ran.code == 2 and "--output runs: is not empty; name another folder, or delete this one" in ran.err
    assert sorted(Path("runs").rglob("*")) == before and not list(Path().glob(".hookcli-*"))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((), "--format tensorboard: name the new folder to write, with --output"),
        (("-o", "r.run.jsonl"), "--output r.run.jsonl: is a file; this format writes a folder"),
    ],
)
def test_mistakes(cli: Cli, record: Path, argv: tuple[str, ...], said: str) -> None:
    require_refused(cli, record, ("-f", "tensorboard", *argv), said)


def test_a_library_that_is_missing_is_named_with_its_command(
    cli: Cli, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("tensorboard", "tensorboard.summary.writer.record_writer"):
        monkeypatch.setitem(sys.modules, module, None)
    require_library(cli, "tensorboard", "tensorboard")


def test_one_shot_commands_and_saved_reports(cli: Cli, net: Path) -> None:
    report = one_shot(cli, "tensorboard", "tb")
    assert cli("show", "a.json", "-f", "tensorboard", "-o", "tb2").code == 0
    for folder in ("tb", "tb2"):
        [path] = Path(folder).rglob("*tfevents*")
        events = EventAccumulator(str(path.parent)).Reload()
        for row in report["rows"]:
            [event] = events.Scalars(f"activations.std/{row['fqn'] or '(model)'}")
            assert (event.step, event.value) == (0, float32(row["std"]))


def test_histograms_by_sign_and_power_of_two(tmp_path: Path) -> None:
    hist = {"low": -1, "negative": [0, 2, 0], "positive": [1, 0, 3], "overflows": [0, 0, 0, 0]}
    report = with_histogram(hist, TensorStats(8, 0.5, 1, -1.5, 3, 4, zeros=2))
    registry.load("reporters", "tensorboard")().export([report], View(), tmp_path)
    events = EventAccumulator(str(tmp_path / "Net")).Reload()
    found = events.Histograms("activations.hist/body")[0].histogram_value
    assert (found.min, found.max, found.num, found.sum, found.sum_squares) == (-1.5, 3, 8, 4.0, 16)
    # Between -2 and -1 two, then none until -0.5, two zeros, one up to 1, none up to 2, three up to 4.
    assert found.bucket_limit == [-1, -0.5, 0.5, 1, 2, 4] and found.bucket == [2, 0, 2, 1, 0, 3]


def test_a_histogram_whose_sum_of_squares_is_beyond_the_largest_float(tmp_path: Path) -> None:
    hist = {"low": 514, "negative": [0, 0], "positive": [0, 1], "overflows": [1, 1, 1, 1]}
    report = with_histogram(hist, TensorStats(1, 1e155, math.nan, 1e155, 1e155, 1e155))
    registry.load("reporters", "tensorboard")().export([report], View(), tmp_path)
    events = EventAccumulator(str(tmp_path / "Net")).Reload()
    assert events.Histograms("activations.hist/body")[0].histogram_value.sum_squares == math.inf
