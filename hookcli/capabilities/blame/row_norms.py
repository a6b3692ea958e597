"""The gradient that each row of a batch makes: it tells which row, and which backward pass, made one large."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median_low

import torch
from torch import Tensor, nn

from hookcli.capabilities.blame.lines import APART, Blame
from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.modules import BatchNorm, Convolution, part_tables
from hookcli.tensors import tree
from hookcli.tensors.chunks import fetched

_LEAST = 0.01  # of the largest square of a norm: the rows below it don't stand out
_KEPT = 8  # rows


class RowNorms:
    """Takes norms of rows, along the first dimension, of modules with parameters that train; they stay on the device.

    The gradient that a row makes in a Linear of vectors has the norm |received| |gradient of returned| (Goodfellow,
    2015, "Efficient per-example gradient computations"). Of a Linear or convolution with positions in a row that is an
    upper bound; of other modules the norm of the gradient of what they return stands for it.
    """

    def __init__(self) -> None:
        self.passes = 0
        """The number of backward passes that are over."""
        self._received: dict[tuple[str, int], Tensor | None] = {}  # by module and call
        self._made: list[tuple[int, str, Tensor]] = []  # in a pass, by a module
        self._batches: set[int] = set()
        self._mixed = ""

    def attach(self, session: HookSession) -> None:
        session.forward(self._leave)
        session.output_grad(self._arrive)

    def _leave(self, event: HookEvent) -> None:
        module = event.module
        if not event.fqn:  # the model, which got the batch
            batch = tree.arguments(event.args, event.kwargs)
            self._batches.update([tree.shape_of(x)[0] for _, x in batch if x.dim()][:1])
        if isinstance(module, (nn.Linear, Convolution)) and _trains(module):
            received = next((_norms(x) for _, x in tree.arguments(event.args, event.kwargs)), None)
            # Not `module.bias`: a parametrization, whose bias is not in the table, would compute it.
            if received is not None and part_tables(module)[0].get("bias", module) is not None:
                received = received.hypot(torch.ones_like(received))
            self._received[event.fqn, event.call] = received
        elif isinstance(module, BatchNorm) and module.training:  # mixes the rows of a batch
            self._mixed = self._mixed or event.fqn

    def _arrive(self, event: HookEvent) -> None:
        grad = event.grad if _trains(event.module) and not event.inner else None
        if grad is not None and (made := _norms(grad)) is not None:
            received = self._received.get((event.fqn, event.call))
            made = made if received is None or received.shape != made.shape else made * received
            self._made.append((self.passes, event.fqn, made))

    def blame(self, model: str, step: int, norm: float | None, usual: float | None) -> Blame | None:
        """Which passes and rows made the gradient; None if none was seen. Waits for an accelerator."""
        if not self._made:
            return None
        passes = [_Pass() for _ in range(self._made[-1][0] + 1)]
        numbers, fqns, norms = zip(*self._made, strict=True)
        for number, fqn, of_rows in zip(numbers, fqns, fetched(norms), strict=True):
            passes[number].add(fqn, of_rows)
        sums = [one.sum() for one in passes]
        finite = math.isfinite(max(sums))
        modules = passes[sums.index(max(sums))].of_batch(self._batches, finite=finite)
        if not modules:
            return Blame(model, step, norm, usual, sums)
        _, rows = zip(*modules, strict=True)
        whole = [math.fsum(of_modules) for of_modules in zip(*rows, strict=True)]
        limit = max(APART * median_low(whole), max(whole) * _LEAST) if finite else 1e300
        outliers = sorted((n for n, x in enumerate(whole) if x > limit), key=lambda n: -whole[n])
        if len(outliers) == len(whole):
            outliers = []
        share = math.fsum(whole[n] for n in outliers) / math.fsum(whole) if finite else float(bool(outliers))
        most, _ = max(modules, key=lambda one: math.fsum(one[1][n] for n in outliers or range(len(whole))))
        return Blame(model, step, norm, usual, sums, outliers[:_KEPT], len(whole), share, most, self._mixed)


@dataclass(slots=True)
class _Pass:
    """The squares of the norms that a backward pass made of rows, by module, in the order of the pass."""

    modules: list[tuple[str, list[float]]] = field(default_factory=list)

    def add(self, fqn: str, norms: Iterable[float]) -> None:
        self.modules.append((fqn, [x * x if abs(x) < 1e150 else math.inf for x in norms]))

    def sum(self) -> float:
        return math.fsum(x for _, rows in self.modules for x in rows)

    def of_batch(self, sizes: Collection[int], *, finite: bool) -> list[tuple[str, list[float]]]:
        """The modules with a row for each of a batch; `sizes`: of the batches that the model got, if any is known.

        If the pass is not finite, only where backward met that first: from there on it may have spread to other rows.
        """
        modules = [(fqn, rows) for fqn, rows in self.modules if not sizes or len(rows) in sizes]
        if not finite:
            return [one for one in modules if not math.isfinite(math.fsum(one[1]))][:1]
        size = Counter(len(rows) for _, rows in modules).most_common(1)
        return [(fqn, rows) for fqn, rows in modules if len(rows) == size[0][0]]


def _trains(module: nn.Module | None) -> bool:
    parameters = part_tables(module)[0] if module is not None else {}
    return any(p.requires_grad for p in parameters.values() if p is not None)


def _norms(x: Tensor) -> Tensor | None:
    """The norm of each row; None where it can't be told."""
    if not (tree.is_plain(x) and x.dim() and x.numel() and (x.is_floating_point() or x.is_complex())):
        return None
    wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else None
    with suppress(RuntimeError), torch.no_grad():
        x = x.detach()
        # Not of a flat view: that would copy what is channels_last.
        return torch.linalg.vector_norm(x, dim=tuple(range(1, x.dim())), dtype=wide) if x.dim() > 1 else x.abs()
    return None
