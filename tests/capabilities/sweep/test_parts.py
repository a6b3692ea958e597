"""Heads, experts and rounded weights, each against an explicit formula; and what can't be swept."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from capabilities.sweep.swept import Planted, by_rows, gpt2, logits, relative, rows_of, run_of, swept
from support import hooks_on, untouched
from torch import Tensor, nn

from hookcli.capabilities.sweep.run import SweepRun
from hookcli.capabilities.sweep.trials import Sweep
from hookcli.errors import ModelError, UsageError
from hookcli.probes.shared.layer_rows import rounded_weight
from hookcli.table import Report

pytestmark = pytest.mark.xdist_group("timm and Transformers")


def test_a_head_is_a_slice_of_what_the_projection_receives() -> None:
    torch.manual_seed(0)
    model, x = gpt2()
    with untouched(model):
        report = swept(model, x, of="heads", logit="logits[0,2,7]")
    assert sorted((row.fqn, row["head"]) for row in report.rows) == [
        (f"transformer.h.{block}.attn", head) for block in range(2) for head in range(3)
    ]
    base = model(x).logits.detach()
    for row in report.rows:
        part = slice(4 * row["head"], 4 * row["head"] + 4)

        def without(module: nn.Module, args: tuple[Tensor], part: slice = part) -> tuple[Tensor]:
            y = args[0].clone()
            y[..., part] = 0
            return (y,)

        handle = model.get_submodule(f"{row.fqn}.c_proj").register_forward_pre_hook(without)
        found = model(x).logits.detach()
        handle.remove()
        assert row["output_change"] == pytest.approx(relative(base, found), rel=1e-9)
        assert row["logit"] == pytest.approx(found[0, 2, 7].item(), rel=1e-9)


def test_a_head_of_multihead_attention_is_columns_of_its_weight() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).double().eval()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    with untouched(model):
        report = swept(model, x, of="heads")
    base = model(x).detach()
    for row in report.rows:
        twin = copy.deepcopy(model)
        twin.self_attn.out_proj.weight.data[:, 4 * row["head"] : 4 * row["head"] + 4] = 0
        assert row["output_change"] == pytest.approx(relative(base, twin(x)), rel=1e-9) != 0
    assert len(report.rows) == 2
    assert len(swept(model, x, of="heads", operation="mean").rows) == 2


@pytest.mark.parametrize("kind", [pytest.param("bert", marks=pytest.mark.sweep), "llama", "timm"])
def test_heads_of_other_libraries_are_found(kind: str) -> None:
    import timm
    from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

    sizes: dict[str, Any] = {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8, "vocab_size": 9}
    x: Tensor = torch.tensor([[1, 2, 3]])
    if kind == "bert":
        model, place, count = BertModel(BertConfig(num_attention_heads=4, **sizes)), "encoder.layer.0.attention.self", 4
    elif kind == "llama":
        config = LlamaConfig(num_attention_heads=4, num_key_value_heads=2, use_cache=False, **sizes)
        model, place, count = LlamaModel(config), "layers.0.self_attn", 4
    else:
        model = timm.create_model("vit_tiny_patch16_224", depth=1, embed_dim=12, num_heads=3, img_size=32)
        x, place, count = torch.randn(1, 3, 32, 32), "blocks.0.attn", 3
    rows = swept(model.eval(), x, of="heads").rows
    assert sorted((row.fqn, row["head"]) for row in rows) == [(place, n) for n in range(count)]
    assert all(row["output_change"] > 0 for row in rows) or kind == "timm"


class Routed(nn.Module):
    """Expert 1 gets all; expert 2 is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.experts[0](x) * 0 + self.experts[1](x)


