"""Experts: every figure is that of a float64 computation of the router on what it received."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.routed_models import WIDTH, Capacity, Dense, Inline, Listed, Unrouted
from support import hooks_on
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookcli
from hookcli.record.file.reading import read_record
from hookcli.table import Report, Row

Router = Callable[[nn.Module, Tensor], tuple[Tensor, Tensor]]  # the scores that are compared, and probabilities
_SIZES: dict[str, Any] = {
    "vocab_size": 90,
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}


def mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(**_SIZES, num_local_experts=8, num_experts_per_tok=3, output_router_logits=True)
    return MixtralForCausalLM(config)


def qwen3_moe() -> nn.Module:
    from transformers import Qwen3MoeConfig, Qwen3MoeModel

    config = Qwen3MoeConfig(**_SIZES, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8)
    return Qwen3MoeModel(config)


def deepseek_v3() -> nn.Module:
    from transformers import DeepseekV3Config, DeepseekV3Model

    lora = dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8)
    groups = {"n_routed_experts": 16, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2}
    sizes = {**_SIZES, **lora, **groups, "first_k_dense_replace": 0, "moe_intermediate_size": 16}
    return DeepseekV3Model(DeepseekV3Config(**sizes))


def gpt_oss() -> nn.Module:
    from transformers import GptOssConfig, GptOssModel

    return GptOssModel(GptOssConfig(**_SIZES, num_local_experts=8, num_experts_per_tok=2, head_dim=8))


def switch() -> nn.Module:
    from transformers import SwitchTransformersConfig, SwitchTransformersEncoderModel

    sizes = {"vocab_size": 90, "d_model": 32, "d_ff": 16, "d_kv": 8, "num_layers": 2, "num_heads": 4}
    config = SwitchTransformersConfig(**sizes, num_sparse_encoder_layers=1, num_experts=4, expert_capacity=6)
    return SwitchTransformersEncoderModel(config)


def logits(router: nn.Module, x: Tensor) -> Tensor:
    weight, bias = getattr(router, "classifier", router).weight, getattr(router, "bias", None)
    return nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())


def of_softmax(router: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    p = logits(router, x).softmax(-1)
    return p, p


def of_logits(router: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    scores = logits(router, x)
    return scores, scores.softmax(-1)


def of_groups(router: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    sigmoid = logits(router, x).sigmoid()
    scores = sigmoid + router.e_score_correction_bias.double()
    groups = scores.unflatten(-1, (4, 4))
    best = groups.topk(2).values.sum(-1).topk(2).indices
    mask = torch.zeros_like(groups).scatter(1, best.unsqueeze(-1).expand(-1, -1, 4), 1).flatten(1)
    return scores.masked_fill(mask == 0, -torch.inf), sigmoid / sigmoid.sum(-1, keepdim=True)


def reports(model: nn.Module, x: Tensor, **options: Any) -> Report:
    return hookcli.capture(model, x, ["experts"], **options)[0]


def layer_and_experts(report: Report, fqn: str) -> tuple[Row, list[Row]]:
    layer, *experts = (row for row in report.rows if row.fqn == fqn)
    assert "expert" not in layer.values and [row["expert"] for row in experts] == [*range(layer["experts"])]
    return layer, experts


def require_figures(layer: Row, experts: list[Row], scores: Tensor, p: Tensor, k: int) -> None:
    """Every figure but those of dropped tokens, from the scores of each token."""
    tokens, number = scores.shape
    best, chosen = scores.topk(k + 1)
    mask = torch.zeros_like(scores).scatter(1, chosen[:, :k], 1).bool()
    counts = mask.sum(0)
    assert [row["tokens"] for row in experts] == counts.tolist() and counts.sum() == tokens * k
    load = counts * number / (tokens * k)
    compared = p.log() if scores is p else scores
    margin, gap = best[:, k - 1] - best[:, k], compared.topk(k).values[:, -1:] - compared
    close(experts, "load", load)
    close(experts, "router_weight", (p * mask).sum(0) / counts)
    close(experts, "router_probability", p.mean(0))
    finite = [column[column.isfinite()] for column in gap.T]
    close(experts, "shortfall", torch.stack([(x.mean() / x.std(correction=0)) for x in finite]))
    entropy = -(p * p.log()).sum(-1).mean()
    expected = {"tokens": tokens, "experts": number, "top_k": k, "dead_experts": int((counts == 0).sum())}
    assert {key: layer[key] for key in expected} == expected
    figures = {"load": load.max(), "router_entropy": entropy, "router_entropy_share": entropy / math.log(number)}
    for key, value in (figures | {"margin": margin[margin.isfinite()].mean()}).items():
        assert layer[key] == pytest.approx(value.item(), rel=2e-4), key


def close(rows: list[Row], key: str, expected: Tensor) -> None:
    for row, value in zip(rows, expected.tolist(), strict=True):
        assert row[key] is None if math.isnan(value) else row[key] == pytest.approx(value, rel=1e-3, abs=1e-6), key


@pytest.mark.xdist_group("timm and Transformers")
@pytest.mark.parametrize(
    ("make", "gate", "router", "k"),
    [
        (mixtral, "model.layers.1.mlp.gate", of_softmax, 3),
        (qwen3_moe, "layers.1.mlp.gate", of_softmax, 2),
        (deepseek_v3, "layers.1.mlp.gate", of_groups, 3),
        (gpt_oss, "layers.1.mlp.router", of_logits, 2),
        (switch, "encoder.block.1.layer.1.mlp.router", of_softmax, 1),
    ],
)
def test_the_figures_of_models_of_transformers(
    make: Callable[[], nn.Module], gate: str, router: Router, k: int
) -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = make().eval()
    module, seen = model.get_submodule(gate), list[Tensor]()
    for name, parameter in model.named_parameters():
        if gate in name:
            nn.init.normal_(parameter, std=0.5)
    if make is deepseek_v3:
        nn.init.normal_(module.e_score_correction_bias, std=0.1)
    handle = module.register_forward_pre_hook(lambda _, args: seen.append(args[0].flatten(0, -2)))
    report = reports(model, torch.randint(0, 90, (3, 16)))
    handle.remove()
    fqn = gate.rpartition(".")[0]
    layer, experts = layer_and_experts(report, fqn)
    require_figures(layer, experts, *router(module, seen[0]), k)
    assert {row.fqn for row in report.rows if fqn.startswith("encoder") or row.fqn != fqn} | {fqn} == {
        name for name, part in model.named_modules() if hasattr(part, "experts") and not name.endswith("experts")
    }
    if make is not switch:
        assert "dropped" not in layer.values
        return
    counts = nn.functional.one_hot(router(module, seen[0])[0].argmax(-1), 4).view(3, 16, 4).sum(1)
    dropped = (counts - 6).clamp(min=0)
    assert layer["dropped"] == dropped.sum() > 0 and [row["dropped"] for row in experts] == dropped.sum(0).tolist()
    assert layer["dropped_share"] == pytest.approx(float(dropped.sum() / 48))


@pytest.mark.parametrize("make", [Listed, Dense, Capacity, Inline])
def test_hand_written_layers(make: Callable[[], nn.Module]) -> None:
    """Alone and as a part; with what the layer drops, as far as the router returns a mask."""
    torch.manual_seed(0)
    layer, x = make(), torch.randn(2, 10, WIDTH)
    gate = layer.router.w_g if isinstance(layer, Capacity) else layer.gate
    scores = gate(x.flatten(0, 1)).double()
    p = scores.softmax(-1)
    k = 1 if make is Inline else 2
    for model, fqn in ((layer, ""), (nn.Sequential(nn.Identity(), layer), "1")):
        own, experts = layer_and_experts(reports(model, x), fqn)
        require_figures(own, experts, p if make in (Dense, Inline) else scores, p, k)
        if make is Capacity:
            over = [max(row["tokens"] - 4, 0) for row in experts]
            assert [row["dropped"] for row in experts] == over and own["dropped"] == sum(over) > 0
        else:
            assert "dropped" not in own.values


def test_calls_add_up() -> None:
    torch.manual_seed(0)
    layer, x = Listed(), torch.randn(2, 5, WIDTH)
    both = reports(layer, torch.cat([x, layer(x)]))
    called = reports(nn.Sequential(layer, layer), x)
    for one, other in zip(both.rows, called.rows, strict=True):
        for key in set(one.values) - {"fqn"}:
            assert other[key] == (pytest.approx(one[key], rel=1e-5) if isinstance(one[key], float) else one[key]), key


def test_a_choice_that_no_expert_follows_is_no_router() -> None:
    report = reports(nn.Sequential(Unrouted()), torch.randn(2, 4, WIDTH))
    assert not report.rows and "no experts ran after it" in report.skipped[0].reason and report.skipped[0].fqn == "0"
    assert str(report.table()).startswith("No router was seen")


class Checkpointed(Listed):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return out


@pytest.mark.parametrize("make", [Checkpointed, Dense, Capacity, Inline])
def test_a_recorded_step_is_the_same_and_counts_each_token_once(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    """Output, gradients and random numbers; two forwards in a step add up, and a checkpoint's second run is none."""

    def trained(layer: nn.Module, x: Tensor) -> list[Tensor | None]:
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        out = [layer(part) for part in x]
        sum(y.sum() for y in out).backward()  # type: ignore[union-attr]
        optimizer.step()
        return [*out, *(p.grad for p in layer.parameters()), *layer.state_dict().values(), torch.get_rng_state()]

    torch.manual_seed(0)
    layer, x = make(), torch.randn(2, 1, 6, WIDTH)
    alone = {row.get("expert"): row["tokens"] for row in reports(deepcopy(layer), x.flatten(0, 1)).rows}
    assert alone[None] == 12 and sum(alone.values()) == 12 * (1 + getattr(layer, "k", 1 if make is Inline else 2))
    expected = trained(deepcopy(layer), x)
    with hookcli.watch(layer, probes=["experts"], every=1, output=tmp_path / "a.jsonl"):
        found = trained(layer, x)
    for one, other in zip(expected, found, strict=True):
        assert one is other is None or (one is not None and other is not None and torch.equal(one, other))
    assert not sum(hooks_on(layer).values())
    record = read_record(tmp_path / "a.jsonl")
    [step] = record.steps(record.entries)
    assert {row.get("expert"): row["tokens"] for row in step.rows("experts")} == alone
