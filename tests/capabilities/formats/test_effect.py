"""The effect of rounding on a model's output, against casts by hand in plain hooks."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support import Later, untouched
from tensors.test_number_formats import torchaos
from torch import Tensor, nn

from hookcli.capabilities.formats.effect import EffectRun
from hookcli.capabilities.formats.layout import ACTIVATIONS, WEIGHTS
from hookcli.engine.inputs import Call
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.step import Step
from hookcli.errors import ModelError, UsageError
from hookcli.table import Report

transformers = Later("transformers")
Cli = Callable[..., Any]
Cast = Callable[[Tensor], Tensor]  # of a matrix, whose rows may have scales


def effect(model: nn.Module, *inputs: Any, formats: Collection[str] = ("bfloat16",), **options: Any) -> Report:
    run = PreparedRun.of(model, Call(inputs, {}), Step(), None)
    return EffectRun(run, list(formats), **options).report()


def by_row(x: Tensor, largest: float, dtype: torch.dtype | None) -> Tensor:
    """PyTorch's casts of rows in units of a scale: fake quantization to integers, or a cast to float8."""
    if dtype is None:
        scale, zero = x.abs().amax(1) / largest, torch.zeros(len(x), dtype=torch.int32)
        return torch.fake_quantize_per_channel_affine(x, scale, zero, 0, -int(largest), int(largest))
    scale = x.abs().amax(1, keepdim=True) / largest
    return (x / scale).to(dtype).float() * scale


CASTS: Mapping[str, Cast] = {
    "bfloat16": lambda x: x.bfloat16().float(),
    "float16": lambda x: x.half().float(),
    "int8": lambda x: by_row(x, 127, None),
    "int4": lambda x: by_row(x, 7, None),  # of rows of up to 128 values
    "float8_e4m3fn_row": lambda x: by_row(x, 448, torch.float8_e4m3fn),
    "float8_e5m2": lambda x: by_row(x.reshape(1, -1), 57344, torch.float8_e5m2).view_as(x),
}


class Net(nn.Module):
    """A layer of each kind whose rows are found in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.conv, self.up = nn.Embedding(9, 12), nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 6, 2, groups=2)
        self.linear = nn.Linear(6, 12)
        self.conv1d = transformers.pytorch_utils.Conv1D(5, 12)
        self.table = nn.Parameter(torch.randn(4, 5))

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        x = self.up(self.conv(x)).flatten(2).transpose(1, 2)
        out: Tensor = self.conv1d(torch.tanh(self.linear(x)) + self.embed(tokens)[:, None]) @ self.table.T
        return out


def weights_by_hand(model: Net, layers: Collection[str], cast: Cast) -> None:
    """Round the weights of these layers as matrices whose rows are output channels."""
    with torch.no_grad():
        for name in {"embed", "linear"} & {*layers}:
            weight = model.get_submodule(name).weight
            weight.copy_(cast(weight))
        if "conv" in layers:
            model.conv.weight.copy_(cast(model.conv.weight.flatten(1)).view_as(model.conv.weight))
        if "up" in layers:  # [8 in, 3 out of each of 2 groups, 2, 2]
            rows = torch.cat([part.transpose(0, 1).flatten(1) for part in model.up.weight.chunk(2)])
            halves = [part.view(3, 4, 2, 2).transpose(0, 1) for part in cast(rows).chunk(2)]
            model.up.weight.copy_(torch.cat(halves))
        if "conv1d" in layers:
            model.conv1d.weight.copy_(cast(model.conv1d.weight.T.contiguous()).T)
        if "" in layers:
            model.table.copy_(cast(model.table))


def inputs_by_hand(model: nn.Module, layers: Collection[str], cast: Cast) -> None:
    """Round what these layers receive, as matrices whose rows are tokens or places of an image."""
    for name in {*layers} - {"embed", ""}:

        def rounds(module: nn.Module, args: tuple[Tensor], image: bool = name in ("conv", "up")) -> tuple[Tensor]:
            x = args[0].movedim(1, -1) if image else args[0]
            y = cast(x.reshape(-1, x.shape[-1])).view(x.shape)
            return (y.movedim(-1, 1) if image else y,)

        model.get_submodule(name).register_forward_pre_hook(rounds)


def moved(model: Net, inputs: tuple[Tensor, ...], layers: Collection[str], cast: Cast, of: Collection[str]) -> float:
    """The relative l2 distance of the output with these layers rounded, in float64."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        before = model(*inputs).double()
        if WEIGHTS in of:
            weights_by_hand(twin, layers, cast)
        if ACTIVATIONS in of:
            inputs_by_hand(twin, layers, cast)
        return float((twin(*inputs).double() - before).norm() / before.norm())


LAYERS = ("embed", "conv", "up", "linear", "conv1d", "")


