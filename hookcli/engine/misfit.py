"""Says why inputs do not fit a module, and which would, where PyTorch's own words leave that open."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from hookcli.tensors import tree

_KINDS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


def reason(module: nn.Module, inputs: Sequence[Tensor]) -> str:
    """The channels or indices that a module takes and got, if that explains why it failed on `inputs`; else ""."""
    if not inputs or not isinstance(module, (*_KINDS, nn.Embedding)) or type(module).forward not in _FORWARDS:
        return ""
    if isinstance(module, nn.Embedding):
        return _outside(inputs[0], module.num_embeddings)
    channels = _channels(module, tree.shape_of(inputs[0]))
    if channels in (None, module.in_channels):
        return ""
    return f"it takes {module.in_channels} channels, got {channels}"


def remedy(model: nn.Module, arguments: Sequence[object]) -> str:
    """The --input to try in place of a model's first argument, if its first convolution suggests one; else ""."""
    first = next((module for module in model.modules() if isinstance(module, _KINDS)), None)
    if first is None or not arguments or not isinstance(arguments[0], Tensor):
        return ""
    shape, sizes = tuple(tree.shape_of(arguments[0])), len(first.kernel_size)
    channels = _channels(first, shape)
    if channels == first.in_channels and len(shape) == sizes + 1:
        return f"is the batch dimension missing? Try --input {'x'.join(map(str, (1, *shape)))}"
    if channels not in (None, first.in_channels) and shape[-1] == first.in_channels:
        batch = shape[: -sizes - 1] or (1,)
        return f"are the channels last? Try --input {'x'.join(map(str, (*batch, shape[-1], *shape[-sizes - 1 : -1])))}"
    return ""


_FORWARDS = [kind.forward for kind in (*_KINDS, nn.Embedding)]  # a subclass may read its input in another way


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
