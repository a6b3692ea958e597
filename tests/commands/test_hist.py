"""`--hist`: histograms in a command's report, and in a record; by several processes, too."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from observing import observed, rows
from record.observe.figures import net
from torch import Tensor, nn

from hookcli.table.files import read_reports
from hookcli.table.histogram import Histogram
from hookcli.table.stats import HIST_KEYS
from hookcli.tensors.stats import measure, resolve

Cli = Callable[..., Any]


def histogram(x: Tensor) -> Histogram | None:
    return resolve([measure(x, hist=True)])[0].hist


@pytest.mark.parametrize("command", ["activations", "inputs", "grads"])
def test_a_command_with_histograms(command: str, cli: Cli, net: Path) -> None:
    ran = cli(command, "net.py:Net", "-i", "2x3x4x4", "--hist", "-f", "json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)["reports"][0]
    for row in found["rows"]:
        hist = row["hist"]
        assert sum(hist["negative"]) + row["zeros"] + sum(hist["positive"]) == row["numel"]
    without = json.loads(cli(command, "net.py:Net", "-i", "2x3x4x4", "-f", "json").out)["reports"][0]
    of_histogram = {"hist", *HIST_KEYS}
    assert [{k: v for k, v in row.items() if k not in of_histogram} for row in found["rows"]] == without["rows"]
    table = list(csv.DictReader(io.StringIO(cli(command, "net.py:Net", "-i", "2x3x4x4", "--hist", "-f", "csv").out)))
    for row, line in zip(found["rows"], table, strict=True):
        assert [row[key] for key in HIST_KEYS] == [float(line[key]) for key in HIST_KEYS]
        assert row["min"] <= float(line["p1"]) <= float(line["p50"]) <= float(line["p99"]) <= row["max"]
        assert 0 == int(line["outside_float16"]) <= int(line["outside_float8_e4m3"]) <= row["numel"]


def test_quantiles_alone_in_json_and_read_again(cli: Cli, net: Path) -> None:
    words = ("activations", "net.py:Net", "-i", "2x3x4x4", "--hist")
    chosen = json.loads(cli(*words, "--columns", "fqn,p50,outside_float16", "-f", "json").out)["reports"][0]["rows"]
    assert cli(*words, "-o", "a.json").code == 0
    [report] = read_reports("a.json")
    assert [row["p50"] for row in report.rows] == [row["p50"] for row in chosen] and None not in chosen[0].values()
    assert not any(key in row.values for row in report.rows for key in HIST_KEYS)  # computed again where rows merge


@pytest.mark.sweep
def test_several_processes_merge_their_histograms(cli: Cli, net: Path) -> None:
    own = ("activations", "net.py:Net", "-i", "4x3x4x4", "--hist", "--match", "conv", "-f", "json")
    one, two = (json.loads(cli(*own, *more).out)["reports"][0]["rows"] for more in ((), ("--nproc", "2")))
    assert [row["hist"] for row in one] == [row["hist"] for row in two]


def test_a_record_with_histograms() -> None:
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(2))

    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for part in x.split(3):
            model(part).sum().backward()
        optimizer.step()
        return model

    recorded = observed(program, hist=True).only
    model = net()
    first = model[0](x)
    model(x).sum().backward()
    assert rows(recorded, "activations")["0"].stats.hist == histogram(first)  # of both micro-batches
    grad = model[0].weight.grad
    found = rows(recorded, "grads", "parameter")["0.weight"].stats
    assert found.hist is not None and sum(found.hist.negative) == int((grad < 0).sum())
    assert float(np.median(grad.numpy())) == pytest.approx(found.of_histogram("p50"), abs=2.0)
