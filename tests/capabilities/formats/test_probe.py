"""Figures of tensors in number formats, against their definitions in float64, and the command on screens."""

from __future__ import annotations

import copy
import fcntl
import json
import math
import os
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from capabilities.formats.by_hand import agrees, decibels, right
from small_models import small
from support import Later, swept, untouched
from torch import Tensor, nn

import hookcli
from hookcli.capabilities.formats import figures
from hookcli.capabilities.formats.figures import TensorFigures
from hookcli.capabilities.formats.layout import DEFAULT, FORMATS, USUAL, columns_of
from hookcli.capabilities.formats.probe import FormatsProbe
from hookcli.diff.rows import diff
from hookcli.errors import UsageError
from hookcli.hooks.session import HookSession
from hookcli.tensors.number_formats import rounded

transformers = Later("transformers")
Cli = Callable[..., Any]


def measured(x: Tensor, *formats: str, leading: int = 1, width: int = 1) -> Mapping[str, Any]:
    one = TensorFigures(formats or FORMATS, x.device)
    one.add(x, leading, width)
    return one.values()


def report(model: nn.Module, *inputs: Any, **options: Any) -> hookcli.Report:
    return hookcli.capture(model, *inputs, probes=[FormatsProbe(**options)])[0]


@pytest.mark.parametrize("piece", [128, 1 << 18])
@pytest.mark.parametrize("name", FORMATS)
def test_figures_are_those_of_the_definitions_in_pieces_of_any_size(
    name: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "PIECE", piece)
    torch.manual_seed(0)
    x = torch.randn(24, 108) * torch.exp2(torch.randint(-9, 3, (24, 108)).float())
    x[:, 27:36] *= 50
    x[3] = 0.0
    assert agrees(measured(x, name, width=9), right(x, name, width=9))
    for view in (x.T.contiguous().T, x.expand(2, 24, 108)[1], x.view(4, 6, 108), x.view(24, 12, 3, 3)):
        leading = 2 if view.shape[:2] == (4, 6) else 1
        assert agrees(measured(view, name, leading=leading, width=9), right(x, name, width=9))


def test_a_row_longer_than_a_piece_has_one_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 1000) * torch.linspace(1, 30, 1000)
    whole = {name: right(x, name)[f"sqnr_{name}"] for name in FORMATS}
    monkeypatch.setattr(figures, "PIECE", 256)
    values = measured(x)
    assert {name: values[f"sqnr_{name}"] for name in FORMATS} == pytest.approx(whole)
    assert values["outlier"] is None


def test_saturated_values_are_those_that_lie_more_than_half_a_step_beyond_the_largest() -> None:
    x = torch.zeros(1, 32)
    x[0, :4] = torch.tensor([7.9, 7.1, 6.9, -7.5])  # of e2m1 with scale 1: 6 is the largest, and the next were 8
    assert measured(x, "mxfp4")["saturated_mxfp4"] == 3 / 4
    x[0, :4] = torch.tensor([511.0, 465.0, 463.0, -470.0])
    assert measured(x, "mxfp8")["saturated_mxfp8"] == 3 / 4
    half = measured(torch.tensor([[70000.0, 65519.0, 1.0, 1e-9]]), "float16")
    assert (half["saturated_float16"], half["underflow_float16"], half["sqnr_float16"]) == (1 / 4, 1 / 4, -math.inf)


def test_zeros_scalars_and_values_that_are_not_finite() -> None:
    zeros = measured(torch.zeros(3, 40))
    assert all(zeros[f"sqnr_{name}"] == math.inf and zeros[f"block_error_{name}"] == 0 for name in FORMATS)
    scalar = measured(torch.tensor(3.0), leading=0)
    assert scalar["sqnr_int8"] == math.inf and scalar["outlier"] is None
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    x[1, 2], x[2, 3], x[3, 4] = math.nan, math.inf, -math.inf
    values = measured(x)
    assert values["nonfinite_values"] == 3
    for name in FORMATS:
        assert agrees(values, right(x.nan_to_num(0.0, 0.0, 0.0), name))