@pytest.mark.parametrize("of", [(WEIGHTS, ACTIVATIONS), (WEIGHTS,), (ACTIVATIONS,)], ids=["both", "weights", "inputs"])
def test_effects_are_those_of_pytorchs_casts(of: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    model, inputs = Net().eval(), (torch.randn(2, 3, 6, 6), torch.tensor([3, 7]))
    layers = LAYERS if WEIGHTS in of else LAYERS[1:-1]
    with untouched(model):
        reports = {form: effect(model, *inputs, formats=[form], of=of) for form in CASTS}
    for form, cast in CASTS.items():
        first, *alone = reports[form].rows
        column = f"change_{form}"
        assert (first.fqn, first["order"]) == ("", 0) and {row.fqn for row in alone} == {*layers}
        assert first[column] == pytest.approx(moved(model, inputs, layers, cast, of), rel=1e-3), form
        for row in alone:
            assert row[column] == pytest.approx(moved(model, inputs, [row.fqn], cast, of), rel=1e-3), (form, row.fqn)
        assert [row["order"] for row in alone] == [*range(1, len(layers) + 1)]
        assert [row[column] for row in alone] == sorted((row[column] for row in alone), reverse=True)


@pytest.mark.sweep
def test_effects_are_those_of_torchaos_casts() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(256, 384), nn.GELU(), nn.Linear(384, 128)), torch.randn(16, 256)
    casts = torchaos()
    with torch.no_grad():
        before = model(x).double()
    for row in effect(model, x, formats=[*casts]).rows:
        for name in (name for name in casts if row.get(f"change_{name}") is not None):
            twin, cast = copy.deepcopy(model), casts[name]
            for layer in [twin.get_submodule(row.fqn)] if row.fqn else [twin[0], twin[2]]:
                layer.weight.data = cast(layer.weight.data)
                layer.register_forward_pre_hook(lambda _, args, cast=cast: (cast(args[0]),))
            with torch.no_grad():
                distance = float((twin(x).double() - before).norm() / before.norm())
            assert row[f"change_{name}"] == pytest.approx(distance, rel=1e-5), (row.fqn, name)


