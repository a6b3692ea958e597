"""Looks up PyTorch's private names, and holds those that tensors need.

A private name may be gone in any release. Each one that hookcli uses is looked up in one place: here, or in
`hookcli.hooks.torch_private`, which the layers above share. It gets a public name, a fallback, and a sentence that says
what is lost without it. Reports carry that sentence as a note (`notes`). No other file of the package mentions private
names of PyTorch (tests/hooks/test_torch_private.py).

Functions are bound as this module is imported: calling one costs what the private name itself costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from operator import attrgetter, methodcaller
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor

from hookcli.table.meta import Meta

S = TypeVar("S")
T = TypeVar("T")
_notes: dict[str, None] = {}
_ABSENT = object()


def private(owner: object, name: str, otherwise: object, lost: str) -> Any:
    """Return PyTorch's `owner.name`; if this PyTorch has no such name, `otherwise`, and `lost` becomes a note.

    `owner` is an object, or the full name of one: "torch._C", "torch._guards.TracingContext".
    """
    holder = owner
    if isinstance(owner, str):
        so_far, *rest = owner.split(".")
        holder = import_module(so_far)
        for part in rest:
            so_far = f"{so_far}.{part}"
            try:
                holder = getattr(holder, part, _ABSENT) if hasattr(holder, part) else import_module(so_far)
            except ImportError:
                holder = _ABSENT  # which has no attributes
                break
    value = getattr(holder, name, _ABSENT)
    if value is not _ABSENT:
        return value
    named = owner if isinstance(owner, (type, ModuleType)) else type(owner)
    note_loss(f"{owner if isinstance(owner, str) else named.__name__}.{name}", lost)
    return otherwise


def getter(owner: object, name: str, otherwise: Callable[[S], T], lost: str) -> Callable[[S], T]:
    """A function that reads the attribute off an object; `owner` is the class, or an object of it."""
    return otherwise if private(owner, name, _ABSENT, lost) is _ABSENT else attrgetter(name)


def caller(owner: object, name: str, otherwise: Callable[[S], T], lost: str) -> Callable[[S], T]:
    """A function that calls the method of an object; `owner` is the class, or an object of it."""
    return otherwise if private(owner, name, _ABSENT, lost) is _ABSENT else methodcaller(name)


def note_loss(name: str, lost: str) -> None:
    """Have reports say that this PyTorch has no such name, and what is lost without it."""
    note(f"torch {torch.__version__} has no {name}: {lost}")


def note(sentence: str) -> None:
    """Have the reports of this process say, once each, what is slower or less exact here than elsewhere."""
    _notes[sentence] = None


def notes() -> list[str]:
    """The sentences: of private names that were looked up and that this PyTorch lacks, and of kernels that failed."""
    return list(_notes)


def noted(meta: Meta) -> Meta:
    """A report's `meta` with these notes before its own."""
    return {**meta, "notes": list(dict.fromkeys([*notes(), *meta.get("notes", ())]))} if _notes else meta


version: Callable[[Tensor], int] = getter(
    Tensor, "_version", lambda tensor: -1, "changes in place are not noticed, nor refused where they should be"
)
"""The number of in-place changes of a tensor or another view of its memory; -1 if unknown.

The only trace of an in-place change. Inference tensors have no version: asking for it raises.
"""

base_of_view: Callable[[Tensor], Tensor | None] = getter(
    Tensor, "_base", lambda tensor: None, "a tensor and its views are taken for unrelated tensors"
)
"""The tensor of which autograd knows this one to be a view; None if it is not a view."""

_OF_WHAT = "a tensor counts as a view only where autograd tells of what"
is_view: Callable[[Tensor], bool] = private(Tensor, "_is_view", lambda x: base_of_view(x) is not None, _OF_WHAT)
"""True if autograd knows a tensor to be a view: an in-place change gives it another node, which drops its hooks."""

is_batched, is_differentiated = (
    private("torch._C._functorch", name, lambda tensor: False, "tensors inside torch.func are not told apart")
    for name in ("is_batchedtensor", "is_gradtrackingtensor")
)
_inside: Callable[[Tensor], Tensor] = private(
    "torch._C._functorch", "get_unwrapped", lambda tensor: tensor, "tensors inside torch.vmap are not told apart"
)


def is_mapped(tensor: Tensor) -> bool:
    """True for a tensor inside `torch.vmap`, which stands for one item of a batch and can't be read back.

    Also under the wrapper of `torch.func.grad`, which `vmap(grad(...))` puts around it.
    """
    while is_differentiated(tensor) and (inner := _inside(tensor)) is not tensor:
        tensor = inner
    return bool(is_batched(tensor))


is_copy_on_write: Callable[[Tensor], bool] = private(
    "torch._C", "_is_cow_tensor", lambda tensor: True, "statistics on the CPU take several times as long"
)
"""True if asking for a tensor's address would copy its memory, which an observer must not cause."""


def spec_of_local(tensor: Tensor) -> object:
    """The mesh, placements and shape of the DTensor whose `to_local()` returned this tensor; None for any other tensor.

    Its node keeps them for backward (`_ToTorchTensor`). Without that, or without gradients, nothing tells tensors that
    are the same on all ranks from parts of one. A view whose memory may have changed since is not asked: PyTorch would
    make its node anew, whose number decides in which order gradients are summed.
    """
    if is_view(tensor) and (tensor.is_inference() or version(tensor)):
        return None
    return getattr(tensor.grad_fn, "dtensor_spec", None)


registered_nodes: Mapping[type, Any] = private(
    "torch.utils._pytree", "SUPPORTED_NODES", {}, "tensors in types that are registered with pytree are not seen"
)
"""Functions that flatten and rebuild values, by type, as registered with pytree."""

TYPED = "torch.jit._pickle"
"""The module whose functions, in pickles of TorchScript, give lists and dicts their types."""
REBUILDS = ("torch._utils", "_rebuild_tensor_v2")
"""The module and the name by which pickles of PyTorch say that a tensor is made of a storage."""