def test_values_beyond_float32_are_not_called_infinite() -> None:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[1, 2], x[2, 3], x[3, 4] = 1e300, math.inf, -1e39
    values = measured(x, "int8")
    assert (values["nonfinite_values"], values["beyond_float32"]) == (1, 2)
    x[x.abs() > 1e30] = 0.0
    assert agrees(values, right(x.float(), "int8"))
    model = nn.Linear(64, 4, dtype=torch.float64)
    model.weight.data[0, 0] = 1e200
    shown = report(model, x, of=["weights"], formats=["int8"])
    assert str(shown.totals["verdict"]) == (
        "Values beyond float32 in (model) (weight): the figures are of the other values"
    )


@pytest.mark.sweep
def test_formats_keep_of_normal_values_what_the_table_says() -> None:
    x = torch.randn(256, 4096, generator=torch.Generator().manual_seed(0))
    for name, usual in USUAL.items():
        assert decibels(x, rounded(x, name) - x) == pytest.approx(usual, abs=0.2), name


class Net(nn.Module):
    """A layer of each kind whose rows are found in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv2d(3, 8, 3, groups=1), nn.ConvTranspose2d(8, 5, 2)
        self.linear = nn.Linear(5, 12)
        self.attention = nn.MultiheadAttention(12, 2, batch_first=True)
        self.conv1d = transformers.pytorch_utils.Conv1D(7, 12)
        self.table = nn.Parameter(torch.randn(3, 4))
        self.scale = nn.Parameter(torch.ones(1, 1, 12))

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(self.conv(x)).flatten(2).transpose(1, 2)
        x = self.linear(x) * self.scale
        out: Tensor = self.conv1d(x + self.attention(x, x, x)[0])
        return out


def matrices(model: Net, x: Tensor) -> dict[tuple[str, str], tuple[Tensor, int]]:
    """Each weight and input of the layers as a matrix, with the columns of a channel, by hand."""
    inputs, handles = dict[str, Tensor](), []
    for fqn, module in model.named_modules():
        see = lambda _, args, fqn=fqn: inputs.update({fqn: args[0].detach().clone()})  # noqa: E731
        handles.append(module.register_forward_pre_hook(see))
    with torch.no_grad():  # as hookcli runs it: attention may take another path
        model(x)
    for handle in handles:
        handle.remove()
    conv, up = model.conv.weight.detach(), model.up.weight.detach()
    weight, places = model.attention, "attention.in_proj_weight"
    return {
        ("conv", "weight"): (conv.reshape(8, 27), 9),
        ("up", "weight"): (up.transpose(0, 1).reshape(5, 32), 4),
        ("linear", "weight"): (model.linear.weight.detach(), 1),
        (places, "weight"): (weight.in_proj_weight.detach(), 1),
        ("attention.out_proj", "weight"): (weight.out_proj.weight.detach(), 1),
        ("conv1d", "weight"): (model.conv1d.weight.detach().T, 1),
        ("table", "weight"): (model.table.detach(), 1),
        ("conv", "input"): (inputs["conv"].movedim(1, -1).reshape(-1, 3), 1),
        ("up", "input"): (inputs["up"].movedim(1, -1).reshape(-1, 8), 1),
        ("linear", "input"): (inputs["linear"].reshape(-1, 5), 1),
        (places, "input"): (inputs["attention"].reshape(-1, 12), 1),
        ("conv1d", "input"): (inputs["conv1d"].reshape(-1, 12), 1),
    }


def test_rows_are_output_channels_and_tokens_and_nothing_stays_behind() -> None:
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(2, 3, 6, 6)
    with untouched(model):
        shown = report(model, x, formats=FORMATS)
    expected = matrices(model, x)
    rows = {(row.fqn, row["kind"]): row for row in shown.rows}
    assert rows.keys() == expected.keys() and len(shown.rows) == len(rows)
    for place, (matrix, width) in expected.items():
        for name in FORMATS:
            assert agrees(rows[place], right(matrix, name, width)), (place, name)
    assert "left out: 7 vectors" in str(shown.meta["notes"])  # six biases and `scale`


def test_gradients_are_those_of_what_layers_return() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3)), torch.randn(5, 6)
    shown = report(model, x, of=["gradients"], formats=["nvfp4"])
    hidden = model[0](x).detach().requires_grad_()
    model[2](model[1](hidden)).sum().backward()
    assert [(row.fqn, row["kind"]) for row in shown.rows] == [("2", "gradient"), ("0", "gradient")]
    assert hidden.grad is not None and agrees(shown.rows[1], right(hidden.grad, "nvfp4"))


def test_calls_add_up_and_keep_scales_of_their_own() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(self.layer(x) * 100)
            return out

    torch.manual_seed(0)
    model, x = Twice(), torch.randn(4, 32)
    [row] = report(model, x, of=["activations"], formats=["float8_e5m2"]).rows
    both = [x, model.layer(x).detach() * 100]
    noise = torch.cat([rounded(one, "float8_e5m2") - one for one in both])
    assert row["calls"] == 2 and row["sqnr_float8_e5m2"] == pytest.approx(decibels(torch.cat(both), noise))


def test_calls_in_inference_mode_and_others_add_up() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            with torch.inference_mode():
                self.layer(x + 1)
            out: Tensor = self.layer(x)
            return out

    x = torch.randn(4, 32)
    shown = report(Both(), x, of=["activations"], formats=["mxfp4"])
    both = torch.cat([x + 1, x])
    assert not shown.skipped and shown.rows[0]["calls"] == 2
    assert agrees(shown.rows[0], {"sqnr_mxfp4": decibels(both, rounded(both, "mxfp4") - both)})


def test_what_has_no_row_is_said() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)
            self.head.weight = self.embed.weight
            self.phases = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))
            self.codes = nn.Parameter(torch.zeros(4, 4, dtype=torch.int8), requires_grad=False)
            self.aside = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.embed(x))
            return out

    shown = report(Odd(), torch.arange(6)[None], formats=["mxfp4"])
    assert [(r.fqn, r["kind"]) for r in shown.rows] == [("embed", "weight"), ("aside", "weight"), ("head", "input")]
    reasons = {item.fqn: item.reason for item in shown.skipped}
    assert reasons.keys() == {"head.weight", "phases", "codes", "aside"} and "tied to" in reasons["head.weight"]
    assert reasons["phases"].startswith("complex64") and reasons["codes"].startswith("int8")
    nothing = report(nn.ReLU(), torch.randn(2, 2))
    assert str(nothing.totals["verdict"]).startswith("Nothing to round") and not nothing.rows


def test_bfloat16_is_what_it_is() -> None:
    model, x = nn.Linear(64, 8).bfloat16(), torch.randn(3, 64).bfloat16()
    shown = report(model, x, formats=["bfloat16", "int4"])
    assert [row["sqnr_bfloat16"] for row in shown.rows] == [math.inf] * 2
    assert agrees(shown.rows[0], right(model.weight.detach().float(), "int4"))


def outlier() -> nn.Module:
    """The second layer gets a channel that is 300 times as large as the others."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64))
    with torch.no_grad():
        model[2].weight[7] = 300.0
    return model


