"""The attention of heads: every figure as an explicit computation in float64 has it, on models of several kinds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from capabilities.attention.nets import GPT, HEADS, SIZE, TOKENS, figures, plant
from support import each_once, swept, untouched
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli import capture
from hookcli.capabilities.attention import head_sums
from hookcli.table import Report

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))

FROM_FIRST = ("first_share", "top_key", "top_key_share")
"""Figures by the places of keys, which are counted from the first that is not padding."""


def measured(model: nn.Module, *inputs: Any, **options: Any) -> Report:
    with torch.no_grad():
        return capture(model.eval(), *inputs, probes="attention", **options)[0]


def require_same(report: Report, fqn: str, oracle: list[dict[str, float]], without: tuple[str, ...] = ()) -> None:
    rows = [row for row in report.rows if row.fqn == fqn]
    assert [row["head"] for row in rows] == list(range(len(oracle)))
    for row, expected in zip(rows, oracle, strict=True):
        for name, value in expected.items():
            if name not in without:
                assert row[name] == pytest.approx(value, rel=2e-4, abs=2e-6), (fqn, row["head"], name)


@pytest.mark.parametrize("kernel", ["fused", "hand", "einsum"])
@pytest.mark.parametrize("block", [1 << 19, 64])
def test_a_gpt_by_pytorchs_kernel_and_by_hand(kernel: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_sums, "_CPU_BLOCK", block)  # 8 queries at a time
    model = GPT(kernel)
    plant(model)
    report = measured(model, TOKENS)
    x = model.embed(TOKENS)
    for number, part in enumerate(model.blocks):
        scores = part.double().scores(x.double())
        values = part.split(x.double())[2]
        require_same(report, f"blocks.{number}", figures(scores, scores > -math.inf, values))
        x = x.double() + part(x.double())
    assert len(report.rows) == report.totals["heads"] == 2 * HEADS and not report.skipped
    assert report.totals["verdict"].startswith(
        "1 of 8 heads is dead (no output): blocks.1 head 3; 2 of 8 heads are like"
    )


@pytest.mark.xdist_group("timm and Transformers")
@pytest.mark.parametrize(
    ("kernel", "padded"), [swept("sdpa", False), ("eager", True), swept("sdpa", True), swept("eager", False)]
)
def test_a_llama_whose_heads_share_keys(kernel: str, padded: bool) -> None:
    """Against the weights that transformers itself returns: in float64, unless the batch is padded on the left, where
    these are NaN."""
    from transformers import LlamaConfig, LlamaModel

    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 8, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.4)
    torch.manual_seed(0)
    config._attn_implementation = kernel
    model = LlamaModel(config).eval()
    mask = torch.ones_like(TOKENS)
    mask[1, :5] -= int(padded)
    report = measured(model, input_ids=TOKENS, attention_mask=mask)
    config._attn_implementation = "eager"
    with torch.no_grad():
        weights = (model if padded else model.double())(
            input_ids=TOKENS, attention_mask=mask, output_attentions=True
        ).attentions
    sees = torch.ones(40, 40, dtype=torch.bool).tril() & mask.bool()[:, None, None]
    of_logits = ("max_logit", "output_rms", "output_share", *(FROM_FIRST if padded else []))
    for number, of_layer in enumerate(weights):
        oracle = figures(of_layer.log(), sees, torch.ones(2, 4, 40, 1))
        require_same(report, f"layers.{number}.self_attn", oracle, without=of_logits)
    if padded:
        of_layer = weights[0][:, 0]
        first = torch.cat([of_layer[0, 1:, 0], of_layer[1, 6:, 5]]).mean()
        assert report.rows[0]["first_share"] == pytest.approx(first.item(), rel=1e-4)


@pytest.mark.parametrize("need_weights", [False, True])
def test_multihead_attention_on_both_of_its_paths(need_weights: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.MultiheadAttention(32, HEADS)

        def forward(self, x: Tensor) -> Tensor:
            return self.part(x, x, x, need_weights=need_weights)[0]

    torch.manual_seed(0)
    model, x = Net(), torch.randn(12, 3, 32)
    report = measured(model, x)
    q, k, v = F.linear(x.double(), model.part.in_proj_weight.double(), model.part.in_proj_bias.double()).chunk(3, -1)
    q, k, v = (t.unflatten(-1, (HEADS, SIZE)).permute(1, 2, 0, 3) for t in (q, k, v))
    logits = (q @ k.transpose(-2, -1) / math.sqrt(SIZE)).detach()
    require_same(report, "part", figures(logits, torch.ones(12, 12, dtype=torch.bool), v.detach()))


def test_vision_transformers_of_torchvision_are_not_fused_away() -> None:
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(32, 8, 2, 4, 32, 64).eval()
    report = measured(model, x := torch.rand(2, 3, 32, 32))
    assert report.meta["fastpath"] is False and not report.skipped and len(report.rows) == 8
    seen: list[Tensor] = []
    layer: Any = model.encoder.layers[1]
    layer.self_attention.register_forward_pre_hook(lambda module, args: seen.append(args[0].double()))
    model(x)
    attention = layer.self_attention.double()
    weights = attention(*seen * 3, average_attn_weights=False)[1]
    logits = weights.detach().log()
    oracle = figures(logits, torch.ones_like(logits, dtype=torch.bool), torch.ones(2, 4, 17, 1))
    require_same(report, layer_name := "encoder.layers.encoder_layer_1.self_attention", oracle, _OF_LOGITS)
    assert layer_name in {row.fqn for row in report.rows}


_OF_LOGITS = ("max_logit", "output_rms", "output_share")


class Masked(nn.Module):
    """One call of PyTorch's kernel with these arguments; or of flex attention."""

    def __init__(self, *, flex: bool = False, **given: Any) -> None:
        super().__init__()
        self.flex, self.given = flex, given

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        from torch.nn.attention.flex_attention import flex_attention

        return (flex_attention if self.flex else F.scaled_dot_product_attention)(q, k, v, **self.given)


