"""Rounding to number formats, bit by bit, against PyTorch's casts, ml_dtypes, torchao and the definitions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support import same_bits
from torch import Tensor

from hookcli.hooks.option_values import NUMBER_FORMATS
from hookcli.tensors.number_formats import BY_NAME, E2M1, E4M3, E5M2, Element, rounded

ELEMENTS = {"float4_e2m1fn": E2M1, "float8_e4m3fn": E4M3, "float8_e5m2": E5M2}
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
ROWS = arrays.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 70)), elements=FINITE)
NEAR = st.floats(-1000, 1000, width=32)  # where the elements have values of their own
MATRICES = ROWS | arrays.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 70)), elements=NEAR)


def by_ml_dtypes(x: Tensor, dtype: str) -> Tensor:
    element = ELEMENTS[dtype]
    cast = x.clamp(-element.largest, element.largest).numpy().astype(getattr(ml_dtypes, dtype))
    return torch.from_numpy(cast.astype(np.float32))


@pytest.mark.parametrize("dtype", ELEMENTS)
def test_elements_are_those_of_ml_dtypes_and_of_pytorch(dtype: str) -> None:
    """All values of float32 whose last 12 bits are zeros or next to it, so all ties of these formats and their
    neighbours."""
    high = torch.arange(1 << 20, dtype=torch.int64) << 12
    bits = torch.cat([high, high + 1, high - 1]).remainder(1 << 32)
    x = torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32).view(torch.float32)
    x = x[x.isfinite()]
    element = ELEMENTS[dtype]
    assert len(x) > 3_000_000 and same_bits(element.rounded(x.clone()), by_ml_dtypes(x, dtype))
    if hasattr(torch, dtype):
        cast = x.clamp(-element.largest, element.largest).to(getattr(torch, dtype)).float()
        assert same_bits(element.rounded(x.clone()), cast)


@pytest.mark.parametrize(("dtype", "element"), ELEMENTS.items())
def test_limits_of_elements_follow_from_their_bits(dtype: str, element: Element) -> None:
    """`beyond` is half a step above the largest value, or as much as rounds down to it."""
    info = ml_dtypes.finfo(getattr(ml_dtypes, dtype))
    assert (element.largest, 2.0**element.least) == (float(info.max), float(info.smallest_normal))
    step = 2.0 ** (element.most - element.mantissa)
    assert element.beyond == element.largest + step / 2


@pytest.mark.sweep
@settings(deadline=None)
@given(MATRICES)
def test_float16_and_bfloat16_are_casts(array: np.ndarray) -> None:
    x = torch.from_numpy(array)
    for dtype in (torch.float16, torch.bfloat16):
        assert same_bits(rounded(x, str(dtype)[6:]), x.to(dtype).float())


def power(peak: float, most: int) -> float:
    """The scale of an MX block, by exact arithmetic: section 6.3 of the specification, and e8m0's least exponent."""
    exponent = -127
    if peak:
        value = Fraction(peak)
        exponent = value.numerator.bit_length() - value.denominator.bit_length()
        exponent -= Fraction(2) ** exponent > value
        exponent = max(exponent - most, -127)
    return float(np.float32(Fraction(2) ** exponent))


@pytest.mark.sweep
@settings(deadline=None)
@given(MATRICES)
def test_mx_formats_are_those_of_the_specification(array: np.ndarray) -> None:
    x = torch.from_numpy(array)
    for name, dtype in (("mxfp8", "float8_e4m3fn"), ("mxfp4", "float4_e2m1fn")):
        expected = torch.empty_like(x)
        for row, right in zip(x, expected, strict=True):
            for block, place in zip(row.split(32), right.split(32), strict=True):
                scale = power(float(block.abs().max()), ELEMENTS[dtype].most)
                assert float(ml_dtypes.float8_e8m0fnu(scale)) == scale
                place.copy_(by_ml_dtypes(block / scale, dtype) * scale)
        assert same_bits(rounded(x, name), expected)


@pytest.mark.sweep
@settings(deadline=None)
@given(MATRICES)
def test_float8_with_scales_is_pytorchs_cast_of_the_scaled_values(array: np.ndarray) -> None:
    x = torch.from_numpy(array)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        largest = torch.finfo(dtype).max
        for suffix, peak in (("", x.abs().max()), ("_row", x.abs().amax(1, keepdim=True))):
            scale = (peak / largest).clamp(min=2.0**-149)
            expected = (x / scale).clamp(-largest, largest).to(dtype).float() * scale
            assert same_bits(rounded(x, str(dtype)[6:] + suffix), expected)


@pytest.mark.sweep
@settings(deadline=None)
@given(MATRICES)
def test_integers_are_pytorchs_fake_quantization(array: np.ndarray) -> None:
    x = torch.from_numpy(array)
    for name, largest, width in (("int8", 127, x.shape[1]), ("int4", 7, 128)):
        parts = []
        for part in x.split(width, dim=1):
            scale = (part.abs().amax(1) / largest).clamp(min=torch.finfo(torch.float32).tiny)
            zero = torch.zeros(len(x), dtype=torch.int32)
            parts.append(torch.fake_quantize_per_channel_affine(part, scale, zero, 0, -largest, largest))
        assert same_bits(rounded(x, name), torch.cat(parts, 1) + 0.0)


