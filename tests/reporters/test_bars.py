"""Bars beside figures, on terminals alone, and histograms."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import swept
from torch import nn

import hookcli
from hookcli.registry import load
from hookcli.reporters.table_cells import tabulated
from hookcli.table import Report
from hookcli.table.grouping import View
from hookcli.tensors.stats import measure, resolve

Cli = Callable[..., Any]
BLOCKS = "▏▎▍▌▋▊▉█▁▂▃▄▅▆▇"


def vanishing() -> Report:
    torch.manual_seed(0)
    layers = [layer for _ in range(12) for layer in (nn.Linear(32, 32), nn.Sigmoid())]
    return hookcli.capture(nn.Sequential(*layers), torch.randn(8, 32), ["grads"])[0]


def lines(report: Report, width: int | None, color: bool = False) -> list[str]:
    view = View(width=width, color=color, bars=width is not None)
    text = load("reporters", "table")().render([report], view)
    return [line.rstrip() for line in re.sub("\x1b.*?m", "", text).splitlines()]


def length(line: str) -> int:
    """A bar's length in eighths of a character."""
    return sum(8 if mark == "█" else 1 + max("▏▎▍▌▋▊▉".find(mark), "▁▂▃▄▅▆▇".find(mark)) for mark in line)


@pytest.mark.sweep
@pytest.mark.parametrize("width", [90, swept(120), 200])
def test_bars_of_gradients_are_as_long_as_their_norms_are_large(width: int) -> None:
    report = vanishing()
    rows = [line for line in lines(report, width) if line.split()[0] in {row.fqn for row in report.rows}]
    norms = {row.fqn: row["l2"] for row in report.rows}
    ordered = sorted(rows, key=lambda line: norms[line.split()[0]])
    lengths = [length(line) for line in ordered]
    assert lengths == sorted(lengths) and lengths[0] >= 1 and lengths[-1] > lengths[0] + 5
    assert max(map(len, lines(report, width))) <= width
    assert lines(report, width, color=True) == lines(report, width)
    assert any(line.startswith("Bars on a log scale: L2") for line in lines(report, width))


def test_no_bar_is_of_one_cell() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(8, 8 * n) if n % 2 else nn.Linear(8 * n - 8, 8) for n in range(1, 9)))
    report = hookcli.capture(net, torch.randn(2, 8), ["shapes"])[0]
    lengths = set()
    for width in range(60, 200):
        of_rows = [bars[0] for bars in tabulated(report, View(width=width, bars=True)).bars if bars]
        lengths |= {len(one) - 1 for one in of_rows}  # but for the space before it
    assert min(lengths) == 2 and max(lengths) > 4


@pytest.mark.sweep
def test_bars_hide_no_column_and_a_pipe_has_none() -> None:
    report = vanishing()
    assert not any(mark in line for line in lines(report, None) for mark in BLOCKS)
    heading = next(line for line in lines(report, 80) if "Mean" in line)
    assert heading.split() == ["Name", "Shape", "Mean", "Std", "Min", "Max", "L2", "Zeros"]  # the norm before the type
    for width in (40, 59, 60, 61, 80, 100, 129):
        assert max(map(len, lines(report, width))) <= max(width, 60), width


@pytest.mark.sweep
def test_a_width_that_is_asked_for_makes_no_terminal(cli: Cli, net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    piped = cli("grads", "net.py:Net", "-i", "2x3x4x4").out
    assert cli("grads", "net.py:Net", "-i", "2x3x4x4", "-o", "t.txt").code == 0
    for text in (piped, Path("t.txt").read_text("utf-8")):
        assert "fc.weight" in text and max(map(len, text.splitlines())) <= 120
        assert not {*BLOCKS} & {*text} and "Bars:" not in text
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert {*BLOCKS} & {*cli("grads", "net.py:Net", "-i", "2x3x4x4").out}


def test_kept_and_the_shares_of_parameters_and_macs_have_bars() -> None:
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))
    report = hookcli.capture(net, torch.randn(8, 64), ["shapes"])[0]
    for column, linear in (("kept", False), ("params_share", True), ("macs_share", True)):
        shown = report.table(columns=["fqn", column], depth="all")
        text = load("reporters", "table")().render([shown._report], View(width=60, bars=True, columns=["x"]))
        lengths = {line.split()[0]: length(line) for line in text.splitlines() if line.split()[0] in {"0", "1", "2"}}
        figures = {row.fqn: row[column] for row in report.rows}
        assert len(lengths) == 3
        for fqn, bar in lengths.items():
            if linear:
                assert bar == pytest.approx(figures[fqn] * 7 * 8, abs=1), (column, fqn)
        assert sorted(lengths, key=lengths.__getitem__) == sorted(lengths, key=figures.__getitem__)
        assert not any(mark in str(shown) for mark in BLOCKS)