MASK = (torch.arange(35).view(7, 5) % 3 > 0).index_fill(0, torch.tensor([2]), False)  # query 2 sees nothing


@pytest.mark.parametrize("bias", [None, -math.inf, -1e9, -100.0])
def test_masks_of_cross_attention_and_a_scale(bias: float | None) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 7, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    mask = MASK if bias is None else torch.zeros(MASK.shape).masked_fill(~MASK, bias)
    report = measured(Masked(attn_mask=mask, scale=0.7, enable_gqa=True), q, k, v)
    many = [x.repeat_interleave(2, 1) for x in (k, v)]
    oracle = figures(q.double() @ many[0].double().transpose(-2, -1) * 0.7, MASK, many[1])
    for of_head in oracle:
        del of_head["self_share"], of_head["distance"]
    require_same(report, "", oracle, ("output_rms", "output_share"))
    assert report.rows[0].get("distance") is None


@pytest.mark.sweep
def test_flex_attention_with_its_changes_of_scores_and_its_mask() -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    torch.manual_seed(0)
    slopes = torch.tensor([0.5, 0.1])
    q, k, v = (torch.randn(2, 2, 130, 16) for _ in range(3))
    window = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < 50 + b), 2, None, 130, 130, device="cpu")
    report = measured(
        Masked(flex=True, block_mask=window, score_mod=lambda s, b, h, i, j: s - slopes[h] * (i - j)), q, k, v
    )
    i, j = torch.arange(130)[:, None], torch.arange(130)
    sees = torch.stack([(i >= j) & (i - j < 50 + b) for b in range(2)])[:, None]
    scores = q.double() @ k.double().transpose(-2, -1) / 4 - slopes.double()[:, None, None] * (i - j)
    require_same(report, "", figures(scores, sees, v))


