"""The targets of squared errors and binary cross-entropies: what guessing gives follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node

from hookcli.capabilities.learn.losses.returned import errors_of
from hookcli.hooks.torch_private.losses import Term, absolute_error, added_below, binary_targets_in
from hookcli.tensors import tree

_ROUNDING = 1e-5  # of the means, of which targets that follow from outputs are made


class Squares(NamedTuple):
    """The targets of a squared error whose mean counts `times` in the loss; figures stay on the device.

    `spread`: their variance over the rows of the batch, or the mean of `absolute` errors of their median; `center`:
    their mean, if each row has one; `means`: those of all outputs and of all targets. Each is None where it is not
    known. `rooted`: the square root of the mean counts.
    """

    times: float
    spread: Tensor | None
    center: Tensor | None
    means: Tensor | None
    absolute: bool = False
    rooted: bool = False


class Ones(NamedTuple):
    """The `share` of ones among the `number` of targets of a binary cross-entropy whose mean counts `times`."""

    times: float
    share: Tensor
    number: int


@dataclass
class Targets:
    """The targets of a step's losses, of those backward passes that have one loss of such a kind."""

    squares: list[Squares] = field(default_factory=list)
    ones: list[Ones] = field(default_factory=list)
    broadcast: str = ""
    """The shape to which outputs and targets were broadcast, if each was along a dimension of the other; else ""."""

    def add(self, terms: Sequence[Term]) -> list[int]:
        """Take in a loss that is made of these terms. Returns the shape of its targets, [] if it is another loss.

        Waits for nothing.
        """
        if len(terms) != 1:
            return []
        (term,) = terms
        if pair := errors_of(term.node):
            times, error = term.times(pair[1].numel()), absolute_error(term.node)
            spread = deviation(pair[1], error) if error else variance(pair[1])
            if term.root is not None and spread is not None:
                spread = with_added(term.root, *pair, spread)
            of_rows = (spread, center(pair[1]), means(*pair))
            self.squares.append(Squares(times, *of_rows, absolute=error is not None, rooted=term.root is not None))
            self.broadcast = self.broadcast or broadcast_to(*pair)
            return tree.shape_of(pair[1])
        binary = binary_targets_in(term.node)
        if binary is None:
            return []
        if (share := share_of_ones(binary)) is not None:
            self.ones.append(Ones(term.times(binary.numel()), share, binary.numel()))
        return tree.shape_of(binary)

    def of_squares(self, passes: int) -> dict[str, Any]:
        """The fields of a line on targets of squared errors, in all of so many passes. Waits for an accelerator."""
        rooted = any(one.rooted for one in self.squares)
        if len(self.squares) != passes or (rooted and passes > 1):
            return {}
        times = [one.times for one in self.squares]
        fields = means_of([one.means.tolist() for one in self.squares if one.means is not None], times)
        return fields | self.spread(times, fields) | {"rooted": rooted}

    def spread(self, times: Sequence[float], means: Mapping[str, float]) -> dict[str, Any]:
        """The fields on the spread of targets whose `means` are these; none if it is not known."""
        spreads, centers = known(one.spread for one in self.squares), known(one.center for one in self.squares)
        if not spreads:
            return {}
        middle = mean_of(centers, times) if centers else None
        away = [(x - middle) ** 2 if middle is not None else 0.0 for x in centers or spreads]
        absolute = any(one.absolute for one in self.squares)  # errors of medians are not added up to others
        spread = mean_of(spreads, times) + (0.0 if absolute else mean_of(away, times))
        of_all = known_spread(spread, means, absolute=absolute)
        return {"spread": of_all, "center": middle, "absolute": absolute, "times": math.fsum(times)}

    def of_ones(self, passes: int) -> dict[str, Any]:
        """The fields of a line on targets that are 0 or 1, in all of so many passes. Waits for an accelerator."""
        shares = known(one.share for one in self.ones)
        if len(shares) != passes:
            return {}
        times = [one.times for one in self.ones]
        number = sum(one.number for one in self.ones)
        return {"ones": mean_of(shares, times), "targets": number, "times": math.fsum(times)}


