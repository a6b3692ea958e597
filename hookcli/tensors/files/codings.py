"""Codings of numbers in files: from the bytes of elements to the values that they stand for; NumPy alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Values = NDArray[np.float64]
Floats = NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Coding:
    """The way in which a file codes the elements of a tensor.

    `storage` is NumPy's dtype of an element as it lies in the file, always little-endian. `table` makes the value of
    every code, for the codings of one or two bytes; None for the others, which NumPy reads.
    """

    storage: np.dtype[np.generic]
    table: Callable[[], Values] | None = None


def values(coding: str, block: Array) -> Values:
    """The values of a block of coded elements as float64; complex ones as their magnitudes."""
    if CODINGS[coding].table:
        values: Values = table(coding)[block]
        return values
    return np.abs(block.astype(np.complex128)) if block.dtype.kind == "c" else block.astype(np.float64)


def narrow_values(coding: str, block: Array) -> Floats:
    """The values as float32 where it has all values of the coding, else as float64."""
    if coding != "float32" and not CODINGS[coding].table:
        return values(coding, block)
    if coding == "float32":
        return block.astype(np.float32)
    narrow: Floats = _narrow_table(coding)[block]
    return narrow


@cache
def _narrow_table(coding: str) -> Floats:
    with np.errstate(invalid="ignore"):  # signalling NaN
        return table(coding).astype(np.float32)


@cache
def table(coding: str) -> Values:
    """The value of every code of a coding of one or two bytes."""
    make = CODINGS[coding].table
    assert make is not None
    with np.errstate(invalid="ignore"):  # signalling NaN
        return make()


def _viewed(storage: str, dtype: str) -> Values:
    """The table of a dtype that NumPy has."""
    return np.arange(1 << 8 * np.dtype(storage).itemsize, dtype=storage).view(dtype).astype(np.float64)


def _float8(mantissa: int, bias: int, *, fnuz: bool = False, infinite: bool = False) -> Values:
    """The table of an 8-bit float: a sign, an exponent, and so many bits of mantissa.

    `infinite`: the highest exponent is for Inf and NaN, as in IEEE 754; otherwise only codes of ones are NaN, or with
    `fnuz` only the negative zero (https://onnx.ai/onnx/technical/float8.html).
    """
    codes = np.arange(256)
    fraction, exponent = codes & ((1 << mantissa) - 1), (codes & 127) >> mantissa
    significand = np.where(exponent == 0, 0, 1 << mantissa) + fraction
    sizes = np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - bias - mantissa)
    if fnuz:
        sizes[128] = np.nan
    elif infinite:
        top = exponent == 127 >> mantissa
        sizes[top] = np.where(fraction[top] == 0, np.inf, np.nan)
    else:
        sizes[[127, 255]] = np.nan
    signed: Values = np.where(codes < 128, sizes, -sizes)
    return signed


_TABLES: dict[str, tuple[str, Callable[[], Values]]] = {
    "float16": ("<u2", lambda: _viewed("<u2", "<f2")),
    "bfloat16": ("<u2", lambda: (np.arange(1 << 16, dtype="<u4") << 16).view("<f4").astype(np.float64)),
    "int16": ("<u2", lambda: _viewed("<u2", "<i2")),
    "uint16": ("<u2", lambda: _viewed("<u2", "<u2")),
    "int8": ("u1", lambda: _viewed("u1", "i1")),
    "uint8": ("u1", lambda: _viewed("u1", "u1")),
    "bool": ("u1", lambda: np.minimum(np.arange(256), 1).astype(np.float64)),
    "float8_e4m3fn": ("u1", lambda: _float8(3, 7)),
    "float8_e4m3fnuz": ("u1", lambda: _float8(3, 8, fnuz=True)),
    "float8_e5m2": ("u1", lambda: _float8(2, 15, infinite=True)),
    "float8_e5m2fnuz": ("u1", lambda: _float8(2, 16, fnuz=True)),
    "float8_e8m0fnu": ("u1", lambda: np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan)),  # scales of MX formats
}
_NUMPY = {
    **{f"float{bits}": f"<f{bits // 8}" for bits in (32, 64)},
    **{f"{sign}int{bits}": f"<{sign or 'i'}{bits // 8}" for sign in ("", "u") for bits in (32, 64)},
    **{f"complex{bits}": f"<c{bits // 8}" for bits in (64, 128)},
}
CODINGS = {
    **{name: Coding(np.dtype(storage), make) for name, (storage, make) in _TABLES.items()},
    **{name: Coding(np.dtype(storage)) for name, storage in _NUMPY.items()},
}
"""The codings that can be read, by PyTorch's name of the dtype."""
