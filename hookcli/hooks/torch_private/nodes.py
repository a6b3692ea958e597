"""Private names of autograd's nodes that say what their operators returned; and the names of these operators."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node

from hookcli.tensors.torch_private import getter, private

_UNKNOWN = "whether a loss is better than guessing is not judged, nor are the multiplications of a step counted"
returned: Callable[[Node], Sequence[Any]] = getter(Node, "_input_metadata", lambda node: (), _UNKNOWN)
"""The shapes and dtypes of what a node's operator returned, whose gradients are the node's inputs."""


def returned_shape(node: Node | None, output: int = 0) -> tuple[int, ...]:
    """The shape of one output of a node's operator; empty for a scalar, and where it is not known."""
    made = returned(node) if node is not None else ()
    return tuple(made[output].shape) if output < len(made) else ()


def kept_plainly(node: Node) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a node keeps for backward, by name, such as "target".

    Those that hooks have packed, as checkpoints do, are left out, since unpacking could run code of the program; and
    those of a freed graph.
    """
    for name in kept_names(type(node)):
        try:
            saved = getattr(node, name)
        except RuntimeError:  # freed
            continue
        for one in saved if isinstance(saved, (list, tuple)) else (saved,):
            if isinstance(tensor := unpacked(one, _NO_TARGETS), Tensor):
                yield name.removeprefix(_KEPT), tensor


def kept(node: Node, name: str, lost: str) -> Tensor | None:
    """The tensor that a node keeps for backward under this name; None if hooks have packed it, or for a non-tensor."""
    kind = type(node)
    if _KEPT + name not in kept_names(kind) and hasattr(kind, f"_saved_{name}"):  # a number
        return None
    tensor: Tensor | None = unpacked(private(node, _KEPT + name, None, lost), lost)
    return tensor


def unpacked(saved: Any, lost: str) -> Any:
    """A tensor as autograd has saved it; None if hooks have packed it, or it is none."""
    plain = saved is not None and private(saved, "unpack_hook", saved, lost) is None
    return saved.data if plain else None


@cache
def kept_names(kind: type) -> list[str]:
    """The attributes of a kind of node with what it keeps for backward, packed or not."""
    return [name for name in dir(kind) if name.startswith(_KEPT)]


_KEPT = "_raw_saved_"
_NO_TARGETS = "the targets of losses have no fingerprints"


_ENDING = re.compile(r"Backward\d*$")


def operator(node: Node) -> str:
    """The operator that made a node: "Addmm" for AddmmBackward0."""
    return _ENDING.sub("", node.name().rpartition("::")[2])


def own_function(node: Node) -> str:
    """The name of the autograd Function that made this node, if it is not PyTorch's; "" for other nodes."""
    made_by: type | None = getattr(type(node), "_forward_cls", None)
    is_own = made_by is not None and not made_by.__module__.startswith(("torch.", "functorch."))
    return made_by.__qualname__ if made_by is not None and is_own else ""


def attended(node: Node, length: int) -> tuple[Tensor | None, Tensor | None, bool] | None:
    """The weights, the mask, and whether it is causal, of an attention of so many tokens to each other.

    A softmax keeps the weights, and a fused attention the mask. None for other nodes, and where that is not known.
    """
    square = (length, length)
    if operator(node) in ("Softmax", "SafeSoftmax"):
        if len(returned_shape(node)) < _ATTENTION or returned_shape(node)[-2:] != square:
            return None
        weights = kept(node, "result", _UNSEEN)
        return None if weights is None else (weights, None, False)
    if not hasattr(type(node), "_saved_is_causal"):
        return None
    query, key = (kept(node, name, _UNSEEN) for name in ("query", "key"))
    if query is None or key is None or (query.shape[-2], key.shape[-2]) != square:
        return None
    names = [name for name in ("attn_mask", "attn_bias") if _KEPT + name in kept_names(type(node))]
    mask = kept(node, names[0], _UNSEEN) if names else None
    if mask is not None and tuple(mask.shape[-2:]) != square:
        return None
    return None, mask, bool(private(node, "_saved_is_causal", False, _UNSEEN))


def embedded(node: Node) -> Tensor | None:
    """The tokens of the embedding that made a node; None for other nodes, and where they are packed."""
    return kept(node, "indices", _UNSEEN) if operator(node) == "Embedding" else None


def gathered(node: Node) -> tuple[int, Tensor] | None:
    """The dimension, from 0 on, and the index of a gather; None for other nodes, and where the index is packed."""
    index = kept(node, "index", _UNPICKED) if operator(node) == "Gather" else None
    if index is None:
        return None
    dim: int = private(node, "_saved_dim", 0, _UNPICKED)
    return (dim - 2**64 + index.dim() if dim >= 2**63 else dim), index


def shifted_dimension(node: Node) -> int | None:
    """The dimension, from 0 on, along which a node puts or takes values; None where that is not one, or not kept."""
    dim: int | None = private(node, "_saved_dim", None, _UNPICKED) if hasattr(type(node), "_saved_dim") else None
    if dim is None:
        return None
    return dim - 2**64 + len(returned_shape(node)) if dim >= 2**63 else dim


def dropped_dimension(node: Node) -> int | None:
    """The only dimension, from 0 on, of which a node selects one place, or takes the mean or largest; else None."""
    if operator(node) not in ("Select", "Mean", "Sum", "Max"):
        return None
    saved: Any = private(node, "_saved_dim", (), _UNPICKED) if hasattr(type(node), "_saved_dim") else ()
    dims: Sequence[int] = (saved,) if isinstance(saved, int) else saved
    size = len(returned_shape(*node.next_functions[0]))
    return (dims[0] - 2**64 + size if dims[0] >= 2**63 else dims[0]) if len(dims) == 1 else None


def selects_last(node: Node, dim: int) -> bool:
    """True if a node selects the last place of this dimension, from 0 on."""
    shape = returned_shape(*node.next_functions[0]) if operator(node) == "Select" else ()
    if dim >= len(shape):
        return False
    selected: int = private(node, "_saved_dim", -1, _UNPICKED)
    place: int = private(node, "_saved_index", 0, _UNPICKED)
    selected = selected - 2**64 + len(shape) if selected >= 2**63 else selected
    return selected == dim and place in (2**64 - 1, -1, shape[dim] - 1)


_ATTENTION = 3  # dimensions of its weights
_UNPICKED = "whether an index picks along the wrong dimension is not judged"
_UNSEEN = "whether attention sees the tokens that it should predict is not judged"