def test_the_verdict_names_what_loses_most_and_only_that() -> None:
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    shown = report(outlier(), x, formats=["mxfp8", "mxfp4"])
    verdict = str(shown.totals["verdict"])
    assert verdict.startswith("mxfp4 keeps only ") and "of layer 3 (input) outside channel 7, the largest" in verdict
    assert verdict.endswith("too little for 1 input (of 4 tensors); mxfp8 tolerates all")
    [noted] = [row for row in shown.rows if row.get("note")]
    assert (noted.fqn, noted["kind"], noted["outlier"]) == ("3", "input", 7)
    model = outlier()
    with torch.no_grad():
        model[2].weight[7] = 1.0
    fine = str(report(model, x, formats=["mxfp8", "mxfp4"]).totals["verdict"])
    assert fine.startswith("No tensor loses too much in any of 2 formats; the lowest is ") and ", mxfp8 " in fine
    with torch.no_grad():
        model[1].weight[0, 0], model[3].weight[0, 0] = math.nan, 1e6
    assert str(report(model, x).totals["verdict"]).startswith("NaN or Inf in layer 1 (weight)")
    model[1].weight.data[0, 0] = 0.0
    assert str(report(model, x, of=["weights"], formats=["float16"]).totals["verdict"]).startswith(
        "float16 makes some values of layer 3 (weight) infinite"
    )


