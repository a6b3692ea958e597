"""Transformers' models: folders, types and hub names, their inputs, tasks, and weights beside the configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from support import swept

from hookcli.errors import HookcliError, UsageError
from hookcli.sources.base import InputSpec
from hookcli.sources.catalog.transformers import headed_task
from hookcli.sources.finding import find_recipe
from hookcli.sources.huggingface_inputs import Inputs, _pictures

pytestmark = pytest.mark.xdist_group("timm and Transformers")

TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 50}


def configured(folder: Path, **entries: Any) -> str:
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", **TINY, **entries}))
    return f"hf:{folder}"


def test_a_folder_is_built_from_its_configuration(tmp_path: Path, cli: Callable[..., Any]) -> None:
    import transformers

    spec = configured(tmp_path, architectures=["BertForMaskedLM"], max_position_embeddings=20)
    report = json.loads(cli("shapes", spec, "-f", "json", "--no-cache", "--batch-size", "3").out)["reports"][0]
    model = transformers.BertForMaskedLM(transformers.BertConfig(**TINY, max_position_embeddings=20))
    assert report["totals"]["params"] == sum(p.numel() for p in model.parameters())
    assert report["meta"]["architecture"] == "BertForMaskedLM" and report["meta"]["config"] == str(tmp_path)
    assert report["meta"]["device"] == "meta" and report["meta"]["input"] == "3x18:int64"
    assert report["rows"][0]["output_shape"] == [3, 18, 50]
    for command in ("memory", "weights"):
        ran = cli(command, spec, "--task", "causal-lm", "-f", "json")
        assert json.loads(ran.out)["reports"][0]["meta"]["architecture"] == "BertLMHeadModel", ran.err


OWN = """
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

def net():
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 50}
    return nn.Sequential(LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **sizes)))
"""


@pytest.mark.parametrize("command", ["shapes", "memory"])
def test_a_quantization_that_random_weights_lack_is_said(tmp_path: Path, cli: Callable[..., Any], command: str) -> None:
    """The figures belong to the weights that the model's code makes."""
    said = "weights are random, without the quantization of its configuration (bitsandbytes)"
    totals = []
    for more in ({}, {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}):
        ran = cli(command, configured(tmp_path, **more), "-f", "json", "-q")
        report = json.loads(ran.out)["reports"][0]
        assert (said in report["meta"].get("notes", ())) == bool(more)
        totals.append({name: value for name, value in report["totals"].items() if not isinstance(value, str)})
    assert totals[0] == totals[1]


def test_a_model_of_ones_own_of_its_parts_runs_on_the_meta_device(tmp_path: Path, cli: Callable[..., Any]) -> None:
    """As PEFT's do. It asks whether positions are consecutive, which meta tensors can't tell."""
    (tmp_path / "own.py").write_text(OWN)
    ran = cli("memory", f"{tmp_path / 'own.py'}:net", "-i", "2x8:int64", "-f", "json")
    assert json.loads(ran.out)["reports"][0]["meta"]["device"] == "meta", ran.err


def test_token_ids_are_of_the_vocabulary(tmp_path: Path, cli: Callable[..., Any]) -> None:
    ran = cli("inputs", configured(tmp_path), "-f", "json", "--match", "embeddings", "--input", "2x40")
    row = json.loads(ran.out)["reports"][0]["rows"][0]
    assert row["dtype"] == "int64" and row["shape"] == [2, 40] and 40 <= row["max"] < 50


def test_a_step_has_the_models_own_loss(tmp_path: Path, cli: Callable[..., Any]) -> None:
    for task, loss in {"sequence-classification": 2, "token-classification": 2, "masked-lm": 50}.items():
        ran = cli("grads", configured(tmp_path), "--task", task, "-f", "json")
        meta = json.loads(ran.out)["reports"][0]["meta"]
        assert meta["loss"].startswith("the model's own") and meta["input"].endswith("with targets"), task
        # Of a model with random weights the cross entropy is near that of a guess.
        assert meta["loss_value"] == pytest.approx(torch.tensor(float(loss)).log().item(), abs=0.5), task


def test_several_inputs_by_name_and_arguments_within_a_part() -> None:
    part = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    args = {"text_config": part | {"vocab_size": 9}, "vision_config": part | {"image_size": 64}}
    recipe = find_recipe("hf:clip", args)
    assert recipe.inputs == (InputSpec((1, 75), torch.int64, 9), InputSpec((1, 3, 64, 64)))
    with torch.device("meta"):
        model = recipe.build()
        arguments = recipe.arrange([torch.empty(s.shape, dtype=s.dtype) for s in recipe.inputs])
    assert isinstance(arguments, dict) and list(arguments) == ["input_ids", "pixel_values"]
    assert len(model.text_model.encoder.layers) == 1 and model(**arguments).logits_per_image.shape == (1, 1)


