"""Outlier channels over layers, against peaks that plain hooks saw."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import untouched
from torch import Tensor, nn

import hookcli
from hookcli.capabilities.formats.channels import ChannelsProbe

Cli = Callable[..., Any]
SOURCE = """
from torch import nn
def net():
    model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 4))
    model[0].weight.data[5] = 300.0
    return model
"""


class Block(nn.Module):
    """A normalized layer beside a residual stream, as in a transformer; `scales` of channels of the norm."""

    def __init__(self, scales: dict[int, float]) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 96), nn.Linear(96, 64)
        for channel, scale in scales.items():
            self.norm.weight.data[channel] = scale

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(torch.tanh(self.up(self.norm(x))))
        return out


def net() -> nn.Module:
    """Channel 7 stands out in three blocks of four, channel 9 in one, channel 3 nowhere (7 times the others)."""
    torch.manual_seed(0)
    return nn.Sequential(Block({7: 300.0, 9: 60.0}), Block({}), Block({7: 90.0}), Block({7: 200.0, 3: 3.0})).eval()


def channels(model: nn.Module, *inputs: Tensor, **options: Any) -> hookcli.Report:
    return hookcli.capture(model, *inputs, probes=[ChannelsProbe()], **options)[0]


def by_hand(model: nn.Module, x: Tensor) -> dict[str, np.ndarray]:
    """The largest magnitude of each channel that a linear layer receives, as NumPy finds it."""
    peaks: dict[str, np.ndarray] = {}
    layers = {fqn: module for fqn, module in model.named_modules() if isinstance(module, nn.Linear)}
    for fqn, layer in layers.items():

        def see(_: nn.Module, args: tuple[Tensor, ...], fqn: str = fqn) -> None:
            peaks[fqn] = np.abs(args[0].detach().numpy().reshape(-1, args[0].shape[-1])).max(0)

        layer.register_forward_pre_hook(see)
    with torch.no_grad():
        model(x)
    return peaks


def test_channels_are_counted_over_the_layers_in_which_they_stand_out() -> None:
    model, x = net(), torch.randn(2, 16, 64, generator=torch.Generator().manual_seed(0))
    with untouched(model):
        shown = channels(model, x)
    peaks = by_hand(net(), x)
    ups = {fqn: one / np.sort(one)[(len(one) - 1) // 2] for fqn, one in peaks.items() if fqn.endswith("up")}
    rows = {row["channel"]: row for row in shown.rows if row["channels"] == 64}
    assert {channel: row["outlier_inputs"] for channel, row in rows.items()} == {7: 3, 9: 1}
    for channel, row in rows.items():
        assert row["outlier_inputs"] == sum(times[channel] > 8 for times in ups.values()) and row["inputs_seen"] == 4
        where = max(ups, key=lambda fqn: float(ups[fqn][channel]))
        assert row.fqn == where and row["times_median"] == pytest.approx(float(ups[where][channel]))
        assert row["peak"] == pytest.approx(max(float(peaks[fqn][channel]) for fqn in ups))
    [other] = [row for row in shown.rows if row["channels"] == 96]
    assert other["outlier_inputs"] == 0 and other["inputs_seen"] == 4
    assert shown.totals["verdict"] == (
        f"Channel 7 is an outlier in 3 of the 4 inputs with 64 channels (75%), 9 in 1: up to "
        f"{rows[7]['times_median']:.1f} times the median channel's peak, in 0.up (7)"
    )


def test_peaks_are_those_of_all_calls_and_of_channels_of_images() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(16, 16, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.conv(x) + self.conv(x * self.scales)
            return out

    torch.manual_seed(0)
    model, x = Twice(), torch.randn(2, 16, 8, 8)
    model.register_buffer("scales", torch.ones(16, 1, 1))
    model.scales[5] = -40.0
    [row] = channels(model, x).rows
    assert (row["channel"], row["outlier_inputs"], row["inputs_seen"]) == (5, 1, 1)
    assert row["peak"] == float(x[:, 5].abs().max() * 40)


def test_a_channel_that_is_large_in_one_row_alone_is_no_outlier() -> None:
    """By NumPy's count of the rows above the median channel's peak; a single row can't tell."""
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    x[3, 7] = 1000.0
    shown = channels(nn.Linear(32, 4), x)
    [row] = shown.rows
    magnitudes = x.abs().numpy()
    share = (magnitudes[:, 7] > np.sort(magnitudes.max(0))[15]).mean()
    assert (row["channel"], row["outlier_inputs"], row["row_share"]) == (7, 0, share) and share < 0.06
    assert str(shown.totals["verdict"]).endswith(f" times the median channel's peak, in {share:.1%} of its rows")
    x[:, 9] *= 30
    rows = {row["channel"]: row for row in channels(nn.Linear(32, 4), x).rows}
    magnitudes = x.abs().numpy()
    peak = np.sort(magnitudes.max(0))[15]
    assert rows[9]["outlier_inputs"] == 1 and 7 not in {c for c, one in rows.items() if one["outlier_inputs"]}
    [row] = [one for one in channels(nn.Linear(32, 4), x).rows if one["channel"] == 9]
    assert row["row_share"] == (magnitudes[:, 9] > peak).mean() > 0.5
    assert [one["outlier_inputs"] for one in channels(nn.Linear(32, 4), x[3:4]).rows] == [1]