def test_zeros_are_shares_and_nothing_is_no_bar() -> None:
    report = hookcli.capture(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.randn(64, 4), ["activations"])[0]
    relu = next(line for line in lines(report, 120) if "ReLU" in line)
    linear = next(line for line in lines(report, 120) if "Linear" in line)
    share = float(relu.split("%")[0].split()[-1])
    assert length(relu.partition("%")[2]) == pytest.approx(share / 100 * 7 * 8, abs=8) and "0" in linear
    assert not any(mark in linear.rpartition("  0")[2] for mark in BLOCKS)


def test_a_layers_histogram_is_drawn(cli: Cli, net: Path) -> None:
    ran = cli("activations", "net.py:Net", "-i", "2x3x4x4", "--hist", "conv")
    assert ran.code == 0, ran.err
    title, *bars = ran.out.splitlines()
    assert title.startswith("conv (Conv2d) · 2x")
    bars = [line for line in bars if " to " in line and "%" in line]
    assert sum(float(line.split("%")[0].split()[-1].lstrip("<")) for line in bars) == pytest.approx(100, abs=2)
    assert cli("activations", "--hist", "conv", "net.py:Net", "-i", "2x3x4x4").out.splitlines()[0] == title
    table = cli("activations", "--hist", "net.py:Net", "-i", "2x3x4x4").out  # the bare option, before MODEL
    assert "Median" in table and "net.py:Net" in table.splitlines()[1]
    grads = cli("grads", "net.py:Net", "-i", "2x3x4x4", "--hist", "conv").out
    assert [line.split()[0] for line in grads.splitlines() if " · parameter · " in line] == ["conv.weight", "conv.bias"]
    rows = cli("activations", "net.py:Net", "-i", "2x3x4x4", "--hist", "conv", "-f", "csv").out.splitlines()
    assert len(rows) == 2 and "p50" in rows[0]
    assert "a second MODEL" in cli("activations", "net.py:Net", "other", "-i", "2x3x4x4").err
    assert "leave out --match" in cli("activations", "net.py:Net", "--hist", "conv", "--match", "conv").err


def test_bins_hold_what_lies_between_their_ends() -> None:
    from hookcli.reporters.distributions import fitted

    x = torch.cat([torch.randn(2000) * 10.0 ** torch.randint(-12, 4, (2000,)), torch.zeros(50)])
    stats = resolve([measure(x, hist=True)])[0]
    for limit in (12, 30, 200):
        bins = fitted(stats, limit)
        assert 2 < len(bins) <= limit and sum(count for *_, count in bins) == x.numel()
        for low, high, count in bins[1:-1]:
            inside = (x == 0) if low == high == 0 else (x >= low) & (x < high) if low >= 0 else (x > low) & (x <= high)
            assert int(inside.sum()) == count, (low, high)
        assert math.isclose(bins[0][0], stats.min) and math.isclose(bins[-1][1], stats.max)


@pytest.mark.parametrize("mean", [0.0, 10.0, 100.0])
def test_bins_are_of_equal_width_where_the_values_allow(mean: float) -> None:
    """As numpy counts them. Beside an outlier, powers of two show more."""
    from hookcli.reporters.distributions import fitted

    x = torch.randn(4000, generator=torch.Generator().manual_seed(5)) * 3 + mean
    bins = fitted(resolve([measure(x, hist=True)])[0], 40)
    edges = [bins[0].low, *(one.high for one in bins)]
    assert [one.elements for one in bins] == np.histogram(x.double().numpy(), edges)[0].tolist()
    assert len({one.high - one.low for one in bins[1:-1]}) == 1 and len(bins) > (20 if mean < 100 else 8)
    bins = fitted(resolve([measure(torch.cat([x - mean, torch.tensor([1e4])]), hist=True)])[0], 40)
    assert bins[-1].low == 2.0**13 and len(bins) > 15


@pytest.mark.sweep
def test_bars_of_nothing_to_compare_are_none() -> None:
    """A lone figure, however small a part of the whole, has none, nor have norms of tensors at rest."""
    one = hookcli.capture(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.randn(64, 4), ["shapes"])[0]
    rows = [row for row in one.rows if row.fqn == "0"]
    for report, bar in ((one, True), (dataclasses.replace(one, rows=rows), False)):
        (line,) = (line for line in lines(report, 200) if line.startswith("0  "))
        assert bool(re.search(r" KiB +[▏▎▍▌▋▊▉█]", line)) == bar and " KiB" in line
    grads, at_rest = vanishing(), [{"bytes": row["numel"] * 4, **row.values} for row in vanishing().rows]
    weights = [dataclasses.replace(row, values=new) for row, new in zip(grads.rows, at_rest, strict=True)]
    assert "Bars" in str(lines(grads, 200)) and "Bars" not in str(lines(dataclasses.replace(grads, rows=weights), 200))