OTHERS = """
albert bert bloom clip convnext deberta-v2 detr electra falcon funnel gemma2 gpt2 hubert layoutlmv3 llama mamba
llava mask2former mixtral resnet roberta sam segformer swin t5 videomae vit wav2vec2 whisper xlnet
"""


@pytest.mark.parametrize("kind", [*map(swept, ("bart", *OTHERS.split()))])
def test_default_configurations_run_on_the_meta_device(kind: str, cli: Callable[..., Any]) -> None:
    """These would be too large, or read values of a mask unless it counts as without any."""
    ran = cli("shapes", f"hf:{kind}", "--no-cache", "-f", "json")
    assert ran.code == 0, ran.err
    meta = json.loads(ran.out)["reports"][0]["meta"]
    assert meta["device"] == "meta" and meta["config"] == f"defaults of the type {kind}"


def test_a_model_larger_than_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = find_recipe("hf:bert", TINY | {"num_hidden_layers": 3})
    monkeypatch.setattr("hookcli.sources.huggingface.available_memory", lambda: 1000)
    too_large = "hf:bert is too large to run for real: its parameters take .* KiB, .*: --arg num_hidden_layers=2"
    with pytest.raises(HookcliError, match=too_large):
        recipe.build()
    with torch.device("meta"):
        recipe.build()


def test_weights_beside_the_configuration_come_by_transformers_own_loading(tmp_path: Path) -> None:
    import transformers

    saved = transformers.BertModel(transformers.BertConfig(**TINY))
    saved.save_pretrained(tmp_path)
    recipe = find_recipe(f"hf:{tmp_path}", weights="DEFAULT")
    assert recipe.build_filled
    filled, remark = recipe.build_filled(True)
    assert remark is None and torch.equal(filled.pooler.dense.weight, saved.pooler.dense.weight)
    head = find_recipe(f"hf:{tmp_path}", weights="DEFAULT", task="sequence-classification").build_filled
    assert head
    with pytest.raises(
        UsageError, match=r"no values for 2 tensors \(classifier.bias, classifier.weight\): --no-strict"
    ):
        head(True)
    filled, remark = head(False)
    assert "they are random" in str(remark) and torch.equal(filled.bert.pooler.dense.weight, saved.pooler.dense.weight)