def test_without_an_outlier_the_channel_furthest_above_the_median_is_named() -> None:
    torch.manual_seed(0)
    shown = channels(nn.Sequential(nn.Linear(32, 48), nn.Linear(48, 4)), torch.randn(64, 32))
    assert [row["outlier_inputs"] for row in shown.rows] == [0, 0]
    most = max(shown.rows, key=lambda row: float(row["times_median"]))
    assert str(shown.totals["verdict"]).startswith(
        f"No outlier channel in 2 inputs of layers: the largest, {most['channel']} of layer {most.fqn}, has "
    )
    none = channels(nn.Embedding(4, 4), torch.arange(3))
    assert none.totals["verdict"] == "No layer with weights received a floating-point tensor" and not none.rows


def test_channels_that_more_than_an_eighth_share_and_values_that_are_not_finite_are_no_outliers() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 32)
    x[:, :5] *= 100
    assert [row["outlier_inputs"] for row in channels(nn.Linear(32, 4), x).rows] == [0]
    x[:, 1:5] /= 100
    x[3, 9], x[4, 10] = math.inf, math.nan
    shown = channels(nn.Sequential(nn.Linear(32, 4)), x)
    assert [(row["channel"], row["outlier_inputs"]) for row in shown.rows] == [(0, 1)]
    assert str(shown.totals["verdict"]).startswith(
        "layer 0 (input) has values that are not finite, left out: Channel 0"
    )


def test_channels_that_are_0_throughout_are_left_out_of_the_median() -> None:
    """As after a ReLU that keeps most channels at 0."""
    x = torch.zeros(4, 32)
    x[:, 3], x[:, 5:9] = 100.0, 2.0
    [row] = channels(nn.Linear(32, 4), x).rows
    assert (row["channel"], row["outlier_inputs"], row["times_median"]) == (3, 1, 50.0)
    assert "every value is 0" in str(channels(nn.Linear(32, 4), torch.zeros(4, 32)).totals["verdict"])


def test_inputs_of_attention_stand_at_its_name() -> None:
    attention, x, memory = nn.MultiheadAttention(16, 2, kdim=8, vdim=8), torch.randn(5, 2, 16), torch.randn(5, 2, 8)
    rows = channels(nn.Sequential(attention)[0], x, memory, memory).rows
    assert {(row.fqn, row["path"]) for row in rows} == {("", "[0]"), ("", "[1]")}


def test_the_command_says_which_channels_and_refuses_formats(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(SOURCE)
    line = ("formats", "net.py:net", "--input", "16x64", "--channels")
    ran = cli(*line)
    assert ran.code == 0 and ran.out.startswith("Channel 5 is an outlier in the only input with 64 channels: ")
    [made] = json.loads(cli(*line, "-f", "json").out)["reports"]
    assert (made["probe"], made["rows"][0]["channel"], made["rows"][0]["fqn"]) == ("channels", 5, "1")
    for option, value in (("--to", "int8"), ("--of", "weights"), ("--loss", "sum")):
        ran = cli(*line, option, value)
        assert ran.code == 2 and f"--channels and {option}: leave one of them out" in ran.err
