"""C++ hooks on every node of an autograd graph, and what they recorded of backward passes: a Timeline.

Both paths of `hookcli graph` number the nodes in walk order: breadth-first from the `grad_fn` of each root (for a leaf,
its gradient accumulator), in the order of the roots, then of `next_edges()`; each node once, undefined edges skipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from hookcli.errors import UsageError
from hookcli.hooks.native import build
from hookcli.hooks.torch_private.autograd import tensor_hooks
from hookcli.table import TensorStats
from hookcli.tensors.chunks import PendingFigures
from hookcli.tensors.stats import resolve

T = TypeVar("T")
_NONE = -1  # C++'s value for None


@dataclass(frozen=True, slots=True)
class GradRecord:
    """One gradient. `stats` is None if `unmeasured` gives a reason."""

    shape: tuple[int, ...]
    dtype: str  # in PyTorch's spelling: float32
    device: str
    stats: TensorStats | None
    unmeasured: str = ""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node, and its last firing.

    `order`: the position of its first firing among the first firings of all nodes, from 0.
    `began_ns`, `ended_ns`: the end of the pre-hook and the start of the post-hook, so that the time of the statistics
    is not included; None if the node never fired, or failed. Nanoseconds of `time.perf_counter_ns`.
    `grad_outputs`, `grad_inputs`: the gradients that it received and returned; None for an undefined one.
    """

    name: str
    order: int | None
    fired: int
    began_ns: int | None
    ended_ns: int | None
    grad_outputs: tuple[GradRecord | None, ...]
    grad_inputs: tuple[GradRecord | None, ...]


@dataclass(frozen=True, slots=True)
class LeafRecord:
    """The last firing of `Tensor::register_hook` on one of the `leaves`. `order` is among the leaves, from 0."""

    order: int | None
    fired: int
    at_ns: int | None
    gradient: GradRecord | None


@dataclass(frozen=True, slots=True)
class CaptureRecord:
    """A gradient that the engine captured for torch.autograd.grad, as the engine's capture hook saw it.

    PyTorch marks the capture hook deprecated, in favour of the tensor's own hook: `tensor_hook` is the record of that
    one, if the tensor is one of the `leaves`. The two differ where a hook changes the gradient of a tensor from which
    another input was computed: PyTorch captures the gradient before it calls the tensor's hooks.
    `input`: the position among the inputs of torch.autograd.grad.
    `node`: the position in walk order of the node where it was captured; None if the node is not below the roots.
    """

    input: int
    node: int | None
    leaf: int | None
    at_ns: int
    gradient: GradRecord | None
    tensor_hook: LeafRecord | None


class Timeline:
    """C++ hooks on every node of the autograd graph below `roots`, and on `leaves`; a context manager.

    The constructor registers the hooks, and the end of the block removes them; the records stay. The hooks hold no
    tensor and change no gradient. A gradient that one node passes to the next is reduced once. Raises UsageError if the
    extension can't be built (see `build.load`), or if a root or leaf requires no gradient.
    """

    def __init__(self, roots: Sequence[Tensor], leaves: Sequence[Tensor] = (), *, _as_on_device: bool = False) -> None:
        # `_as_on_device`, for tests: run the operations for accelerators on the CPU.
        for what, tensors in (("root", roots), ("leaf", leaves)):
            for place, tensor in enumerate(tensors):
                if what == "leaf" and tensor.is_leaf and tensor_hooks(tensor):
                    raise UsageError(f"leaf {place} of the timeline has Python hooks, which C++ hooks would drop")
                if not tensor.requires_grad:
                    raise UsageError(f"{what} {place} of the timeline requires no gradient: nothing would reach it")
        self._timeline = build.load().Timeline(list(roots), list(leaves), True, _as_on_device)

    def __enter__(self) -> Timeline:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def detach(self) -> None:
        """Remove every hook. Do not call while a pass runs through the graph in another thread."""
        self._timeline.detach()

    @property
    def finished_ns(self) -> int | None:
        """The time at which the last pass ended, from `Engine::queue_callback`; None if none did."""
        return _or_none(self._timeline.passes()[1])

    def nodes(self) -> list[NodeRecord]:
        """Return every node, in walk order. Call it after the pass: on an accelerator it waits for the statistics."""
        grads = self._gradients()

        def node(row: Any) -> NodeRecord:
            name, order, fired, began, ended, outputs, inputs = row
            came, went = (tuple(_item(grads, place) for place in some) for some in (outputs, inputs))
            return NodeRecord(name, _or_none(order), fired, _or_none(began), _or_none(ended), came, went)

        return [node(row) for row in self._timeline.nodes()]

    def leaf_gradients(self) -> list[LeafRecord]:
        """Return the records of `Tensor::register_hook` on the leaves, in their order."""
        return self._leaves(self._gradients())

    def captures(self) -> list[CaptureRecord]:
        """Return the gradients captured for torch.autograd.grad, in the order of capture; empty for backward().

        A root that is itself one of several inputs is missing: PyTorch captures it before any hook of the pass runs.
        Also empty if the roots are on several devices: a pass then starts on several threads, where a capture hook
        can't be added safely.
        """
        grads = self._gradients()
        leaves = self._leaves(grads)
        return [
            CaptureRecord(place, _or_none(node), _or_none(leaf), at, _item(grads, gradient), _item(leaves, leaf))
            for place, node, leaf, at, gradient in self._timeline.captures()
        ]

    def _leaves(self, grads: list[GradRecord]) -> list[LeafRecord]:
        return [
            LeafRecord(_or_none(order), fired, _or_none(at), _item(grads, gradient))
            for order, fired, at, gradient in self._timeline.leaves()
        ]

    def _gradients(self) -> list[GradRecord]:
        rows = self._timeline.gradients()
        statistics = resolve([_pending(row) for row in rows])
        return [
            GradRecord(tuple(shape), _DTYPES.get(dtype, dtype), device, None if why else stats, why)
            for (shape, dtype, device, why, *_), stats in zip(rows, statistics, strict=True)
        ]


def _pending(row: Any) -> PendingFigures:
    shape, _, device, _, moments, on_device, implied = row
    if device.startswith("meta"):
        return PendingFigures([TensorStats(numel=math.prod(shape), l2=math.nan)])
    parts = [TensorStats.of_zeros(implied)] if implied else []
    if on_device:
        return PendingFigures(parts, on_device[0].unsqueeze(0))
    return PendingFigures([TensorStats.measured(moments), *parts] if moments else parts)


def _or_none(value: int) -> int | None:
    return None if value == _NONE else int(value)


def _item(records: Sequence[T], place: int) -> T | None:
    return None if place == _NONE else records[place]


# The names of dtypes in C++, and in Python.
_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
    "ComplexHalf": "complex32",
}
