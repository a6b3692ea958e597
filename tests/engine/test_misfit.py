"""Inputs that do not fit: the message says what the module takes, and PyTorch runs the --input that it suggests."""

import re
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

from hookcli.engine.failure import explain
from hookcli.engine.misfit import remedy
from hookcli.sources.inputs import parse_input


def _net() -> nn.Module:
    layers = {"conv": nn.Conv2d(3, 4, 3), "norm": nn.BatchNorm2d(4), "pool": nn.AdaptiveAvgPool2d(1)}
    return nn.Sequential(OrderedDict(layers)).eval()


def _message(model: nn.Module, x: Tensor) -> str:
    with pytest.raises((RuntimeError, ValueError, IndexError)) as caught:
        model(x)
    return str(explain(caught.value, model)).partition("\n")[0]


def _suggests(net: nn.Module, message: str, verb: str, hint: str, device: str) -> None:
    """The message ends with this --input, if any, and the net takes it."""
    suggested = re.findall(rf"{verb} --input (\S+)$", message)
    assert suggested == [hint] * bool(hint)
    for text in suggested:
        net(torch.empty(parse_input(text).shape, device=device))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("shape", "why", "hint"),
    [
        ((2, 8, 9, 3), "conv (Conv2d) failed on input 2x8x9x3: it takes 3 channels, got 8", "2x3x8x9"),
        ((8, 9, 3), "conv (Conv2d) failed on input 8x9x3: it takes 3 channels, got 8", "1x3x8x9"),
        ((3, 8, 9), "norm (BatchNorm2d) failed on input 4x6x7: ValueError: expected 4D input", "1x3x8x9"),
        ((2, 5, 8, 9), "conv (Conv2d) failed on input 2x5x8x9: it takes 3 channels, got 5", ""),
        ((7,), "conv (Conv2d) failed on input 7: RuntimeError: Expected 3D", ""),
    ],
)
def test_convolutions(device: str, shape: tuple[int, ...], why: str, hint: str) -> None:
    net = _net().to(device)
    message = _message(net, torch.empty(shape, device=device))
    assert message.startswith(why)
    _suggests(net, message, "Try", hint, device)


def test_channels_last_in_one_and_three_dimensions() -> None:
    assert remedy(nn.Conv1d(3, 4, 1), [torch.empty(2, 9, 3)]).endswith("--input 2x3x9")
    assert remedy(nn.Conv3d(3, 4, 1), [torch.empty(2, 9, 8, 7, 3)]).endswith("--input 2x3x9x8x7")
    assert not remedy(nn.Conv2d(3, 4, 1), [[torch.empty(3, 8, 8)]])  # detection models take a list of images


@pytest.mark.parametrize(("index", "said"), [(1024, "got 1,024"), (-1, "got -1")])
def test_embeddings(index: int, said: str) -> None:
    model = nn.Sequential(nn.Embedding(1024, 2))
    message = _message(model, torch.tensor([[0, index]]))
    assert message == f"0 (Embedding) failed on input 1x2: it takes indices from 0 to 1,023, {said}"


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("shape", "why", "hint"),
    [
        ((8, 3, 32, 32), "1 (Linear) failed on input 8x3072: it takes 784 features, got 3072", "8x1x28x28"),
        ((28, 28), "1 (Linear) failed on input 28x28: it takes 784 features, got 28", "1x28x28"),
        ((8, 100), "1 (Linear) failed on input 8x100: it takes 784 features, got 100", "8x784"),
        ((8, 3, 16), "1 (Linear) failed on input 8x48: it takes 784 features, got 48", ""),
    ],
)
def test_a_linear_layer_that_is_the_first(device: str, shape: tuple[int, ...], why: str, hint: str) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 4), nn.Linear(4, 2)).to(device)
    message = _message(net, torch.empty(shape, device=device))
    assert message.startswith(why)
    _suggests(net, message, "[Tt]ry", hint, device)


def test_a_later_linear_layer_suggests_no_input() -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(5, 2))
    assert _message(net, torch.empty(3, 6)) == "1 (Linear) failed on input 3x6: it takes 5 features, got 6"


class ChannelsLast(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("of another kind")


def test_a_subclass_that_reads_its_input_in_another_way_has_its_own_words() -> None:
    assert "ValueError: of another kind" in _message(nn.Sequential(ChannelsLast(3, 4, 1)), torch.empty(2, 8, 8, 3))


class Library(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        def wrapped_func(x: Tensor) -> Tensor:
            raise ValueError("inside")

        return wrapped_func(x)


def test_functions_of_decorators_are_left_out_of_the_trail() -> None:
    with pytest.raises(ValueError, match="inside") as caught:
        Library()(torch.empty(1))
    trail = str(explain(caught.value, Library())).partition("\n")[2]
    assert "wrapped_func" not in trail and "forward" in trail
