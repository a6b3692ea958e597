"""Says why inputs do not fit a module, and which would, where PyTorch's own words leave that open."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt, prod

from torch import Tensor, nn

from hookcli.tensors import tree

_KINDS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


def reason(module: nn.Module, inputs: Sequence[Tensor]) -> str:
    """Say which channels, features or indices a module takes, and got, if it failed on `inputs` for that; else ""."""
    if not inputs or not isinstance(module, _EXPLAINED) or type(module).forward not in _FORWARDS:
        return ""
    if isinstance(module, nn.Embedding):
        return _outside(inputs[0], module.num_embeddings)
    shape = tree.shape_of(inputs[0])
    if isinstance(module, nn.Linear):
        wanted, got, noun = module.in_features, shape[-1] if shape else None, "features"
    else:
        wanted, got, noun = module.in_channels, _channels(module, shape), "channels"
    return "" if got in (None, wanted) else f"it takes {wanted} {noun}, got {got}"


def remedy(
    model: nn.Module, arguments: Sequence[object], failed: nn.Module | None = None, inputs: Sequence[Tensor] = ()
) -> str:
    """The --input to try in place of a model's first argument, if its first convolution suggests one, or its first
    layer, a Linear that `failed` on these `inputs`; else "".
    """
    if not arguments or not isinstance(arguments[0], Tensor):
        return ""
    shape = tuple(tree.shape_of(arguments[0]))
    first = next((module for module in model.modules() if isinstance(module, _KINDS)), None)
    if first is not None:
        return fitting_channels(shape, first)
    layer = next((module for module in model.modules() if [*module.parameters(recurse=False)]), None)
    if isinstance(layer, nn.Linear) and layer is failed and reason(layer, inputs):
        return fitting_features(shape, tree.shape_of(inputs[0])[-1], layer.in_features)
    return ""


def fitting_channels(shape: Sequence[int], first: _Convolution) -> str:
    """The --input for a model with this first convolution, and an input of this shape; "" if none is likely."""
    sizes = len(first.kernel_size)
    channels = _channels(first, shape)
    if channels == first.in_channels and len(shape) == sizes + 1:
        return f"is the batch dimension missing? Try --input {_text(1, *shape)}"
    if channels not in (None, first.in_channels) and shape[-1] == first.in_channels:
        batch = shape[: -sizes - 1] or (1,)
        return f"are the channels last? Try --input {_text(*batch, shape[-1], *shape[-sizes - 1 : -1])}"
    return ""


def fitting_features(shape: Sequence[int], got: int, wanted: int) -> str:
    """The --input for a model whose first layer takes so many features, and got others of an input of this shape.

    That layer gets the last dimension, or all but the first, flattened: of these the images are square.
    """
    batch, *item = shape
    if got == shape[-1] and prod(shape) == wanted and item:
        return f"is the batch dimension missing? Try --input {_text(1, *shape)}"
    if got == shape[-1]:
        return f"try --input {_text(*shape[:-1], wanted)}"
    if len(item) == 3 and got == prod(item):
        sides = {channels: isqrt(wanted // channels) for channels in (item[0], 1, 3)}
        fits = next((each for each in sides.items() if each[0] * each[1] ** 2 == wanted), None)
        return f"try --input {_text(batch, fits[0], fits[1], fits[1])}" if fits else ""
    return ""


def _text(*sizes: int) -> str:
    return "x".join(map(str, sizes))


_EXPLAINED = (*_KINDS, nn.Embedding, nn.Linear)
_FORWARDS = [kind.forward for kind in _EXPLAINED]  # a subclass may read its input in another way


def _channels(module: _Convolution, shape: Sequence[int]) -> int | None:
    """The size of the dimension that a convolution takes for channels; None if the number of dimensions is wrong."""
    before = len(shape) - len(module.kernel_size) - 1  # 0 without a batch, else 1
    return shape[before] if before in (0, 1) else None


def _outside(indices: Tensor, rows: int) -> str:
    """The smallest or largest index without a row; only on the CPU, since an accelerator is unusable after this."""
    if indices.device.type != "cpu" or not indices.numel() or indices.is_floating_point():
        return ""
    lowest, highest = int(indices.min()), int(indices.max())
    wrong = lowest if lowest < 0 else highest
    return f"it takes indices from 0 to {rows - 1:,}, got {wrong:,}" if not 0 <= wrong < rows else ""