@pytest.mark.sweep
@settings(deadline=None)
@given(MATRICES)
def test_nvfp4_has_two_levels_of_scales(array: np.ndarray) -> None:
    """By NumPy and ml_dtypes, in float32, in the order of torchao; where the tensor's scale has a finite reciprocal."""
    one = np.float32(1)
    peak = np.abs(array).max()
    if peak < 2.0**-100:
        assert torch.from_numpy(array).isfinite().all() and rounded(torch.from_numpy(array), "nvfp4").isfinite().all()
        return
    whole = peak / np.float32(448 * 6)
    expected = np.empty_like(array)
    for row in range(len(array)):
        for start in range(0, array.shape[1], 16):
            block = array[row, start : start + 16]
            scale = np.clip(np.abs(block).max() / np.float32(6) / whole, np.float32(2**-6), np.float32(448))
            small = np.float32(ml_dtypes.float8_e4m3fn(scale))
            scaled = np.clip(block * ((one / whole) / small), np.float32(-6), np.float32(6))
            element = scaled.astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
            expected[row, start : start + 16] = element * (whole * small)
    assert same_bits(rounded(torch.from_numpy(array), "nvfp4"), torch.from_numpy(expected))


def torchaos() -> dict[str, Callable[[Tensor], Tensor]]:
    """torchao's rounding of a matrix whose rows have whole blocks, by format."""
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    nv = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    ao = pytest.importorskip("torchao.quantization.quant_primitives")

    def nvfp4(x: Tensor) -> Tensor:
        scale = nv.per_tensor_amax_to_scale(x.abs().max())
        return nv.NVFP4Tensor.to_nvfp4(x, per_tensor_scale=scale).dequantize(torch.float32)

    def float8(dtype: torch.dtype, by_row: bool) -> Callable[[Tensor], Tensor]:
        def cast(x: Tensor) -> Tensor:
            scale = ao._choose_scale_float8(x, [1 if by_row else len(x), x.shape[1]], dtype)
            return ao._dequantize_affine_float8(ao._quantize_affine_float8(x, scale, dtype), scale)

        return cast

    def integer(largest: int, width: int | None) -> Callable[[Tensor], Tensor]:
        def cast(x: Tensor) -> Tensor:
            block, tiny = [1, width or x.shape[1]], torch.finfo(torch.float32).tiny
            limits = torch.int8, -largest, largest
            scale, zero = ao.choose_qparams_affine(x, ao.MappingType.SYMMETRIC, block, *limits, eps=tiny)
            return ao.dequantize_affine(ao.quantize_affine(x, block, scale, zero, *limits), block, scale, zero, *limits)

        return cast

    return {
        "mxfp8": lambda x: mx.MXTensor.to_mx(x, torch.float8_e4m3fn, 32).dequantize(torch.float32),
        "mxfp4": lambda x: mx.MXTensor.to_mx(x, torch.float4_e2m1fn_x2, 32).dequantize(torch.float32),
        "nvfp4": nvfp4,
        "float8_e4m3fn": float8(torch.float8_e4m3fn, False),
        "float8_e4m3fn_row": float8(torch.float8_e4m3fn, True),
        "float8_e5m2": float8(torch.float8_e5m2, False),
        "float8_e5m2_row": float8(torch.float8_e5m2, True),
        "int8": integer(127, None),
        "int4": integer(7, 128),
    }


def test_all_are_torchaos() -> None:
    """Normally distributed values, 60 binary orders of magnitude, ties, and blocks and rows of zeros."""
    torch.manual_seed(0)
    normal = torch.randn(64, 1024)
    wide = normal * torch.exp2(torch.randint(-30, 30, (64, 1024)).float())
    ties = torch.randint(-64, 64, (64, 1024)).float() / 8
    holes = normal.clone()
    holes[3], holes[5, 128:256] = 0.0, 0.0
    for name, theirs in torchaos().items():
        for x in (normal, wide, ties, holes, normal.bfloat16().float()):
            right = theirs(x)
            right = right.where(x.abs().amax(1, keepdim=True) > 0, 0.0) if "_row" in name else right  # 0 / 0 in theirs
            assert torch.equal(rounded(x, name), right), name  # integers of theirs can be -0


@pytest.mark.parametrize("name", NUMBER_FORMATS)
def test_formats_round_zeros_and_the_least_numbers_to_finite_values(name: str) -> None:
    for value in (0.0, 2.0**-149, -(2.0**-126), 3e38):
        x = torch.full((2, 40), value)
        q = rounded(x, name)
        assert q.shape == x.shape and (q.isfinite().all() or (name == "float16" and value == 3e38))
    assert BY_NAME.keys() == {*NUMBER_FORMATS}