def test_autocast_and_a_first_key_that_no_query_sees() -> None:
    """Figures are those of the tensors given, in float32; the first token is the first that may be seen."""
    torch.manual_seed(0)
    q = torch.randn(2, 4, 12, 8)
    mask = torch.ones(1, 1, 12, 12, dtype=torch.bool).tril()
    mask[..., :2] = False
    model = Masked(attn_mask=mask)
    plain = measured(model, q, q, q)
    with torch.autocast("cpu", torch.bfloat16):
        cast = measured(model, q, q, q)
    oracle = figures(q.double() @ q.double().transpose(-2, -1) / math.sqrt(8), mask, q)
    scores = (q.double() @ q.double().transpose(-2, -1) / math.sqrt(8)).masked_fill(~mask, -math.inf)
    for number, of_head in enumerate(oracle):
        weights = scores[:, number, 3:].softmax(-1).flatten(0, 1).mean(0)[2:]
        of_head |= {"first_share": float(weights[0]), "top_key": int(weights.argmax())}
        of_head["top_key_share"] = float(weights.max())
    require_same(plain, "", oracle, ("output_rms", "output_share"))
    require_same(cast, "", oracle, ("output_rms", "output_share"))


class Selves(nn.Module):
    """Attention of tokens with themselves under a padding mask, in five of the ways in which programs write it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.num_heads = kind, HEADS
        self.part = nn.MultiheadAttention(HEADS * SIZE, HEADS, batch_first=True) if kind == "layer" else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor) -> Tensor:
        if self.part:
            x = q.transpose(1, 2).flatten(2)
            return self.part(x, x, x, key_padding_mask=~real)[0]
        mask = real[:, None, None]
        if self.kind == "causal":
            mask = mask & torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
        if self.kind in ("fused", "causal"):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        bias = torch.zeros(mask.shape).masked_fill(~mask, -1e4 if self.kind == "by hand" else -math.inf)
        if self.kind == "added":
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return (q @ k.mT / math.sqrt(SIZE) + bias).softmax(-1) @ v


@pytest.mark.parametrize(("kind", "left"), each_once(["fused", "causal", "added", "by hand", "layer"], [False, True]))
def test_queries_of_padding_are_left_out(kind: str, left: bool) -> None:
    """The figures are those of both items without their padding."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, HEADS, 12, SIZE) for _ in range(3))
    real = torch.arange(12) < torch.tensor([[12], [9]])
    real = real.flip(1) if left else real
    model = Selves(kind)
    report = measured(model, q, k, v, real)
    if model.part:
        x = q.transpose(1, 2).flatten(2).double()
        parts = F.linear(x, model.part.in_proj_weight.double(), model.part.in_proj_bias.double()).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for t in parts)
    sees = real[:, None, None] & real[:, None, :, None]
    sees = sees & torch.ones(12, 12, dtype=torch.bool).tril() if kind == "causal" else sees
    oracle = figures(q.double() @ k.double().mT / math.sqrt(SIZE), sees, v)
    output = ("output_rms", "output_share", *(FROM_FIRST if left else []))
    require_same(report, "part" if model.part else "", oracle, output)
    first = torch.tensor([0, 3 if left else 0])
    for head, of_head in enumerate(report.rows):
        scores = (q.double() @ k.double().mT / math.sqrt(SIZE)).masked_fill(~sees, -math.inf)[:, head]
        weights = [scores[b][sees[b, 0].sum(-1) >= 2].softmax(-1) for b in range(2)]
        share = torch.cat([w[:, n] for w, n in zip(weights, first, strict=True)]).mean()
        assert of_head["first_share"] == pytest.approx(share.item(), rel=1e-4) and of_head["padding"] == 3
        longest = [F.pad(w[:, n:], (0, n)) for w, n in zip(weights, first, strict=True)]
        on_keys = torch.cat(longest).mean(0)
        assert of_head["top_key"] == on_keys.argmax()
        assert of_head["top_key_share"] == pytest.approx(on_keys.max().item(), rel=1e-4)
        out = torch.cat([(scores[b][real[b]].softmax(-1) @ v.double()[b, head]) for b in range(2)])
        assert of_head["output_rms"] == pytest.approx(out.square().mean().sqrt().item(), rel=1e-4)


