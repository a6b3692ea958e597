"""Runs of Weights & Biases, read back from their files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reporters.exports import (
    figures,
    one_shot,
    reports,
    require_library,
    require_refused,
    same,
    tag,
    wandb_runs,
    with_histogram,
)

from hookcli import registry
from hookcli.table import TensorStats
from hookcli.table.grouping import View

pytestmark = pytest.mark.xdist_group("wandb")  # which is imported once
Cli = Callable[..., Any]


@pytest.mark.sweep
def test_wandb_has_a_run_for_each_model_and_phase(cli: Cli, record: Path) -> None:
    ran = cli("show", record.name, "-f", "wandb", "-o", "here")
    assert ran.code == 0 and ran.out == "" and "`wandb sync here/wandb/offline-run-*` uploads them" in ran.err
    expected: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for report in reports(cli, "show", record.name, "--step", "all"):
        line = {tag(report, row, name): value for row, name, value in figures(report)}
        expected.setdefault((report["model"], report["meta"]["phase"]), []).append(
            line | {"step": report["meta"]["step"]}
        )
    found = {}
    for config, history, run in wandb_runs(Path("here")):
        found[config["model"], config["phase"]] = [
            {key: value for key, value in line.items() if key[:1] != "_"} for line in history
        ]
        assert config["command"] == "train.py --epochs 3" and config["every"] == 100
        assert run.run_group == "train.py" and run.job_type == config["phase"]
    assert found.keys() == expected.keys()
    for key, wanted in expected.items():
        for mine, theirs in zip(wanted, found[key], strict=True):
            assert mine.keys() == theirs.keys() and all(same(value, theirs[name]) for name, value in mine.items())
    assert cli("show", record.name, "-f", "wandb", "-o", "here").code == 0  # beside the others
    assert len(list(wandb_runs(Path("here")))) == 6


def test_a_place_that_cannot_be_a_folder(cli: Cli, record: Path) -> None:
    require_refused(cli, record, ("-f", "wandb", "-o", "r.run.jsonl/x"), "can't write to r.run.jsonl/")


def test_a_library_that_is_missing_is_named_with_its_command(
    cli: Cli, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    require_library(cli, "wandb", "wandb")


def test_one_shot_commands(cli: Cli, net: Path) -> None:
    report = one_shot(cli, "wandb", ".")
    [(config, [line], _)] = wandb_runs(Path())
    assert config["device"] == "cpu" and config["torch"] == report["meta"]["torch"]
    assert line["activations.max/conv"] == next(row["max"] for row in report["rows"] if row["fqn"] == "conv")


@pytest.mark.sweep
def test_histograms_by_sign_and_power_of_two(tmp_path: Path) -> None:
    hist = {"low": -1, "negative": [0, 2, 0], "positive": [1, 0, 3], "overflows": [0, 0, 0, 0]}
    report = with_histogram(hist, TensorStats(8, 0.5, 1, -1.5, 3, 4, zeros=2))
    registry.load("reporters", "wandb")().export([report], View(), tmp_path)
    [(_, [line], _)] = wandb_runs(tmp_path)
    value = line["activations.hist/body"]
    assert value["_type"] == "histogram"
    assert value["bins"] == [-2, -1, -0.5, 0.5, 1, 2, 4] and value["values"] == [2, 0, 2, 1, 0, 3]


@pytest.mark.sweep
def test_a_histogram_with_more_powers_of_two_than_wandb_takes(tmp_path: Path) -> None:
    """As float64 has, and both signs of float32: 513 buckets, each of which then spans two powers."""
    negative, positive = [1, *[0] * 254, 7], [*[0] * 255, 5]
    hist = {"low": -255, "negative": negative, "positive": positive, "overflows": [0, 0, 0, 0]}
    stats = TensorStats(16, 0.5, 1, -1.5, 1.5, 4, zeros=3)
    report = with_histogram(hist, stats)
    registry.load("reporters", "wandb")().export([report], View(), tmp_path)
    [(_, [line], _)] = wandb_runs(tmp_path)
    value = line["activations.hist/body"]
    assert len(value["values"]) == 2 * 129 + 1 and sum(value["values"]) == 16
    assert value["bins"][:2] == [-4, -1] and value["bins"][-2:] == [1, 4]
    assert [value["values"][at] for at in (0, 128, 129, 130, -1)] == [7, 1, 3, 0, 5]
