"""A recipe's transforms turn a picture into one item of its input."""

from __future__ import annotations

import pytest
import torch
import torchvision.models
from PIL import Image

from hookcli.sources.finding import find_recipe

PICTURE = Image.linear_gradient("L").resize((300, 200)).convert("RGB")


@pytest.mark.parametrize(
    ("name", "weights", "published"),
    [
        ("resnet50", None, "ResNet50_Weights.DEFAULT"),
        ("vit_h_14", None, "ViT_H_14_Weights.IMAGENET1K_SWAG_LINEAR_V1"),  # the default is built for 518 pixels
        ("vit_h_14", "DEFAULT", "ViT_H_14_Weights.DEFAULT"),
        ("ssd300_vgg16", None, "SSD300_VGG16_Weights.DEFAULT"),
    ],
)
def test_pictures_are_prepared_as_for_the_weights_of_the_natural_size(
    name: str, weights: str | None, published: str
) -> None:
    recipe = find_recipe(name, weights=weights)
    assert recipe.transforms and recipe.inputs
    item = recipe.transforms()(PICTURE)
    assert torch.equal(item, torchvision.models.get_weight(published).transforms()(PICTURE))
    if recipe.batched:
        assert item.shape == recipe.inputs[0].shape[1:]


def test_models_of_several_pictures_have_none() -> None:
    assert find_recipe("raft_large").transforms is None and find_recipe("s3d").transforms is None
