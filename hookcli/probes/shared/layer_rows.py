"""The weights of layers, and what layers receive, as matrices of rows and channels; and rounded to number formats.

A row of a weight is an output channel, and a row of another tensor a token or a place of an image, so that no scale of
a number format covers two output channels or two tokens, unless it covers the whole tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookcli.hooks.torch_private.modules import Convolution
from hookcli.tensors.number_formats import rounded

_MATRIX = 2  # dimensions


def matrices(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The module's own parameters that are more than one vector."""
    for name, parameter in module.named_parameters(recurse=False):
        of_layer = name == "weight" and isinstance(module, (nn.Linear, Convolution))  # of one output, too
        if is_lazy(parameter) or (
            parameter.dim() >= _MATRIX and (of_layer or parameter.numel() > max(parameter.shape, default=0))
        ):
            yield name, parameter


def layer_around(fqn: str) -> str:
    """The name of the layer whose weight a parametrization computes; another module's name as it is."""
    return f".{fqn}".partition(".parametrizations.")[0].lstrip(".") if "parametrizations" in fqn else fqn


def laid_out_as(modules: Mapping[str, nn.Module], fqn: str) -> nn.Module:
    """The module as whose weight this one's parameters are laid out: the layer whose weight it stores, or itself."""
    stores = isinstance(modules[fqn], nn.utils.parametrize.ParametrizationList)
    return modules[layer_around(fqn)] if stores else modules[fqn]


def is_kernel(module: nn.Module, x: Tensor) -> TypeGuard[Any]:
    """True if this is the weight of a convolution, and not another parameter of its class."""
    return isinstance(module, Convolution) and x.dim() == len(module.kernel_size) + _MATRIX


def is_transposed(module: nn.Module) -> bool:
    """True for Transformers' transposed Linear, parametrized or not."""
    return any(kind.__name__ == "Conv1D" for kind in type(module).__mro__)


def swapped(module: Any, x: Tensor) -> Tensor:
    """The weight of a convolution, if that is transposed with its input and output channels swapped; twice undoes it.

    [in, out / groups, ...] becomes [out, in / groups, ...].
    """
    if getattr(module, "transposed", False):
        x = x.unflatten(0, (module.groups, -1)).transpose(1, 2).flatten(0, 1)
    return x


def weight_rows(module: nn.Module, x: Tensor) -> tuple[Tensor, int, int]:
    """A weight with output channels first, how many dimensions are rows, and how many columns an input channel has."""
    if is_kernel(module, x):
        x = swapped(module, x)
        return x, 1, math.prod(x.shape[2:])
    x = x.T if is_transposed(module) else x
    return x, x.dim() - 1, 1


def channel_dim(module: nn.Module) -> int:
    """The dimension of channels in what a module receives, from the end: -3 for a Conv2d, -1 for a Linear."""
    return -len(module.kernel_size) - 1 if isinstance(module, Convolution) else -1


def feature_rows(module: nn.Module, x: Tensor) -> tuple[Tensor, int, int]:
    """Another tensor with its channels last, how many dimensions are rows, and one column for each channel."""
    dim = channel_dim(module)
    x = x.movedim(dim, -1) if x.dim() >= -dim else x
    return x, max(x.dim() - 1, 0), 1


def rounded_weight(w: Tensor, module: nn.Module, form: str) -> Tensor:
    """A weight of a module, or one expert's part of it, as a number format holds it; in its own dtype and shape."""
    x, leading, _ = weight_rows(module, w)
    y = rounded_rows(x, leading, form)
    y = swapped(module, y) if is_kernel(module, w) else y
    return y.T if is_transposed(module) else y


def rounded_input(x: Tensor, module: nn.Module, form: str) -> Tensor:
    """A tensor that a module receives as a number format holds it; in its own dtype, shape and layout.

    The order of values in memory stays: kernels, and dropout's choice of values, depend on it. Gradients pass through
    as if nothing had been rounded.
    """
    rows, leading, _ = feature_rows(module, x.detach())
    y, dim = rounded_rows(rows, leading, form), channel_dim(module)
    y = torch.empty_like(x.detach()).copy_(y.movedim(-1, dim) if x.dim() >= -dim else y)
    return y + (x - x.detach()).nan_to_num() if x.requires_grad else y  # Inf - Inf is NaN


def rounded_rows(x: Tensor, leading: int, form: str) -> Tensor:
    """The tensor with each of its rows rounded; NaN, Inf and what float32 can't hold stay as they are."""
    matrix = x.reshape(math.prod(x.shape[:leading]), -1) if x.numel() else x.reshape(0, 1)
    wide = matrix.float()
    finite = wide.isfinite()
    y = rounded(torch.where(finite, wide, 0.0), form).to(x.dtype)
    return torch.where(finite, y, matrix).reshape(x.shape)