def test_experts_are_modules_or_parts_of_a_weight() -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    report = swept(Routed(), torch.ones(2, 3), of="experts")
    ranked = [(row.fqn, row["expert"], row["output_change"]) for row in report.rows]
    assert ranked == [("experts.1", 1, 1.0), ("experts.0", 0, 0.0)]
    assert [item.fqn for item in report.skipped] == ["experts.2"]
    sizes: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "vocab_size": 9}
    config = MixtralConfig(num_hidden_layers=1, num_local_experts=4, num_key_value_heads=2, use_cache=False, **sizes)
    model, x = MixtralForCausalLM(config).eval(), torch.tensor([[1, 2, 3, 4]])  # its kernels take no float64
    if not hasattr(model.model.layers[0].mlp.experts, "down_proj"):
        pytest.skip("this version of Transformers has a module for each expert")
    with untouched(model):
        report, rounded = swept(model, x, of="experts"), swept(model, x, of="experts", quantize="int8")
    base = logits(model(x)).detach()
    both = (sorted(each.rows, key=lambda row: int(row["expert"])) for each in (report, rounded))
    for row, narrow in zip(*both, strict=True):
        twin, other = copy.deepcopy(model), copy.deepcopy(model)
        twin.model.layers[0].mlp.experts.down_proj.data[row["expert"]] = 0
        assert row["output_change"] == pytest.approx(relative(base, logits(twin(x))), rel=1e-3)
        for weight in other.model.layers[0].mlp.experts.parameters():
            weight.data[row["expert"]] = by_rows(weight.data[row["expert"]], 127)
        assert narrow["output_change"] == pytest.approx(relative(base, logits(other(x))), rel=1e-3)


@pytest.mark.parametrize(("kind", "top"), [("int8", 127), ("int4", 7)])
def test_rounded_weights_of_every_kind_of_layer(kind: str, top: int) -> None:
    torch.manual_seed(0)
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D(6, 5)  # 5 in, 6 out
    layers: dict[str, tuple[nn.Module, Any, Any]] = {
        "linear": (nn.Linear(5, 6), torch.randn(2, 5), lambda w: by_rows(w, top)),
        "conv": (nn.Conv2d(3, 4, 3), torch.randn(1, 3, 5, 5), lambda w: by_rows(w.flatten(1), top).view_as(w)),
        "back": (
            nn.ConvTranspose1d(3, 4, 2),
            torch.randn(1, 3, 5),
            lambda w: by_rows(w.transpose(0, 1).flatten(1), top).view(4, 3, 2).transpose(0, 1),
        ),
        "conv1d": (conv1d, torch.randn(2, 5), lambda w: by_rows(w.T, top).T),
        "embed": (nn.Embedding(4, 5), torch.tensor([0, 3]), lambda w: by_rows(w, top)),
    }
    for name, (layer, given, rounded) in layers.items():
        x = given.double() if given.is_floating_point() else given
        model = nn.Sequential(layer).double()
        before, version = layer.weight.detach().clone(), layer.weight._version
        (row,) = swept(model, x, quantize=kind).rows
        assert torch.equal(layer.weight, before) and layer.weight._version == version, name
        base = model(x).detach()
        layer.weight.data = rounded(before)
        assert row["output_change"] == pytest.approx(relative(base, model(x)), rel=1e-5) != 0, name


def test_float8_keeps_the_digits_that_it_has() -> None:
    """e4m3: 3 bits of mantissa, the largest 448; e5m2: 2 bits, the largest 57344. By the spacing of each binade."""
    w, layer = torch.randn(4, 50), nn.Linear(50, 4)
    for kind, bits, top, lowest in (("float8_e4m3fn_row", 3, 448.0, -6), ("float8_e5m2_row", 2, 57344.0, -14)):
        scale = w.abs().amax(1, keepdim=True) / top
        expected = (w / scale).tolist()
        for row in expected:
            for n, value in enumerate(row):
                step = 2.0 ** (max(math.frexp(value)[1] - 1, lowest) - bits)
                row[n] = round(value / step) * step
        torch.testing.assert_close(rounded_weight(w, layer, kind), torch.tensor(expected) * scale)
    assert torch.equal(rounded_weight(torch.zeros(2, 3), layer, "int8"), torch.zeros(2, 3))
    assert rounded_weight(torch.randn(3, 4).bfloat16(), layer, "int8").dtype == torch.bfloat16


