"""Input tensors: parsed, sized and filled."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookcli.errors import UsageError
from hookcli.sources.base import InputSpec, Recipe
from hookcli.sources.inputs import input_specs, make_tensor, parse_input

CPU = torch.device("cpu")
FRAMES = Recipe("flow", nn.Identity, (InputSpec((1, 3, 8, 8)), InputSpec((1, 3, 8, 8))))
IMAGES = Recipe("detector", nn.Identity, (InputSpec((3, 8, 8)),), batched=False)


def test_parsing() -> None:
    assert parse_input("10x3x224x224") == InputSpec((10, 3, 224, 224))
    assert parse_input("2x128:int64") == InputSpec((2, 128), torch.int64)
    assert str(parse_input("7,3:bfloat16")) == "7x3:bfloat16"
    assert str(parse_input(" 7, 3 x 2 : int64")) == "7x3x2:int64"
    with pytest.raises(UsageError, match="--input '8 3 32 32:int8': write 8x3x32x32:int8"):
        parse_input("8 3 32 32:int8")
    for wrong in ("", "x", "3x", "-1x3", "1.5x2", "3x4:"):
        with pytest.raises(UsageError, match="--input"):
            parse_input(wrong)


def test_batches() -> None:
    one = (InputSpec((5, 3, 9, 9)),)
    assert input_specs(FRAMES, one, None) == one * 2
    assert input_specs(FRAMES, (), 4) == (InputSpec((4, 3, 8, 8)),) * 2
    assert input_specs(FRAMES, (), None, natural_batch=2) == (InputSpec((2, 3, 8, 8)),) * 2
    assert input_specs(FRAMES, one, None, natural_batch=2) == one * 2
    assert input_specs(IMAGES, (), 3) == (InputSpec((3, 8, 8)),) * 3
    assert input_specs(Recipe("own", nn.Identity), (), 3) is None


@pytest.mark.parametrize("fill", ["ones", "zeros", "randn", "rand"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool])
def test_filling(fill: str, dtype: torch.dtype) -> None:
    rng = torch.get_rng_state()
    x = make_tensor(InputSpec((50, 4), dtype), fill, torch.float32, CPU, 3)
    assert x.dtype == dtype and x.shape == (50, 4) and torch.equal(rng, torch.get_rng_state())
    assert torch.equal(x, make_tensor(InputSpec((50, 4), dtype), fill, torch.float32, CPU, 3))
    if fill in ("ones", "zeros"):
        assert bool((x == (fill == "ones")).all())
    elif not dtype.is_floating_point:
        assert set(x.long().unique().tolist()) == {0, 1}
    else:
        assert bool(x.min() < 0) == (fill == "randn")


def test_random_values_are_pytorchs_for_the_seed() -> None:
    expected = torch.randn(4, 4, generator=torch.Generator().manual_seed(7))
    assert torch.equal(make_tensor(InputSpec((4, 4)), "randn", torch.float32, CPU, 7), expected)