def known_spread(spread: float, means: Mapping[str, float], *, absolute: bool) -> float:
    """The spread of targets; 0 for one that rounding has made, where they follow from outputs of these means."""
    limit = _ROUNDING * math.hypot(means.get("returned", 0.0), means.get("expected", 0.0))
    return 0.0 if spread <= (limit if absolute else limit**2) else spread


def known(figures: Iterable[Tensor | None]) -> list[float]:
    """These figures as numbers; none of them if one is not known, or not finite."""
    numbers = [math.nan if x is None else float(x) for x in figures]
    return numbers if all(map(math.isfinite, numbers)) else []


def means_of(pairs: Sequence[Sequence[float]], times: Sequence[float]) -> dict[str, Any]:
    """The fields on the means of outputs and targets, a pair for each pass; none if one is not known, or not finite."""
    if len(pairs) < len(times) or not all(map(math.isfinite, (x for pair in pairs for x in pair))):
        return {}
    returned, expected = (mean_of(figures, times) for figures in zip(*pairs, strict=True))
    return {"returned": returned, "expected": expected}


def mean_of(figures: Sequence[float], times: Sequence[float]) -> float:
    """The mean of these figures, each of which counts so many times."""
    return math.fsum(x * number for x, number in zip(figures, times, strict=True)) / math.fsum(times)


def share_of_ones(targets: Tensor) -> Tensor | None:
    """The share of ones among targets that are 0 or 1; NaN if others are among them. Waits for nothing."""
    if not tree.is_plain(targets) or not targets.numel():
        return None
    with torch.no_grad():
        known = targets.detach()
        return known.mean(dtype=torch.float32) + torch.where(((known == 0) | (known == 1)).all(), 0.0, math.nan)


def with_added(root: Node, outputs: Tensor, targets: Tensor, spread: Tensor) -> Tensor:
    """The variance of targets, and what was added to the mean squared error below this root. Waits for nothing."""
    with torch.no_grad():
        added = added_below(root, (outputs.detach() - targets.detach()).square().mean())
        return spread if added is None else spread + added


def deviation(targets: Tensor, error: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
    """The mean error of always returning the median of targets over the rows of a batch. Waits for nothing.

    Times n / (n - 1), as the median is that of the same n rows.
    """
    rows = rows_of(targets)
    if rows is None or len(rows) < 2:
        return None
    with torch.no_grad():
        return error(rows.median(0).values.expand_as(rows), rows) * len(rows) / (len(rows) - 1)


def variance(targets: Tensor) -> Tensor | None:
    """The variance of targets over the rows of a batch, by Bessel's correction if a row has several.

    If a row has one, `center` gives the mean of all rows later. Waits for nothing.
    """
    rows = rows_of(targets)
    if rows is not None and rows.stride(0) == 0:  # which broadcasting has repeated
        rows = rows[0]
    if rows is None or not rows.dim() or len(rows) < 2:
        return None
    with torch.no_grad():
        return rows.var(0, correction=int(rows.numel() > len(rows))).mean()


def center(targets: Tensor) -> Tensor | None:
    """The mean of targets, of which each row of a batch has one; else None. Waits for nothing."""
    rows = rows_of(targets)
    with torch.no_grad():
        return rows.mean() if rows is not None and rows.numel() == len(rows) else None


def means(outputs: Tensor, targets: Tensor) -> Tensor | None:
    """The mean of outputs, and of targets; None where there are no such figures. Waits for nothing."""
    known = [rows for rows in map(rows_of, (outputs, targets)) if rows is not None]
    with torch.no_grad():
        return torch.stack([rows.mean(dtype=torch.float32) for rows in known]) if len(known) == 2 else None


def rows_of(targets: Tensor) -> Tensor | None:
    """The rows of targets, without their graph; None if they are none of floating-point numbers."""
    known = tree.is_plain(targets) and targets.dim() and targets.is_floating_point()
    return targets.detach() if known else None


def broadcast_to(outputs: Tensor, targets: Tensor) -> str:
    """The shape to which outputs and targets were broadcast, if each was along a dimension of the other; else ""."""
    dims = [{n for n, size in enumerate(x.shape) if size > 1 and x.stride(n) == 0} for x in (outputs, targets)]
    return tree.shape_text(targets) if all(dims) and dims[0].isdisjoint(dims[1]) else ""