class Across(nn.Module):
    """Attention of one sequence with another of the same length."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cross_attn = Masked()
        self.attend = nn.MultiheadAttention(32, HEADS, batch_first=True) if kind == "layer" else None

    def forward(self, x: Tensor, memory: Tensor, real: Tensor) -> Tensor:
        if self.attend:
            return self.attend(x, memory, memory, key_padding_mask=~real)[0]
        self.cross_attn.given = {"attn_mask": real[:, None, None]}
        return self.cross_attn(*(t.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for t in (x, memory, memory)))


@pytest.mark.parametrize("kind", ["name", "layer"])
def test_padding_of_another_sequence_leaves_out_no_query(kind: str) -> None:
    torch.manual_seed(0)
    real = torch.arange(12) < torch.tensor([[12], [9]])
    report = measured(Across(kind), torch.randn(2, 12, 32), torch.randn(2, 12, 32), real)
    assert {row["queries"] for row in report.rows} == {24}


class Projecting(nn.Module):
    """Attention under a name that says nothing, which projects queries, keys and values itself; `inner`: by a part."""

    def __init__(self, inner: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.inner = Masked() if inner else None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, real: Tensor) -> Tensor:
        projected = [layer(x) for layer, x in zip(self.layers, (query, key, value), strict=True)]
        q, k, v = (x.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for x in projected)
        if self.inner:
            self.inner.given = {"attn_mask": real[:, None, None]}
            return self.inner(q, k, v)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None])


class Layer(nn.Module):
    """Attention of a sequence with itself, whose values are another tensor, and then with another sequence."""

    def __init__(self, inner: bool) -> None:
        super().__init__()
        self.first, self.second, self.norms = Projecting(inner), Projecting(inner), nn.ModuleList([nn.Identity()] * 2)

    def forward(self, x: Tensor, y: Tensor, real: Tensor) -> Tensor:
        a, b = (norm(each) for norm, each in zip(self.norms, (x, y), strict=True))
        z = a + 1  # as positions are added, in DETR
        return self.first(z, z, a, real) + self.second(a, b, b, real)


@pytest.mark.parametrize("inner", [False, True])
def test_layers_that_are_given_two_sequences_tell_attention_across_them(inner: bool) -> None:
    torch.manual_seed(0)
    real = torch.arange(12) < torch.tensor([[12], [9]])
    model, x, y = Layer(inner).eval(), torch.randn(2, 12, 32), torch.randn(2, 12, 32)
    with untouched(model):
        report = measured(model, x, y, real)
    assert {(row.fqn.partition(".")[0], row["padding"]) for row in report.rows} == {("first", 3), ("second", 0)}


def test_the_offset_that_most_queries_share_is_counted_over_calls_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_sums, "_CPU_BLOCK", 64)
    torch.manual_seed(0)
    q, k = torch.randn(2, 3, 40, 8), torch.randn(2, 3, 40, 8)
    k[:, 0] = q[:, 0].roll(-2, 1) * 9  # each query's key stands two places before it
    report = measured(Masked(is_causal=True), q, k, q)
    scores = (q @ k.mT).masked_fill(torch.ones(40, 40).triu(1).bool(), -math.inf)
    for head, row in enumerate(report.rows):
        offsets = (scores[:, head].argmax(-1) - torch.arange(40))[:, 1:].flatten().tolist()
        assert row["offset_share"] == pytest.approx(max(map(offsets.count, offsets)) / 78)
    assert report.rows[0]["offset_share"] > 0.5


class NoHeads(nn.Module):
    """Attention over an empty dimension of heads, beside a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        q = y.unflatten(-1, (2, 4)).transpose(1, 2)[:, :0]
        return y + F.scaled_dot_product_attention(q, q, q).sum()


@pytest.mark.skipif(TORCH < (2, 14), reason="PyTorch divides by the number of heads, which ends the process")
def test_attention_without_heads_is_not_measured_and_says_so() -> None:
    report = capture(NoHeads(), torch.randn(2, 4, 8), ["attention"])[0]
    assert not report.rows and "has no heads" in report.skipped[0].reason
