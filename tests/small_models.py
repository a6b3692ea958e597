"""torchvision's models with their own blocks, a few narrow ones in place of many wide ones: for figures that depend on
what runs and not on how large it is. The whole models are for `-m sweep`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torchvision
from torch import Tensor, nn
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.densenet import DenseNet
from torchvision.models.swin_transformer import SwinTransformer
from torchvision.models.vgg import make_layers
from torchvision.models.video.swin_transformer import SwinTransformer3d
from torchvision.models.vision_transformer import VisionTransformer

_HEAD = nn.Linear(32 * 8 * 8, 16), nn.ReLU(True), nn.Linear(16, 10)
_STAGES = {"embed_dim": 12, "depths": [2, 2, 2, 2], "num_heads": [1, 2, 3, 4]}
_WHOLE: dict[str, dict[str, Any]] = {
    "vit_b_32": {"image_size": 64},
    "googlenet": {"init_weights": False},  # as quick, but for the seconds that its initialisation takes
    "lraspp_mobilenet_v3_large": {"weights_backbone": None},
    "quantized_resnet18": {"quantize": False},
    "quantized_mobilenet_v2": {"quantize": False},
}
_SMALL: dict[str, Callable[[], nn.Module]] = {
    "swin_t": lambda: SwinTransformer([4, 4], window_size=[7, 7], stochastic_depth_prob=0.2, **_STAGES),
    "swin3d_t": lambda: SwinTransformer3d([2, 4, 4], window_size=[8, 7, 7], stochastic_depth_prob=0.1, **_STAGES),
    "vit_b_32": lambda: VisionTransformer(64, 32, num_layers=8, num_heads=2, hidden_dim=16, mlp_dim=32),
    "convnext_tiny": lambda: ConvNeXt([CNBlockConfig(8, 16, 3), CNBlockConfig(16, 32, 3), CNBlockConfig(32, None, 3)]),
    "vgg11": lambda: nn.Sequential(make_layers([8, "M", 16, "M", 32, 32, "M"], batch_norm=False), nn.Flatten(), *_HEAD),
    "densenet121": lambda: DenseNet(8, (3, 4, 5, 3), 16),
}


def whole(name: str) -> nn.Module:
    """The model of this name, with random weights."""
    model: nn.Module = torchvision.models.get_model(name, weights=None, **_WHOLE.get(name, {}))
    return model


def small(name: str) -> nn.Module:
    """A small model of the same family, or the model itself where it is small."""
    return _SMALL.get(name, partial(whole, name))()


def each(names: Iterable[str]) -> list[Any]:
    """Parameters of a test: a way to build each, by its name; and the whole of those that are made small."""
    names = list(names)
    sweep = [pytest.param(partial(whole, n), n, id=f"whole {n}", marks=pytest.mark.sweep) for n in names if n in _SMALL]
    return [*(pytest.param(partial(small, n), n, id=n) for n in names), *sweep]


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.GELU()), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(self.first(x).relu()))