def test_formats_that_are_compared_each_have_their_worst_tensor() -> None:
    """By the report's own rows: a format with more bits can be further below its own limit."""
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    shown = report(outlier(), x, formats=["nvfp4", "mxfp4", "int4"])
    verdict = str(shown.totals["verdict"])
    for name in ("nvfp4", "mxfp4", "int4"):
        left = min(min(row[f"sqnr_{name}"], row[f"others_{name}"]) for row in shown.rows)
        assert f"{name} keeps only {left:.1f} dB of layer 3 (input) outside channel 7" in verdict
    assert str(report(outlier(), x).totals["verdict"]).count(" dB of ") == 1


def test_the_verdict_speaks_of_the_formats_that_were_asked_for() -> None:
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    for formats in (["nvfp4", "mxfp4"], ["int8"], ["float8_e4m3fn", "mxfp8"]):
        text = str(report(outlier(), x, formats=formats).totals["verdict"])
        assert {name for name in FORMATS if name in text.replace("(", " ").split()} <= {*formats}


def test_reports_of_other_formats_are_not_equal() -> None:
    """Their shapes and types are, which nobody asked about."""
    model, x = nn.Linear(32, 8), torch.randn(4, 32)
    int4, mxfp4, both = (report(model, x, formats=one) for one in (["int4"], ["mxfp4"], ["int4", "mxfp4"]))
    with pytest.raises(UsageError, match=r"nothing to compare: A has int4, Underflow.* B has mxfp4, Underflow"):
        diff(int4, mxfp4)
    compared = diff(int4, both)
    assert not any(row.get("beyond") for row in compared.rows)
    assert any("in B alone, so not compared: mxfp4, " in note for note in compared.meta["notes"])
    assert not any("alone" in note for note in diff(int4, int4).meta["notes"])
    assert compared.totals["verdict"] == "Equal in every figure, but B alone has mxfp4 and 4 more"
    assert diff(int4, int4).totals["verdict"] == "Equal in every figure"


SOURCE = """
import torch
from torch import nn
def net():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64)) for _ in range(3)]
    layers[1][0].weight.data[7] = 300.0
    return nn.Sequential(*layers)
"""


