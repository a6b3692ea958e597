"""What C++ hooks saw of backward passes: a Timeline of every node of an autograd graph.

Walk order, by which both paths of `hookcli graph` number the nodes: breadth-first from the `grad_fn` of each root (its
gradient accumulator, where the root is a leaf), in the order of the roots, then of `next_edges()`; each node once,
undefined edges skipped.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from hookcli.errors import UsageError
from hookcli.hooks.native import build
from hookcli.report import TensorStats
from hookcli.tensors.stats import Pending, resolve

_NONE = -1  # what C++ says for None


@dataclass(frozen=True, slots=True)
class GradRecord:
    """One gradient. `stats` is None where none were asked for, or where `unmeasured` says why there are none."""

    shape: tuple[int, ...]
    dtype: str  # as torch spells it: float32
    device: str
    stats: TensorStats | None
    unmeasured: str = ""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node, and what its last firing saw.

    `order` is the place of its first firing among the nodes', from 0. `began_ns` is the end of the pre-hook and
    `ended_ns` the start of the post-hook, so statistics are not in between; None where it did not fire, or failed.
    `grad_outputs` came in, `grad_inputs` went out; a gradient is None where it was undefined. Times are nanoseconds of
    `time.perf_counter_ns`.
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
    """What `Tensor::register_hook` saw on one of the `leaves`, the last time. `order` is among the leaves, from 0."""

    order: int | None
    fired: int
    at_ns: int | None
    gradient: GradRecord | None


@dataclass(frozen=True, slots=True)
class CaptureRecord:
    """A gradient that the engine captured for torch.autograd.grad, as the engine's capture hook saw it.

    Upstream marks that hook deprecated: a tensor's own hook replaces it, and `tensor_hook` has what that saw of the
    same tensor, where it is one of the `leaves`. The two differ where a hook changes the gradient of a tensor from
    which another input was computed: PyTorch captures it before the tensor's hooks. `input` is the place among the
    inputs of torch.autograd.grad, `node` the place in walk order of the node at which it was captured (None: not below
    the roots).
    """

    input: int
    node: int | None
    leaf: int | None
    at_ns: int
    gradient: GradRecord | None
    tensor_hook: LeafRecord | None


class Timeline:
    """C++ hooks on every node of the autograd graph below `roots`, and on `leaves`; a context manager.

    The hooks are there from the constructor on and are gone after the block; what they saw stays. They hold no tensor
    and change no gradient. A gradient that one node hands to the next is reduced once. Raises UsageError where the
    extension can't be built (see `build.load`) and where a root or leaf requires no gradient.
    """

    def __init__(
        self,
        roots: Sequence[Tensor],
        leaves: Sequence[Tensor] = (),
        *,
        statistics: bool = True,
        on_build: Callable[[str], None] | None = None,
        _as_on_device: bool = False,  # for tests: the operations that run on an accelerator, here on the CPU
    ) -> None:
        for what, tensors in (("root", roots), ("leaf", leaves)):
            for place, tensor in enumerate(tensors):
                if what == "leaf" and tensor.is_leaf and tensor._backward_hooks:
                    raise UsageError(
                        f"leaf {place} of the timeline has hooks from Python, which those of C++ would drop"
                    )
                if not tensor.requires_grad:
                    raise UsageError(f"{what} {place} of the timeline requires no gradient: nothing would reach it")
        self._statistics = statistics
        self._timeline = build.load(on_build).Timeline(list(roots), list(leaves), statistics, _as_on_device)
        self._resolved: dict[int, GradRecord] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Timeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def detach(self) -> None:
        """Remove every hook. Not while a pass runs through the graph in another thread."""
        self._timeline.detach()

    @property
    def names(self) -> list[str]:
        """The nodes' names in walk order."""
        return [row[0] for row in self._timeline.nodes()]

    @property
    def passes(self) -> int:
        """How many backward passes ended, by `Engine::queue_callback`. One that raises does not end."""
        return int(self._timeline.passes()[0])

    @property
    def finished_ns(self) -> int | None:
        """When the last pass ended, by `Engine::queue_callback`; None: none did."""
        return _or_none(self._timeline.passes()[1])

    @property
    def firings_under_gil(self) -> int:
        """How many firings of hooks held Python's lock. None should."""
        return int(self._timeline.passes()[2])

    @property
    def reductions(self) -> int:
        """How many tensors were reduced. One seen again unchanged, or a view of all of it, is not."""
        return int(self._timeline.passes()[3])

    def nodes(self) -> list[NodeRecord]:
        """Every node, in walk order. For after the pass: on an accelerator it waits for the statistics."""
        grads = self._gradients()

        def node(row: Any) -> NodeRecord:
            name, order, fired, began, ended, outputs, inputs = row
            came, went = (tuple(None if g == _NONE else grads[g] for g in some) for some in (outputs, inputs))
            return NodeRecord(name, _or_none(order), fired, _or_none(began), _or_none(ended), came, went)

        return [node(row) for row in self._timeline.nodes()]

    def leaf_gradients(self) -> list[LeafRecord]:
        """What `Tensor::register_hook` saw on each of the leaves, in their order."""
        return self._leaves(self._gradients())

    def captures(self) -> list[CaptureRecord]:
        """What was captured for torch.autograd.grad, in the order in which it was; empty for backward().

        A root that is itself an input is missing where there are others: it is captured before any hook of the pass.
        Also empty where the roots are on several devices: a pass then starts on several threads, and a capture hook
        could not be added safely.
        """
        grads = self._gradients()
        leaves = self._leaves(grads)
        return [
            CaptureRecord(
                place,
                _or_none(node),
                _or_none(leaf),
                at,
                None if gradient == _NONE else grads[gradient],
                None if leaf == _NONE else leaves[leaf],
            )
            for place, node, leaf, at, gradient in self._timeline.captures()
        ]

    def _leaves(self, grads: list[GradRecord]) -> list[LeafRecord]:
        return [
            LeafRecord(_or_none(order), fired, _or_none(at), None if gradient == _NONE else grads[gradient])
            for order, fired, at, gradient in self._timeline.leaves()
        ]

    def _gradients(self) -> list[GradRecord]:
        rows = self._timeline.gradients()
        for device in {row[5][0].device for row in rows if row[5]}:
            if device.type != "cpu":  # the hooks ran on the nodes' streams, which need not be the one that reads
                torch.accelerator.synchronize(device)
        found = resolve([_pending(row) for row in rows])
        return [
            GradRecord(tuple(shape), _dtype(dtype), device, stats if self._statistics and not why else None, why)
            for (shape, dtype, device, why, *_), stats in zip(rows, found, strict=True)
        ]


def _pending(row: Any) -> Pending:
    shape, _, device, _, moments, on_device, implied = row
    if device.startswith("meta"):
        return Pending([TensorStats(numel=math.prod(shape), l2=math.nan)])
    parts = [TensorStats.of_zeros(implied)] if implied else []
    if on_device:
        return Pending(parts, on_device[0].unsqueeze(0))
    return Pending([TensorStats.measured(moments), *parts] if moments else parts)


def _or_none(value: int) -> int | None:
    return None if value == _NONE else int(value)


def _dtype(name: str) -> str:
    return _DTYPES.get(name, name)


# C++ spells dtypes otherwise than Python does.
_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
    "ComplexHalf": "complex32",
}