def classifier() -> nn.Module:
    """Its second layer gets values far apart, which 4 bits can't hold."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 10))
    model[1].weight.data[3] = 100.0
    model[2].weight.data[:, 3] /= 100.0
    return model


def test_the_verdict_names_the_formats_in_which_the_output_agrees() -> None:
    model, x = classifier(), torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    shown = effect(model, x, formats=["bfloat16", "int8", "int4"])
    whole = shown.rows[0]
    differ = [form for form in ("bfloat16", "int8", "int4") if whole[f"change_{form}"] >= 0.05]
    assert "bfloat16" not in differ and "int4" in differ
    verdict = str(shown.totals["verdict"])
    first = f"The output agrees in {3 - len(differ)} of 3 formats (relative l2 below 0.05, all 2 layers rounded)"
    assert verdict.startswith(f"{first}; int4 costs most in layer 2 (") and ", then layer 0 (" in verdict
    assert verdict.index("then layer 0") < verdict.index("; it agrees in bfloat16") < verdict.index(", not in ")
    assert f"int4 ({whole['change_int4']:.4f})" in verdict
    assert all(row.get("change_bfloat16") is None for row in shown.rows[1:])
    before, twin = model(x).argmax(1), copy.deepcopy(model)
    for layer in (twin[0], twin[2]):
        layer.weight.data = by_row(layer.weight.data, 7, None)
        layer.register_forward_pre_hook(lambda _, args: (by_row(args[0], 7, None),))
    with torch.no_grad():
        share = float((twin(x).argmax(1) == before).float().mean())
    assert whole["top_int4"] == pytest.approx(share) and f"top class stays in {share:.1%}" in verdict
    none = str(effect(model, x, formats=["int4", "mxfp4"]).totals["verdict"])
    assert none.startswith("The output agrees in no format (relative l2 below 0.05, all 2 layers rounded); ")
    assert "; it differs in int4 (" in none
    fine = effect(model, x, formats=["float16", "bfloat16"])
    assert str(fine.totals["verdict"]).startswith("The output agrees in all 2 formats (relative l2 below 0.05, ")
    assert "; it agrees in float16 and bfloat16 (" in str(fine.totals["verdict"])
    assert fine.rows[1]["change_bfloat16"] is not None and fine.rows[1].get("change_float16") is None


def test_what_can_not_be_compared_is_said() -> None:
    x = torch.randn(4, 8)
    zero = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    nn.init.zeros_(zero[1].weight), nn.init.zeros_(zero[1].bias)
    assert "is empty or 0 everywhere" in str(effect(zero, x).totals["verdict"])
    broken = nn.Linear(8, 2)
    broken.bias.data[0] = math.nan
    assert "not finite even in the unchanged model" in str(effect(broken, x).totals["verdict"])
    large = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    large[0].bias.data += 1e5
    shown = effect(large, x, formats=["float16"])
    assert shown.rows[0]["change_float16"] == math.inf and "in float16 (NaN or Inf; " in str(shown.totals["verdict"])
    with pytest.raises(UsageError, match="no layer to round"):
        effect(nn.ReLU(), x)
    with pytest.raises(ModelError):
        effect(nn.Linear(7, 2), x)


def test_a_model_that_fails_in_a_format_is_said_and_the_others_are_run() -> None:
    class Strict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.second(self.first(x) * 1e5)
            if not y.isfinite().all():
                raise ValueError("not finite")
            return y

    torch.manual_seed(0)
    model, x = Strict(), torch.randn(4, 8)
    with untouched(model):
        shown = effect(model, x, formats=["float16", "bfloat16"])
    verdict = str(shown.totals["verdict"])
    assert verdict.startswith("The output agrees in 1 of 2 formats") and "not in float16 (the model fails)" in verdict
    assert "float16 costs most in second (the model fails), then first (" in verdict
    reasons = {item.fqn: item.reason for item in shown.skipped}
    assert reasons.keys() == {"", "second"} and all("not finite" in reason for reason in reasons.values())


def test_tied_weights_are_rounded_once_and_layers_that_no_hook_sees_by_their_weights() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.attention = nn.Embedding(9, 8), nn.MultiheadAttention(8, 2, batch_first=True)
            self.head, self.aside = nn.Linear(8, 9, bias=False), nn.Linear(8, 2)
            self.head.weight = self.embed.weight

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embed(tokens)
            out: Tensor = self.head(x + self.attention(x, x, x)[0])
            return out

    torch.manual_seed(0)
    model = Odd().eval()
    with untouched(model):
        shown = effect(model, torch.arange(6)[None], formats=["int4"])
    rows = {row.fqn: row["change_int4"] for row in shown.rows}
    assert rows.keys() == {"", "embed", "attention", "attention.out_proj", "head", "aside"}
    assert rows["aside"] == 0 and all(rows[name] > 0 for name in ("embed", "attention", "attention.out_proj", "head"))
    reasons = {item.fqn: item.reason for item in shown.skipped}
    assert reasons["head.weight"] == "tied to embed.weight, and rounded there"
    assert {"attention.out_proj", "aside"} <= reasons.keys() and "embed" not in reasons


def test_layers_within_the_fused_path_are_called_so_that_their_inputs_are_rounded() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    with untouched(model):
        rows = {row.fqn: row["change_int4"] for row in effect(model, x, formats=["int4"], of=[ACTIVATIONS]).rows}
    assert rows.keys() == {"", "self_attn", "linear1", "linear2"} and all(rows.values())


def test_outputs_without_classes_have_no_top_class() -> None:
    class Forces(nn.Module):
        """It needs gradients, which pass through the rounding."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 16), nn.Linear(16, 1)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            x = x.detach().requires_grad_()
            energy = self.second(torch.tanh(self.first(x))).sum()
            (force,) = torch.autograd.grad(energy, x)
            return {"energy": energy, "force": force}

    torch.manual_seed(0)
    shown = effect(Forces(), torch.randn(5, 3), formats=["int4"])
    assert all(row["change_int4"] > 0 and row["top_int4"] is None for row in shown.rows)
    assert "top class" not in str(shown.totals["verdict"])


def test_an_interrupt_has_the_rows_until_then_and_puts_all_back(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, runs = EffectRun._figures, list[Any]()

    def some(self: EffectRun, rounding: Any) -> Any:
        runs.append(rounding)
        if len(runs) == 4:
            raise KeyboardInterrupt
        return figures(self, rounding)

    monkeypatch.setattr(EffectRun, "_figures", some)
    model, x = classifier(), torch.randn(4, 32)
    with untouched(model), pytest.raises(KeyboardInterrupt) as caught:
        effect(model, x, formats=["int4"])
    [left] = caught.value.reports  # type: ignore[attr-defined]
    assert left.meta["complete"] is False and [row.fqn for row in left.rows] == ["", "0"]


def test_the_command_ranks_layers_and_refuses_what_has_no_effect(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = (
        "from torch import nn\ndef net():\n    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 5))\n"
    )
    (tmp_path / "net.py").write_text(source)
    line = ("formats", "net.py:net", "--input", "8x32", "--effect")
    ran = cli(*line)
    assert ran.code == 0 and ran.out.startswith("The output agrees in ") and "\x1b" not in ran.out
    assert "hookcli: effect of rounding on net.py:net: " in ran.err
    [made] = json.loads(cli(*line, "--to", "int4", "--match", "2", "-f", "json").out)["reports"]
    assert (made["probe"], [row["fqn"] for row in made["rows"]]) == ("effect", ["2"])
    for extra in (("--of", "gradients"), ("--loss", "mean"), ("--batches", "2"), ("--channels",)):
        ran = cli(*line, *extra)
        assert ran.code == 2 and "leave one of them out" in ran.err, extra
    ran = cli(*line, "--device", "meta")
    assert ran.code == 2 and "no values to look at" in ran.err