def screen(folder: Path, columns: int, *argv: str, **environment: str) -> tuple[int, list[str]]:
    """The exit code and the lines of a command on a terminal of 40 lines."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    env.pop("COLUMNS", None)
    command = [sys.executable, "-m", "hookcli", *argv]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, cwd=folder, env=env) as process:
        os.close(theirs)
        text = b""
        try:
            while block := os.read(ours, 1 << 16):
                text += block
        except OSError:  # how Linux says that the other side of a terminal is closed
            pass
    os.close(ours)
    return process.wait(), text.decode().splitlines()


@pytest.mark.sweep
def test_the_command_and_its_saved_report_on_terminals(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(SOURCE)
    line = ("formats", "net.py:net", "--input", "16x64")
    assert cli(*line, "-o", "saved.json").code == 0
    code, narrow = screen(tmp_path, 80, "show", "saved.json", NO_COLOR="1")
    assert code == 0 and max(map(len, narrow)) <= 80 and "\x1b" not in "".join(narrow)
    assert narrow[0].startswith("int4 keeps only ") or narrow[0].startswith("int8 keeps only ")
    assert any("nvfp4" in text and "mxfp4" in text and "int4" in text for text in narrow)
    assert sum(text.startswith(("0.1 ", "1.1 ", "2.1 ")) for text in narrow) == 6
    for columns in (120, 200):
        code, wide = screen(tmp_path, columns, "show", "saved.json", NO_COLOR="1")
        assert code == 0 and max(map(len, wide)) <= columns and any("bfloat16" in text for text in wide)
    one = cli(*line, "--to", "mxfp4", "--match", "1.1").out.splitlines()
    assert any(all(w in text for w in ("Underflow", "Saturated")) for text in one)


def test_machine_formats_have_all_figures_and_mistakes_say_what_is_right(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(SOURCE)
    line = ("formats", "net.py:net", "--input", "16x64")
    [made] = json.loads(cli(*line, "--to", "all", "-f", "json").out)["reports"]
    assert [column["name"] for column in made["columns"]] == [column.name for column in columns_of(FORMATS)]
    assert len(made["rows"]) == 6 and all(row["sqnr_mxfp4"] > 10 for row in made["rows"])
    header = cli(*line, "--sort", "sqnr_int4", "--columns", "fqn,kind,sqnr_int4", "-f", "csv").out.splitlines()
    figures = [float(text.rpartition(",")[2]) for text in header[1:]]
    assert header[0] == "fqn,kind,sqnr_int4" and figures == sorted(figures) and len(figures) == 6
    ran = cli(*line, "--to", "fp4")
    assert ran.code == 2 and "unknown --to 'fp4'; did you mean mxfp4 or nvfp4?" in ran.err
    ran = cli(*line, "--of", "biases")
    assert ran.code == 2 and "weights, activations, gradients" in ran.err
    ran = cli(*line, "--device", "meta")
    assert ran.code == 2 and "no values to look at" in ran.err


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["mobilenet_v3_small", swept("convnext_tiny"), swept("swin_t")])
def test_models_of_torchvision_have_a_row_for_each_of_their_weights(name: str) -> None:
    model = small(name).eval()
    shown = report(model, torch.randn(1, 3, 64, 64), formats=["nvfp4"])
    weights = [p for p in model.parameters() if p.dim() > 1 and p.numel() > max(p.shape)]
    assert len([row for row in shown.rows if row["kind"] == "weight"]) == len(weights)
    assert {row["kind"] for row in shown.rows} == {"weight", "input"}
    assert all(0 < row["sqnr_nvfp4"] < 60 or row["sqnr_nvfp4"] == math.inf for row in shown.rows)


def test_the_probe_keeps_no_tensor_of_a_run() -> None:
    model, x = nn.Linear(64, 64), torch.randn(4, 64)
    probe = FormatsProbe(formats=DEFAULT)
    session = HookSession(model)
    probe.attach(session)
    with session:
        model(x)
    held = [v for _, one in probe.seen.values() for v in vars(one).values() if isinstance(v, Tensor)]
    assert held and all(v.numel() <= 5 * len(DEFAULT) for v in held)


class Widened(nn.Module):
    """A layer that receives its input, and then the same with channels that are far larger; or first these."""

    def __init__(self, *channels: int, first: bool = False, by: float = 300.0, signs: bool = False) -> None:
        super().__init__()
        self.layer, self.channels, self.first, self.by, self.signs = nn.Linear(64, 64), channels, first, by, signs

    def forward(self, x: Tensor) -> Any:
        x = x.sign() if self.signs else x
        wide = x.clone()
        for place, channel in enumerate(self.channels):
            wide[:, channel] *= self.by / (1 + place)
        return self.layer(wide) + self.layer(x) if self.first else self.layer(x) + self.layer(wide)


@pytest.mark.parametrize(
    ("model", "outliers"),
    [
        (Widened(7), 1),
        (Widened(7, first=True), 1),
        (Widened(5, 9), 2),
        (Widened(5, signs=True, by=1000.0), 1),
    ],
    ids=["second call", "first call", "two channels", "others exact alone"],
)
def test_outliers_of_any_call_and_number_are_seen(model: nn.Module, outliers: int) -> None:
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    shown = report(model, x, formats=["int4"], of=["activations"])
    [row] = shown.rows
    assert row["outlier"] == model.channels[0] and row["outliers"] == outliers
    outside = "outside channel" if outliers == 1 else "outside 2 channels, of which 5 is the largest"
    assert str(shown.totals["verdict"]).startswith("int4 keeps only ") and outside in str(shown.totals["verdict"])
    assert not any(row.get("note") for row in report(Widened(), x, formats=["int4"], of=["activations"]).rows)


def test_a_grouped_transposed_convolution_has_a_scale_for_each_output_channel() -> None:
    """Its groups hold output channels that differ by nine orders of magnitude: each is as if it were alone."""
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(4, 8, 3, groups=4, bias=False)
    alone = report(layer, torch.randn(1, 4, 5, 5), formats=["int8"], of=["weights"]).rows[0]["sqnr_int8"]
    with torch.no_grad():
        layer.weight *= 2.0 ** torch.tensor([0.0, 10, 20, 30]).view(4, 1, 1, 1)
    blocks = layer.weight.detach().unflatten(0, (4, 1)).transpose(1, 2).flatten(0, 1).flatten(1)
    row = report(layer, torch.randn(1, 4, 5, 5), formats=["int8"], of=["weights"]).rows[0]
    assert row["sqnr_int8"] == pytest.approx(right(blocks, "int8")["sqnr_int8"], rel=1e-6) and alone > 40


def test_layers_with_parametrizations_and_with_one_output_have_rows() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(64, 64)), nn.Linear(64, 1))
    rows = report(model, torch.randn(8, 64), formats=["int8"], of=["activations", "gradients"]).rows
    assert [(row.fqn, row["kind"], row["shape"]) for row in rows] == [
        ("0", "input", [8, 64]),
        ("0", "gradient", [8, 64]),
        ("1", "input", [8, 64]),
        ("1", "gradient", [8, 1]),
    ]


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.ConvTranspose1d])
def test_what_a_parametrization_stores_is_laid_out_as_the_weight_of_its_layer(kind: Callable[..., nn.Module]) -> None:
    """Its rows are output channels, not the three values of a kernel."""
    torch.manual_seed(0)
    plain = kind(6, 8, 3, groups=2)
    layer = nn.utils.parametrizations.weight_norm(copy.deepcopy(plain))
    for model in (layer, nn.Sequential(layer)):
        x = torch.randn(2, 6, 9)
        [row] = report(model, x, formats=["int8"], of=["weights"]).rows
        [right_row] = report(plain, x, formats=["int8"], of=["weights"]).rows
        assert row.fqn.endswith("parametrizations.weight.original1")
        assert row["sqnr_int8"] == right_row["sqnr_int8"] and row["outlier"] == right_row["outlier"]
        assert [row["kind"] for row in report(model, x, formats=["int8"]).rows] == ["weight", "input"]


def test_the_next_command_shows_the_output(cli: Callable[..., Any], tmp_path: Path) -> None:
    """Options go with it, but those of the table, whose columns are others, and not where gradients are asked for."""
    (tmp_path / "net.py").write_text(SOURCE)
    ran = cli("formats", f"{tmp_path}/net.py:net", "-i", "4x64", "--to", "mxfp4", "--sort", "sqnr_mxfp4")
    last = ran.out.splitlines()[-1]
    assert last == f"Next: hookcli formats {tmp_path}/net.py:net --to mxfp4 --effect --input 4x64"
    assert cli(*last.split()[2:]).out.startswith("The output ")
    assert "Next:" not in cli("formats", f"{tmp_path}/net.py:net", "-i", "4x64", "--of", "gradients").out