def test_arguments_are_those_of_the_configuration(tmp_path: Path) -> None:
    """By the name that all configurations have, and in parts: what a part does not name stays as it is."""
    assert find_recipe("hf:gpt2", args={"hidden_size": 24, "n_head": 2, "n_layer": 1}).build().config.n_embd == 24
    config = {"model_type": "clip", "text_config": {"num_hidden_layers": 1, "hidden_size": 8}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    args = {"text_config": {"hidden_size": 16}, "attn_implementation": "eager"}
    with torch.device("meta"):
        made = find_recipe(f"hf:{tmp_path}", args=args).build().config
    assert (made.text_config.hidden_size, made.text_config.num_hidden_layers) == (16, 1)


def test_pictures_have_three_channels_unless_the_configuration_says_otherwise() -> None:
    sizes = {"model_type": "none", "image_size": 8}
    assert _pictures(SimpleNamespace(**sizes), object) == InputSpec((1, 3, 8, 8))
    assert _pictures(SimpleNamespace(**sizes, in_chans=1), object) == InputSpec((1, 1, 8, 8))


def test_the_folders_own_tokenizer_and_transforms(tmp_path: Path) -> None:
    from transformers import ViTImageProcessor

    assert find_recipe(configured(tmp_path)).tokenizer is None
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hook", "##s"]))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(tmp_path)
    recipe = find_recipe(configured(tmp_path))
    assert recipe.tokenizer and recipe.tokenizer()("hooks")["input_ids"] == [2, 5, 6, 3]
    assert recipe.transforms and recipe.transforms()(Image.new("L", (20, 30))).shape == (3, 8, 8)


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    for name, text in (("list", "[1]"), ("none", '{"model_type": "bert", "architectures": ["__doc__"]}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    (tmp_path / "own").mkdir()
    own = configured(tmp_path / "own", model_type="mine", auto_map={"AutoModel": "code.Mine"})
    for spec, asked, said in (
        (f"hf:{tmp_path / 'empty'}", {}, "no config.json in that folder"),
        (f"hf:{tmp_path / 'broken'}", {}, "config.json can't be read"),
        (f"hf:{tmp_path / 'list'}", {}, "config.json is not a JSON object"),
        (f"hf:{tmp_path / 'none'}", {}, "__doc__ is not a model of Transformers"),
        (own, {}, r"unknown type of Transformers \S+ 'mine'.*its code \(auto_map\) is not run"),
        (
            "hf:bert",
            {"args": {"hidden_sizes": 3}},
            "unknown argument of hf:bert 'hidden_sizes'; did you mean hidden_size",
        ),
        ("hf:bert", {"args": {"hidden_size": "big"}}, "the configuration does not fit"),
        ("hf:bert", {"task": "text-generation"}, "unknown task of bert 'text-generation'"),
        ("hf:bert", {"weights": "DEFAULT"}, "hf:bert is a type, which has no weights"),
        ("resnet18", {"task": "causal-lm"}, "--task causal-lm: torchvision models have no tasks"),
    ):
        with pytest.raises(UsageError) as raised:
            find_recipe(spec, **asked)
        assert re.search(said, str(raised.value)), str(raised.value)


def test_videos_have_frames_and_an_unknown_kind_of_input_must_be_given() -> None:
    assert find_recipe("hf:timesformer").inputs == (InputSpec((1, 8, 3, 224, 224)),)
    assert find_recipe("hf:musicgen").inputs is None  # it has two configurations of texts


@pytest.mark.sweep
def test_a_name_that_other_libraries_have_is_pointed_out() -> None:
    with pytest.raises(UsageError, match=r"unknown model 'gpt2'.*\(of other libraries: hf:gpt2\)"):
        find_recipe("gpt2")


def test_labels_of_positions_have_the_shape_of_the_sequence() -> None:
    """Of a batch of two with five frames of three features each."""
    inputs = Inputs(("values",), None, (("labels", "position"), ("starts", "item"), ("one", "number")))
    named = inputs.arrange_training([torch.ones(2, 5, 3)])
    assert {name: list(x.shape) for name, x in named.items()} == {
        "values": [2, 5, 3], "labels": [2, 5], "starts": [2], "one": []
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tasks", "headed"),
    [
        ({"base": "A", "pretraining": "B", "causal-lm": "B", "sequence-classification": "C"}, "causal-lm"),
        ({"base": "A", "causal-lm": "B", "masked-lm": "C"}, "masked-lm"),
        (
            {"base": "A", "image": "A", "masked-image-modeling": "B", "image-classification": "C"},
            "image-classification",
        ),
        ({"base": "A", "image-classification": "B", "zero-shot-image-classification": "A"}, ""),
        ({"base": "A", "backbone": "B", "text-encoding": "A"}, ""),
        ({"base": "A", "sequence-classification": "B"}, "sequence-classification"),
    ],
)
def test_the_task_that_adds_a_head(tasks: dict[str, str], headed: str) -> None:
    assert headed_task(tasks) == headed


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("GPT2LMHeadModel", "hf:gpt2 --task causal-lm"),
        ("GPT2Model", "hf:gpt2"),
        ("BertForMaskedLM", "hf:bert --task masked-lm"),
        ("T5ForConditionalGeneration", "hf:t5 --task seq-to-seq-causal-lm"),
    ],
)
def test_a_class_is_not_looked_for_on_the_hub(name: str, spec: str) -> None:
    with pytest.raises(UsageError) as error:
        find_recipe(f"hf:{name}")
    assert str(error.value) == f"hf:{name} names a class; did you mean {spec}?"


@pytest.mark.parametrize("command", ["shapes", "memory"])
def test_a_type_without_its_head_says_so(cli: Callable[..., Any], command: str) -> None:
    small = ["--arg", "n_layer=1", "--arg", "n_embd=8", "--arg", "n_head=2", "--arg", "vocab_size=50"]
    note = "GPT2Model, without its language-model head: --task causal-lm has it\n"
    plain = cli(command, "hf:gpt2", *small, "--input", "2x4:int64")
    assert plain.out.count(note) == 1
    assert command != "memory" or plain.out.index(note) < plain.out.index("hf:gpt2")
    assert "without its" not in cli(command, "hf:gpt2", *small, "--input", "2x4:int64", "--task", "causal-lm").out
    assert "without its" not in cli(command, "hf:gpt2", *small, "--input", "2x4:int64", "--task", "base").out
