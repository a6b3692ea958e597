"""timm's models: names, tags of weights, folders, arguments, transforms, and weights that are on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from hookcli.errors import UsageError
from hookcli.sources.base import InputSpec, Request
from hookcli.sources.finding import find_recipe

pytestmark = pytest.mark.xdist_group("timm and Transformers")

NAME = "test_resnet"  # timm's own tiny model for tests
TAG = "r160_in1k"


def test_a_name_is_built_with_its_input_and_arguments(cli: Callable[..., Any]) -> None:
    import timm

    ran = cli("shapes", f"timm:{NAME}", "--arg", "num_classes=7", "-f", "json", "--no-cache")
    report = json.loads(ran.out)["reports"][0]
    model = timm.create_model(NAME, num_classes=7)
    assert report["totals"]["params"] == sum(p.numel() for p in model.parameters())
    assert report["model"] == f"timm:{NAME}" and report["meta"]["timm"] == timm.__version__
    assert report["meta"]["input"] == "1x3x160x160" and report["rows"][-1]["output_shape"] == [1, 7]


@pytest.mark.sweep
def test_the_size_of_the_input_follows_the_arguments_and_the_tag() -> None:
    recipe = find_recipe("timm:vit_tiny_patch16_224", {"img_size": 64, "in_chans": 1})
    assert recipe.inputs == (InputSpec((1, 1, 64, 64)),)
    with torch.device("meta"):
        assert recipe.build()(torch.empty(2, 1, 64, 64)).shape == (2, 1000)
    in21k = find_recipe("timm:vit_tiny_patch16_224.augreg_in21k")
    with torch.device("meta"):
        assert in21k.build()(torch.empty(1, 3, 224, 224)).shape == (1, 21843)


def test_transforms_are_those_of_the_weights() -> None:
    from timm.data import create_transform, resolve_data_config

    picture = Image.linear_gradient("L").resize((300, 200)).convert("RGB")
    recipe = find_recipe(f"timm:{NAME}.{TAG}")
    settings = resolve_data_config(model=recipe.build())
    assert recipe.transforms
    assert torch.equal(recipe.transforms()(picture), create_transform(**settings, is_training=False)(picture))


def test_published_weights_come_from_the_hubs_cache_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.file_download
    import timm
    from safetensors.torch import save_file

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.file_download, "hf_hub_download", lambda *_, **__: pytest.fail("downloaded"))
    recipe = find_recipe(f"timm:{NAME}", weights=TAG)
    assert recipe.build_filled
    with pytest.raises(UsageError, match=rf"not on disk.*does not download: get timm/{NAME}\.{TAG}"):
        recipe.build_filled(True)
    folder = tmp_path / f"models--timm--{NAME}.{TAG}"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    model = timm.create_model(NAME)
    save_file(model.state_dict(), folder / "snapshots" / "abc" / "model.safetensors")
    filled, remark = recipe.build_filled(True)
    assert remark is None
    assert all(torch.equal(a, b) for a, b in zip(filled.parameters(), model.parameters(), strict=True))


def test_a_folder_with_a_configuration_and_weights(tmp_path: Path) -> None:
    import timm
    from timm.models import save_for_hf

    model = timm.create_model(NAME, num_classes=3)
    save_for_hf(model, tmp_path, model_config={"num_classes": 3})
    recipe = find_recipe(f"timm:{tmp_path}", weights="DEFAULT")
    assert recipe.build_filled
    filled, _ = recipe.build_filled(True)
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(filled.eval()(x), model.eval()(x)) and filled(x).shape == (1, 3)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (Request("resnet10tt"), "unknown timm model 'resnet10tt'; did you mean resnet10t"),
        (Request(f"{NAME}.r16_in1k"), f"unknown weights of {NAME} 'r16_in1k'; did you mean {TAG}?"),
        (Request(NAME, weights="nope"), f"unknown weights of {NAME} 'nope'"),
        (Request(NAME, {"pretrained": True}), "--arg pretrained: give --weights TAG or FILE"),
        (Request("/"), "timm:/: no configuration of a timm model there"),
    ],
)
def test_what_is_wrong_is_said(request_: Request, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        find_recipe(f"timm:{request_.spec}", request_.args, request_.weights)
    assert str(raised.value).startswith(said)


def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    with pytest.raises(UsageError, match=r"timm:x needs timm: pip install 'hookcli\[timm\]'"):
        find_recipe("timm:x")