def test_layers_are_ranked_by_sensitivity_and_tied_weights_swept_once() -> None:
    torch.manual_seed(0)
    model, x = gpt2()
    report = swept(model, x, quantize="int4")
    owners = {n for n, m in model.named_modules() if any(p.dim() > 1 for p in m.parameters(recurse=False))}
    assert {row.fqn for row in report.rows} == owners - {"lm_head"}
    (tied,) = report.skipped
    assert (tied.fqn, tied.reason) == ("lm_head", "has the weight of transformer.wte, which was swept")
    changes = [row["output_change"] for row in report.rows]
    assert changes == sorted(changes, reverse=True) and "bottleneck" not in str(report.meta["notes"])
    rounding = f"Rounding {report.rows[0].fqn} to int4 changes output logits most: relative l2"
    assert report.totals["verdict"].startswith(rounding)


class Odd(nn.Module):
    """A part that returns an index, one that hands on, one that refuses zeros, and one whose zeros change a shape."""

    def __init__(self) -> None:
        super().__init__()
        self.arg, self.same, self.lin, self.unused = Arg(), nn.Identity(), nn.Linear(3, 3), nn.Linear(1, 1)
        self.refuses, self.sizes = nn.Linear(3, 3), nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        y = self.same(self.lin(x)) + self.arg(x)[:, None] * 0
        if not self.refuses(x).any():
            raise ValueError("all zero")
        return y if self.sizes(x).any() else y[:1]


class Arg(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(1)


def test_what_is_not_swept_is_said() -> None:
    model = Odd().eval()
    report = swept(model, torch.randn(2, 3))
    assert {row.fqn for row in report.rows} == {"lin", "sizes"} and rows_of(report)["sizes"]["output_change"] is None
    reasons = {item.fqn: item.reason for item in report.skipped}
    assert reasons.pop("refuses").endswith("ValueError: all zero")
    assert reasons == {
        "arg": "returns no floating-point tensor",
        "same": "passes on what it receives",
        "unused": "never called in eval mode",
        "sizes": "the output has another shape: no output change",
    }
    shallow = swept(*Planted.made(), depth=1.0)
    assert {row.fqn for row in shallow.rows} == {"embed", "head", *(f"layers.{n}" for n in range(4))}
    assert any(item.reason == "deeper than 1; --depth all sweeps 26 modules" for item in shallow.skipped)
    assert not sum(hooks_on(model).values())


def test_mistakes_and_failures() -> None:
    model, x = Planted.made()
    for logit in ("9", "x", "[0]", "nothing[0,1]", "0,0]"):
        with pytest.raises(UsageError, match="is outside the output"):
            swept(model, x, logit=logit)
    with pytest.raises(ModelError, match=r"takes \d+ features, got \d+"):
        swept(model, torch.ones(2, 7, dtype=torch.float64))
    with pytest.raises(UsageError, match="unknown operation"):
        swept(model, x, operation="nought")
    with pytest.raises(UsageError, match="no heads could be swept"):
        swept(model, x, of="heads")
    with pytest.raises(UsageError, match="no floating-point tensor"):
        swept(Arg(), x)


def test_an_interrupt_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Planted.made()
    once, done = SweepRun._once, list[Any]()

    def some(self: SweepRun, trial: Any, **settings: Any) -> Any:
        done.append(trial)
        if len(done) == 6:
            raise KeyboardInterrupt
        return once(self, trial, **settings)

    monkeypatch.setattr(SweepRun, "_once", some)
    with untouched(model), pytest.raises(KeyboardInterrupt) as caught:
        SweepRun(run_of(model, x), Sweep()).report()
    report: Report = caught.value.reports[0]  # type: ignore[attr-defined]
    assert len(report.rows) == 3 and report.meta["complete"] is False
