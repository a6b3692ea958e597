"""Histograms, as TensorBoard and Weights & Biases show them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from records import activation
from reporters.exports import wandb_runs
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hookcli import registry
from hookcli.reporters import series
from hookcli.table import Report, TensorStats
from hookcli.table.grouping import View
from hookcli.table.histogram import Histogram


@pytest.mark.xdist_group("wandb")  # which is imported once
def test_histograms_by_sign_and_power_of_two(tmp_path: Path) -> None:
    hist = {"low": -1, "negative": [0, 2, 0], "positive": [1, 0, 3], "overflows": [0, 0, 0, 0]}
    stats = TensorStats(8, 0.5, 1, -1.5, 3, 4, zeros=2)
    row = activation("body", "Linear", stats)
    report = Report("activations", "Net", [], [replace(row, values={**row.values, "hist": hist})])
    for name in ("tensorboard", "wandb"):
        (tmp_path / name).mkdir()
        registry.load("reporters", name)().export([report], View(), tmp_path / name)
    events = EventAccumulator(str(tmp_path / "tensorboard/Net")).Reload()
    found = events.Histograms("activations.hist/body")[0].histogram_value
    assert (found.min, found.max, found.num, found.sum, found.sum_squares) == (-1.5, 3, 8, 4.0, 16)
    # Between -2 and -1 two, then none until -0.5, two zeros, one up to 1, none up to 2, three up to 4.
    assert found.bucket_limit == [-1, -0.5, 0.5, 1, 2, 4] and found.bucket == [2, 0, 2, 1, 0, 3]
    [(_, [line], _)] = wandb_runs(tmp_path / "wandb")
    value = line["activations.hist/body"]
    assert value["_type"] == "histogram"
    assert value["bins"] == [-2, -1, -0.5, 0.5, 1, 2, 4] and value["values"] == [2, 0, 2, 1, 0, 3]


@pytest.mark.xdist_group("wandb")
def test_a_histogram_with_more_powers_of_two_than_wandb_takes(tmp_path: Path) -> None:
    """As float64 has, and both signs of float32: 513 buckets, each of which then spans two powers."""
    negative, positive = [1, *[0] * 254, 7], [*[0] * 255, 5]
    hist = {"low": -255, "negative": negative, "positive": positive, "overflows": [0, 0, 0, 0]}
    stats = TensorStats(16, 0.5, 1, -1.5, 1.5, 4, zeros=3)
    row = activation("body", "Linear", stats)
    report = Report("activations", "Net", [], [replace(row, values={**row.values, "hist": hist})])
    registry.load("reporters", "wandb")().export([report], View(), tmp_path)
    [(_, [line], _)] = wandb_runs(tmp_path)
    value = line["activations.hist/body"]
    assert len(value["values"]) == 2 * 129 + 1 and sum(value["values"]) == 16
    assert value["bins"][:2] == [-4, -1] and value["bins"][-2:] == [1, 4]
    assert [value["values"][at] for at in (0, 128, 129, 130, -1)] == [7, 1, 3, 0, 5]


def test_a_report_without_the_zeros_has_no_histograms() -> None:
    hist = Histogram.from_dict({"low": -1, "negative": [0, 2, 0], "positive": [1, 0, 3], "overflows": [0, 0, 0, 0]})
    row = activation("body", "Linear", TensorStats(8, 0.5, 1, -1.5, 3, 4, zeros=2, hist=hist))
    data = Report("activations", "Net", [], [row]).to_dict()
    [point] = series.points([Report.from_dict(data)])
    assert [*point.histograms] == ["activations.hist/body"]
    del data["rows"][0]["zeros"]
    report = Report.from_dict(data)
    assert not [*series.points([report])]
    assert "no histogram: saved without zeros" in registry.load("reporters", "hist")().render([report], View())
    assert report.rows[0]["p50"] is None and report.rows[0]["outside_float16"] == 0  # which needs no zeros


def test_a_histogram_whose_sum_of_squares_is_beyond_the_largest_float(tmp_path: Path) -> None:
    hist = {"low": 514, "negative": [0, 0], "positive": [0, 1], "overflows": [1, 1, 1, 1]}
    row = activation("body", "Linear", TensorStats(1, 1e155, math.nan, 1e155, 1e155, 1e155))
    report = Report("activations", "Net", [], [replace(row, values={**row.values, "hist": hist})])
    registry.load("reporters", "tensorboard")().export([report], View(), tmp_path)
    events = EventAccumulator(str(tmp_path / "Net")).Reload()
    assert events.Histograms("activations.hist/body")[0].histogram_value.sum_squares == math.inf
