"""No observer effect on models of timm and Transformers: two steps of training end in the same bits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import Later, assert_stats, equal, float64_stats, hooks_on
from torch import Tensor, nn

import hookcli
from hookcli.probes.grads import GradsProbe

timm, transformers = Later("timm"), Later("transformers")
pytestmark = pytest.mark.xdist_group("timm and Transformers")
IMAGES = ("dla46x_c", "cait_xxs24_224", "vit_tiny_patch16_224", "mobilenetv3_small_050", "test_convnext")
LIKE_OTHERS = (*IMAGES, "bert", "t5")  # in kinds of layers; or torchvision's


def image_model(name: str) -> tuple[nn.Module, dict[str, Any], Callable[[Any], Tensor]]:
    size = {"img_size": 64, "depth": 4} if "cait" in name or "vit_" in name else {}
    return timm.create_model(name, num_classes=7, **size), {"x": torch.randn(2, 3, 64, 64)}, lambda y: y.pow(2).mean()


def gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2))


def bert() -> nn.Module:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=50, **sizes))


def t5() -> nn.Module:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=50, decoder_start_token_id=0, **sizes)
    )


def text_model(name: str) -> tuple[nn.Module, dict[str, Any], Callable[[Any], Tensor]]:
    ids = torch.randint(0, 50, (2, 6))
    return {"gpt2": gpt2, "bert": bert, "t5": t5}[name](), {"input_ids": ids, "labels": ids}, lambda y: y.loss


MODELS = [*((image_model, name) for name in IMAGES), *((text_model, name) for name in ("gpt2", "bert", "t5"))]
CASES = [
    pytest.param(make, name, id=name, marks=[pytest.mark.sweep] if name in LIKE_OTHERS else []) for make, name in MODELS
]


def train(model: nn.Module, inputs: dict[str, Any], loss: Callable[[Any], Tensor]) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(2)
    for _ in range(2):
        optimizer.zero_grad()
        loss(model(**inputs)).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()], [b.clone() for b in model.buffers()], torch.get_rng_state()


@pytest.mark.parametrize(("make", "name"), CASES)
def test_training_ends_in_the_same_bits(make: Callable[[str], Any], name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, inputs, loss = make(name)
    if name == "dla46x_c":  # where the order of a sum showed most
        model, inputs = model.bfloat16(), {"x": inputs["x"].bfloat16()}
    recorded, watched, expected = copy.deepcopy(model), copy.deepcopy(model), train(model, inputs, loss)
    with hookcli.watch(recorded, every=1, output=tmp_path / "run.jsonl") as recording:
        assert equal(expected, train(recorded, inputs, loss))
    probes = ["shapes", "activations", GradsProbe("outputs"), GradsProbe("inputs"), "trace"]
    with hookcli.watch(watched, probes) as seen:
        assert equal(expected, train(watched, inputs, loss))
    assert all(report.rows for report in (*recording.reports(), *seen.reports()))
    assert not any(hooks_on(recorded).values()) and not any(hooks_on(watched).values())


@pytest.mark.parametrize(("make", "name"), CASES)
def test_a_capture_has_the_gradients_of_the_loss_and_leaves_nothing(make: Callable[[str], Any], name: str) -> None:
    torch.manual_seed(0)
    model, inputs, loss = make(name)
    model.double().eval()
    inputs = {key: x.double() if x.is_floating_point() else x for key, x in inputs.items()}
    before = copy.deepcopy(model.state_dict())
    [report] = hookcli.capture(model, inputs, ["grads"], loss=loss)
    assert equal(before, model.state_dict()) and all(p.grad is None for p in model.parameters())
    assert not any(hooks_on(model).values())
    loss(model(**inputs)).backward()
    grads = {fqn: p.grad for fqn, p in model.named_parameters() if p.grad is not None}
    assert {row.fqn for row in report.rows} == grads.keys()
    for row in report.rows:
        assert_stats(row.stats, float64_stats(grads[row.fqn]))
