"""Memory that attention keeps for backward: the meta device gives the CPU's figure, byte for byte."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
import torchvision
from support import swept
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import scaled_dot_product_attention

import hookcli
from hookcli.engine.capture import capture
from hookcli.table import Report

MASKS: dict[str, Callable[[int, int, torch.dtype, str], Tensor | None]] = {
    "none": lambda length, keys, dtype, device: None,
    "bool": lambda length, keys, dtype, device: torch.ones(length, keys, dtype=torch.bool, device=device).tril(),
    "float": lambda length, keys, dtype, device: torch.zeros(length, keys, dtype=dtype, device=device),
    "of each item": lambda length, keys, dtype, device: torch.zeros(2, 1, length, keys, dtype=dtype, device=device),
    "with a gradient": lambda length, keys, dtype, device: torch.zeros(
        length, keys, dtype=dtype, device=device, requires_grad=True
    ),
}


class Attention(nn.Module):
    """Attention of what a linear layer makes of the input, split into heads."""

    def __init__(self, mask: str = "none", heads: int = 2, keys: int | None = None, **options: Any) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.mask, self.heads, self.keys, self.options = mask, heads, keys, options

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).chunk(3, -1)
        if self.heads:
            parts = tuple(part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        query, key, value = parts
        key, value = key[..., : self.keys, :], value[..., : self.keys, :]
        mask = MASKS[self.mask](query.size(-2), key.size(-2), x.dtype, str(x.device))
        return scaled_dot_product_attention(query, key, value, mask, **self.options)


def shapes(model: nn.Module, *inputs: Tensor) -> Report:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is said about the kernel that stands in
        return capture(model, inputs, ["shapes"])[0]


def both(model: nn.Module, *inputs: Tensor) -> tuple[Report, Report]:
    real = shapes(model, *inputs)
    return real, shapes(model.to("meta"), *(x.to("meta") for x in inputs))


def saved_by_pytorch(model: nn.Module, x: Tensor) -> int:
    """The bytes of all storages that are saved, without those of parameters."""
    held = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(x)
    del output
    return sum(t.untyped_storage().nbytes() for key, t in kept.items() if key not in held)


@cache
def meta_kernel_is_right() -> bool:
    """False where PyTorch's kernel for meta returns float32 per query, where the CPU's returns float64 (2.11)."""
    q = torch.ones(1, 1, 2, 4, dtype=torch.float64)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    found = [kernel(x, x, x)[1].dtype for x in (q, q.to("meta"))]
    return found[0] == found[1]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, *map(swept, (torch.float32, torch.float64, torch.float16))])
def test_every_kind_of_attention(mask: str, dtype: torch.dtype) -> None:
    wrong = {}
    for dropout, causal, heads in product((0.0, 0.1), {False, mask == "none"}, (2, 0)):
        if (mask == "of each item" and not heads) or (dtype is torch.float64 and not meta_kernel_is_right()):
            continue
        options = {"dropout_p": dropout, "is_causal": causal}
        model = Attention(mask, heads, **options).to(dtype)
        x = torch.randn(2, 64, 8, dtype=dtype)
        expected = saved_by_pytorch(model, x)
        real, meta = both(model, x)
        found = [report.totals["kept_bytes"] for report in (real, meta)]
        if found != [expected] * 2 or (real.rows[-1]["kept"], real.totals) != (meta.rows[-1]["kept"], meta.totals):
            wrong[dropout, causal, heads] = [expected, *found]
        noted = bool(meta.meta.get("notes"))
        assert noted == bool(dropout or mask == "with a gradient") or (noted and not heads), options
    assert not wrong


def test_other_lengths_groups_of_heads_and_frozen_models() -> None:
    for model in (Attention(keys=16), Attention(scale=0.5), Attention().requires_grad_(False)):
        x = torch.randn(2, 64, 8)
        expected = saved_by_pytorch(model, x)
        assert [r.totals.get("kept_bytes", 0) for r in both(model, x)] == [expected] * 2  # of a frozen one none


class Itself(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_models(mode: str) -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    for model in (encoder, Itself(8, 2, batch_first=True)):
        real, meta = both(model.train(mode == "train"), torch.randn(2, 64, 8))
        assert real.totals == meta.totals and "notes" not in real.meta
        assert bool(meta.meta.get("notes")) == (mode == "train" and model is encoder)  # for its dropout


def test_a_recurrent_layer_on_meta_has_a_note() -> None:
    real, meta = both(nn.Sequential(nn.LSTM(8, 8)), torch.randn(4, 2, 8))
    assert "notes" not in real.meta and meta.meta["notes"][0].startswith(
        "memory kept by 0 is computed by PyTorch's formula; "
    )


def test_a_forward_and_backward_on_meta_and_its_budget() -> None:
    model, x = Attention(is_causal=True), torch.randn(2, 64, 8)
    kept = saved_by_pytorch(model, x)
    model.to("meta")
    report = hookcli.check(model, x.to("meta"), thresholds={"max-activation-memory": kept - 1})
    assert any(f.check == "HK024" and f.value == kept for f in report.findings)
    report = hookcli.check(model, x.to("meta"), thresholds={"max-activation-memory": kept})
    assert not any(f.check == "HK024" for f in report.findings)


def test_nothing_stays_replaced_and_an_error_is_the_functions_own() -> None:
    q = torch.randn(2, 2, 64, 8, device="meta", requires_grad=True)
    before = type(scaled_dot_product_attention(q, q, q).grad_fn)
    both(Attention(), torch.randn(2, 64, 8))
    with pytest.raises(hookcli.errors.ModelError, match="attn_mask should not be set when is_causal=True"):
        shapes(Attention("bool", is_causal=True).to("meta"), torch.randn(2, 64, 8, device="meta"))
    assert type(scaled_dot_product_attention(q, q, q).grad_fn) is before


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["vit_b_16", "swin_t", "maxvit_t"])
def test_torchvisions(name: str) -> None:
    real, meta = both(torchvision.models.get_model(name).eval(), torch.randn(1, 3, 224, 224))
    assert meta.totals["kept_bytes"] == pytest.approx(real.totals["kept_bytes"], rel=0 if name != "maxvit_t" else 0.01)
