"""Losses: those that suit the kinds of models, and those that users can name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy as torch_cross_entropy

from hookcli.errors import UsageError, unknown
from hookcli.tensors import tree
from hookcli.tensors.containers import items_of

TARGET_NAMES = ("target", "targets", "label", "labels", "y")
"""Names of the parameter, or of the item of a batch, that holds what a model should have returned."""


def floating(output: object) -> list[Tensor]:
    """The floating-point or complex tensors of an output, in order."""
    return [t for _, t in tree.leaves(output) if t.is_floating_point() or t.is_complex()]


def reduce_all(output: object, *, how: str) -> Tensor:
    """The sum or mean of each floating-point tensor of the output, added up; complex ones by magnitude."""
    dense = (torch.cat([x.reshape(-1) for x in t.unbind()]) if t.is_nested else t for t in floating(output))
    parts = [getattr(t.abs() if t.is_complex() else t, how)() for t in dense]
    if not parts:
        raise UsageError(f"loss {how}: the model returned no floating-point tensor", option="loss")
    return torch.stack([part.float() for part in parts]).sum() if len(parts) > 1 else parts[0]


def cross_entropy(output: object, target: Tensor | None = None, *, auxiliary: float = 0.3) -> Tensor:
    """Cross entropy against the target, else against class 0, per pixel or position if the output has more than two
    dimensions.

    Auxiliary outputs are added with a weight: 0.3 for classifiers (Szegedy et al. 2015, section 5),
    0.5 for segmentation (torchvision's reference training).
    """
    logits = [t for t in floating(output) if t.dim() >= 2]
    if not logits:
        raise UsageError(
            "loss cross-entropy: the model returned no floating-point tensor of shape NxC or NxCx...", option="loss"
        )
    losses = [
        torch_cross_entropy(t, torch.zeros((t.shape[0], *t.shape[2:]), dtype=torch.long, device=t.device))
        if target is None
        else torch_cross_entropy(t, target)
        for t in logits
    ]
    return losses[0] + auxiliary * torch.stack(losses[1:]).sum() if len(losses) > 1 else losses[0]


def applied(function: Callable[..., object], output: object, target: object) -> object:
    """The loss of an output, and of the batch's target if the function takes one.

    Raises UsageError if it needs a target and there is none.
    """
    taken = takes_target(function)
    if target is None and taken == "required":
        raise UsageError("takes a target: give --data with batches of (input, target)", option="loss")
    return function(output, target) if taken and target is not None else function(output)


def takes_target(function: Callable[..., object]) -> str:
    """The way to give a loss function its target as the second argument: "required", "optional" (by its name) or ""."""
    try:
        called = function.forward if isinstance(function, nn.Module) else function
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        return ""
    second = next((p for p in parameters[1:2] if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)), None)
    if second is None:
        return ""
    return "required" if second.default is second.empty else "optional" if second.name in TARGET_NAMES else ""


def own_losses(output: object) -> Tensor:
    """The sum of the dictionary of losses that a detector returns in training."""
    if not isinstance(output, Mapping):
        raise UsageError("a detector returns its losses in training mode only: remove --eval, or give --loss sum")
    return torch.stack([value for value in output.values() if isinstance(value, Tensor)]).sum()


def flow_sequence(output: object) -> Tensor:
    """The L1 distance of each refinement to zero flow, weighted 0.8^(n-1-i) (Teed and Deng 2020, equation 7)."""
    flows = floating(output)
    return torch.stack([0.8 ** (len(flows) - 1 - i) * flow.abs().mean() for i, flow in enumerate(flows)]).sum()


def own_loss(output: object) -> tuple[Tensor | None, str]:
    """The `loss` that the model itself returned, in a mapping, dataclass or Hugging Face's ModelOutput.

    None without one to differentiate, and why if the output has a `loss` all the same.
    """
    loss = _item(output, "loss")
    if loss is _ABSENT:
        return None, ""
    if loss is None:
        return None, "the output's loss is None"
    if not isinstance(loss, Tensor):
        return None, f"the output's loss is a {type(loss).__name__}"
    if loss.numel() != 1:
        return None, f"the output's loss is of shape {tree.shape_text(loss)}"
    return (loss, "") if loss.requires_grad else (None, "the output's loss does not require grad")


def at_path(output: object, *, path: str) -> object:
    """The item of an output at a path such as `loss`, `losses.total`, `1` or `["losses"][0]`.

    Raises UsageError if there is none, or if it is None.
    """
    item = output
    for name in _NAMES.findall(path):
        item = _item(item, name)
    if item is _ABSENT:
        items = [dotted(where) for where, _ in tree.leaves(output) if where]
        names = unknown("loss", path, [*NAMED, *items])
        raise UsageError(f"{names}, or your own function as file.py:fn", option="loss")
    if item is None:
        raise UsageError(f"loss {path}: it is None in the model's output", option="loss")
    return item


_ABSENT = object()
_NAMES = re.compile(r"[^.\[\]\"']+")


def dotted(path: str) -> str:
    """`losses.0` for the path `["losses"][0]`."""
    return ".".join(_NAMES.findall(path))


def _item(value: object, name: str) -> object:
    """The item of a container, or the attribute that a ModelOutput has also where its item is missing."""
    for step, item in items_of(value) or ():
        if dotted(step) == name:
            return item
    with suppress(Exception):  # an object's own `__getattr__` may raise what it likes
        return _ABSENT if isinstance(value, Tensor) else getattr(value, name, _ABSENT)
    return _ABSENT


NAMED: dict[str, Callable[[object], Tensor]] = {
    "sum": partial(reduce_all, how="sum"),
    "mean": partial(reduce_all, how="mean"),
    "cross-entropy": cross_entropy,
}
