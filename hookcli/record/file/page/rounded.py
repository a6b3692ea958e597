"""Figures as a page has them: rounded, and packed into text."""

from __future__ import annotations

import zlib
from base64 import b64encode
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DIGITS = 4
"""Significant digits of the figures, which tables have too."""
ABSENT, NAN, PLUS, MINUS = 32767, 32766, 32765, 32764
"""Mantissas that stand for no figure, NaN and the infinities. `assets/data.js` reads them."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """Figures as `mantissas` (int16, of four digits) times ten to their `exponents` (int16); of any shape."""

    mantissas: NDArray[np.int16]
    exponents: NDArray[np.int16]

    @classmethod
    def of(cls, values: NDArray[np.float64], known: NDArray[np.bool_]) -> Rounded:
        """The figures, rounded; those that are not `known` are absent."""
        finite = np.isfinite(values) & known
        plain = np.where(finite, values, 0.0)
        sizes = np.abs(plain)
        exponents = np.floor(np.log10(np.where(sizes > 0, sizes, 1.0))).astype(np.int16) - (DIGITS - 1)
        over = np.abs(_scaled(plain, exponents)) >= 10**DIGITS  # 9,999.6 became 10,000
        exponents += over
        mantissas = _scaled(plain, exponents).astype(np.int16)
        mantissas[~finite] = np.where(values[~finite] > 0, PLUS, MINUS)
        mantissas[np.isnan(values)] = NAN
        mantissas[~known] = ABSENT
        exponents[(mantissas == 0) | ~finite] = 0
        return cls(mantissas, exponents)

    @property
    def odd(self) -> bool:
        """True if any figure is NaN or infinite."""
        return bool(((self.mantissas >= MINUS) & (self.mantissas != ABSENT)).any())

    def coarser(self) -> Rounded:
        """The figures with three digits."""
        figures = np.abs(self.mantissas) < 10**DIGITS
        tenth = np.rint(self.mantissas / 10.0).astype(np.int16)
        nonzero = figures & (tenth != 0)
        return Rounded(np.where(figures, tenth, self.mantissas), np.where(nonzero, self.exponents + 1, self.exponents))

    def packed(self) -> str:
        """The figures as text: base64 of zlib of the bytes of each number, the low bytes of all numbers first.

        Numbers follow each other in C order, mantissas before exponents. Bytes that are alike stand together so, which
        compresses them to half the size.
        """
        planes = (
            np.ascontiguousarray(numbers, "<i2").view(np.uint8).reshape(-1, 2).T.tobytes()
            for numbers in (self.mantissas, self.exponents)
        )
        return b64encode(zlib.compress(b"".join(planes))).decode("ascii")


def _scaled(values: NDArray[np.float64], exponents: NDArray[np.int16]) -> NDArray[np.float64]:
    """Values over ten to their exponents, as whole numbers; in two steps, since 1e-320 has no reciprocal."""
    half = (exponents // 2).astype(np.float64)
    return np.rint(values / 10.0**half / 10.0 ** (exponents - half))


def packed_counts(counts: NDArray[np.float64]) -> str:
    """Exact counts as text: base64 of zlib of float64 in C order, NaN where there is none."""
    return b64encode(zlib.compress(np.ascontiguousarray(counts, "<f8").tobytes())).decode("ascii")
