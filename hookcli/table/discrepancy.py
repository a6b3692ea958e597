"""The discrepancy of two tensors, as plain numbers that merge exactly; free of torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from hookcli.table.columns import names
from hookcli.table.columns.comparison import DISTANCES


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """The difference of a tensor b from a reference a of the same shape, or the exactly merged one of several pairs.

    `max_abs` and `mean_abs` are over a - b, `error_l2` is its norm, `a_l2` and `b_l2` are the norms of a and b;
    elements that are not finite in both count as zero. `nonfinite` counts the ones among them that are not equal either
    (NaN equals NaN).
    """

    numel: int = 0
    max_abs: float = 0.0
    mean_abs: float = 0.0
    error_l2: float = 0.0
    a_l2: float = 0.0
    b_l2: float = 0.0
    nonfinite: int = 0
    finite: int = field(default=0, compare=False)
    """Number of elements that are finite in both, if known; at 0 the norms are 0 and mean nothing."""

    @property
    def rel_l2(self) -> float:
        """The error's norm relative to the norm of a; infinite if a is zero and b is not."""
        if self.error_l2 == 0:
            return 0.0
        return self.error_l2 / self.a_l2 if self.a_l2 else math.inf

    @property
    def cosine(self) -> float:
        """The cosine of the angle between a and b; NaN if one of them is zero or unknown.

        From the norms, ``1 - (e^2 - (|a| - |b|)^2) / (2 |a| |b|)``, which keeps all digits of a small angle.
        """
        if not (self.a_l2 and self.b_l2) or math.isnan(self.a_l2 + self.b_l2 + self.error_l2):
            return math.nan
        # divided before it is squared, so that large norms do not overflow
        error, difference = self.error_l2 / self.a_l2, (self.a_l2 - self.b_l2) / self.a_l2
        cosine = 1 - (error**2 - difference**2) * (self.a_l2 / self.b_l2) / 2
        return min(1.0, max(-1.0, cosine))  # the norms are rounded

    @classmethod
    def merge(cls, parts: Iterable[Discrepancy]) -> Discrepancy:
        """The discrepancy of the concatenated tensors, exactly."""
        parts = list(parts)
        numel = sum(part.numel for part in parts)
        return cls(
            numel=numel,
            max_abs=max((part.max_abs for part in parts), default=0.0),
            mean_abs=math.fsum(part.mean_abs * (part.numel / numel) for part in parts) if numel else 0.0,
            error_l2=math.hypot(*(part.error_l2 for part in parts)),
            a_l2=math.hypot(*(part.a_l2 for part in parts)),
            b_l2=math.hypot(*(part.b_l2 for part in parts)),
            nonfinite=sum(part.nonfinite for part in parts),
            finite=sum(part.finite for part in parts),
        )

    @classmethod
    def from_floats(cls, floats: Iterable[float]) -> Discrepancy:
        """A discrepancy from numbers in the order of `KEYS`, as devices measure them."""
        values: Any = (kind(number) for kind, number in zip(_KINDS, floats, strict=True))
        return cls(*values)

    def figures(self) -> dict[str, float]:
        """The figures for a row.

        If elements are NaN or infinite on one side only, the errors are NaN: the other elements say nothing about the
        whole.
        """
        values = {name: getattr(self, name) for name in _FIELDS} | {"rel_l2": self.rel_l2, "cosine": self.cosine}
        return values | (dict.fromkeys(_ERRORS, math.nan) if self.nonfinite else {})

    @classmethod
    def of(cls, values: Mapping[str, float]) -> Discrepancy:
        """The inverse of `figures`."""
        return cls(**{name: values[name] for name in _FIELDS})  # type: ignore[arg-type]


_ERRORS = names(DISTANCES)
KEYS = tuple(f.name for f in fields(Discrepancy))
_KINDS = tuple(int if key in ("numel", "nonfinite", "finite") else float for key in KEYS)
_FIELDS = tuple(key for key in KEYS if key != "finite")
