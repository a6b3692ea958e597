"""Code beside a configuration, or that one names on the hub: never run, and nobody is asked whether to run it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support import each_once, swept

from hookcli.errors import UsageError
from hookcli.sources.finding import find_recipe

pytestmark = pytest.mark.xdist_group("timm and Transformers")

TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 50}
WORDS = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hi"])
CLASSES = {
    **dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoBackbone"), "own.Evil"),
    **dict.fromkeys(("AutoImageProcessor", "AutoProcessor", "AutoFeatureExtractor"), "own.Evil"),
    "AutoTokenizer": ["own.Evil", "own.Evil"],
}


class Runs:
    """A pickle that leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that code which is not to run would make; a question fails the test."""

    def asked(question: str = "") -> str:
        (tmp_path / "mark").touch()
        return "y"

    monkeypatch.setattr("builtins.input", asked)
    return tmp_path / "mark"


@pytest.fixture
def folder(tmp_path: Path, mark: Path) -> Path:
    """A folder with a model's code, a tokenizer's words, and weights that run code."""
    place = tmp_path / "evil"
    (place / "custom_generate").mkdir(parents=True)
    code = f"from pathlib import Path\nPath({str(mark)!r}).touch()\nclass Evil: pass\ngenerate = Evil\n"
    for name in ("own.py", "__init__.py", "custom_generate/generate.py"):
        (place / name).write_text(code)
    (place / "vocab.txt").write_text(WORDS)
    return place


def written(place: Path, name: str, **entries: Any) -> None:
    (place / name).write_text(json.dumps(entries))


TOKENIZERS = {
    "its class": {"tokenizer_class": "Evil", "auto_map": CLASSES},
    "a list of classes": {"tokenizer_class": "Evil", "auto_map": ["own.Evil", "own.Evil"]},
    "one of the library's": {"tokenizer_class": "BertTokenizer", "auto_map": CLASSES},
    "of another repository": {"auto_map": {"AutoTokenizer": ["other/place--own.Evil", None]}},
    "a template": {
        "tokenizer_class": "BertTokenizer",
        "chat_template": "{{ cycler.__init__.__globals__.os.popen('x') }}",
    },
}


@pytest.mark.parametrize(("configured", "tokenizer"), each_once(["bert", "mine", None], TOKENIZERS))
def test_no_tokenizer_runs_its_own_code(
    tokenizer: str, configured: str | None, folder: Path, mark: Path, cli: Callable[..., Any]
) -> None:
    if configured:
        written(folder, "config.json", model_type=configured, auto_map=CLASSES, **TINY)
    written(folder, "tokenizer_config.json", **TOKENIZERS[tokenizer])
    (folder.parent / "sound").mkdir()
    written(folder.parent / "sound", "config.json", model_type="bert", **TINY)
    for command in ([f"hf:{folder.parent / 'sound'}", "--tokenizer", str(folder)], [f"hf:{folder}"]):
        ran = cli("inputs", *command, "--text", "hi")
        assert not mark.exists() and "[y/N]" not in ran.out + ran.err
        assert ran.code == 0 or (ran.code == 2 and ran.err.count("\n") <= 2), ran.err


def test_no_processor_of_pictures_runs_its_own_code(folder: Path, mark: Path, cli: Callable[..., Any]) -> None:
    Image.new("RGB", (40, 40)).save(folder / "a.png")
    written(folder, "config.json", model_type="vit", image_size=32, auto_map=CLASSES, **TINY)
    for name in ("preprocessor_config.json", "processor_config.json"):
        written(folder, name, image_processor_type="Evil", processor_class="Evil", auto_map=CLASSES)
    ran = cli("inputs", f"hf:{folder}", "--images", str(folder / "a.png"))
    assert not mark.exists() and ran.code == 2 and ran.err.count("\n") <= 2, ran.err


@pytest.mark.parametrize(
    ("kind", "entries"),
    [
        swept("blip-2", {"text_config": {"model_type": "vit", "auto_map": CLASSES}}),
        swept("llava", {"text_config": {"model_type": "mine", "auto_map": CLASSES}}),
        swept("llava", {"vision_config": {"model_type": "llama", "auto_map": CLASSES}, "text_config": TINY}),
        ("encoder-decoder", {"encoder": {"model_type": "mine"}, "decoder": {"model_type": "vit", "auto_map": CLASSES}}),
        ("detr", {"backbone_config": {"model_type": "bert", "auto_map": CLASSES}}),
        ("bert", {"attn_implementation": "evil/kernel", **TINY}),
        ("bert", {"_attn_implementation": "evil/kernel@main:run", **TINY}),
        ("bert", {"architectures": ["own.Evil"], **TINY}),
    ],
)
def test_no_part_of_a_configuration_runs_code(
    kind: str, entries: Any, folder: Path, mark: Path, cli: Callable[..., Any]
) -> None:
    written(folder, "config.json", model_type=kind, _name_or_path=str(folder), name_or_path=str(folder), **entries)
    ran = cli("shapes", f"hf:{folder}", "--no-cache")
    assert not mark.exists() and "[y/N]" not in ran.out + ran.err
    assert ran.code in (0, 2) and ran.err.count("\n") <= 2, ran.err


def test_kernels_are_not_got_from_the_hub_while_a_model_is_built() -> None:
    from transformers.integrations import hub_kernels

    from hookcli.sources.libraries import without_remote_code

    before = hub_kernels.get_kernel
    with without_remote_code(), pytest.raises(FileNotFoundError, match="runs no code from the hub"):
        hub_kernels.get_kernel("kernels-community/any", version=1)
    assert hub_kernels.get_kernel is before


def test_weights_beside_a_configuration_run_no_code(folder: Path, mark: Path) -> None:
    written(folder, "config.json", model_type="bert", auto_map=CLASSES, **TINY)
    written(folder, "generation_config.json", custom_generate="generate")
    torch.save({"embeddings.word_embeddings.weight": Runs(mark)}, folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match="--weights DEFAULT"):
        find_recipe(f"hf:{folder}", weights="DEFAULT").build_filled(True)  # type: ignore[misc]
    written(folder, "adapter_config.json", peft_type="LORA", base_model_name_or_path="x", megatron_core="own")
    with pytest.raises(UsageError, match=r"adapter \(adapter_config.json\), which hookcli does not load"):
        find_recipe(f"hf:{folder}", weights="DEFAULT")
    assert not mark.exists()


def test_a_folder_of_timm_runs_no_code(folder: Path, mark: Path) -> None:
    settings = {"custom_load": True, "state_dict": "own", "url": "x", "source": "custom"}
    written(folder, "config.json", architecture="test_resnet", num_classes=2, pretrained_cfg=settings, auto_map=CLASSES)
    torch.save({"fc.weight": Runs(mark)}, folder / "pytorch_model.bin")
    recipe = find_recipe(f"timm:{folder}", weights="DEFAULT")
    recipe.build()
    with pytest.raises(Exception, match=r"^$|Weights only load failed|weights_only=True"):  # timm's own errors
        recipe.build_filled(True)  # type: ignore[misc]
    assert not mark.exists()
