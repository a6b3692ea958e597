"""Triton kernels that reduce a tensor on its device to statistics, in one pass over memory.

A program reads a stretch of the tensor, tile by tile, and sums in float32 lanes about the mean of its first tile; sums
of `GROUP` tiles go into float64, so that neither long sums nor a mean far above the spread cost digits. A stretch
that float32 can't be trusted with (NaN, Inf, squares that leave its range) is read again in float64: `_exact`. Each
program writes a row in the order of `STATS_KEYS`, and `merged` merges them by Chan's formula; a tensor of one program
needs no second kernel.

Importing this module needs Triton. Under TRITON_INTERPRET=1 the kernels run on the CPU.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from hookcli.table.histogram import FORMATS

GROUP = tl.constexpr(32)
# Above this ratio of squared mean to variance, digits are lost, in a float32 sum first.
_FAR = tl.constexpr(16.0)
NARROW, _WIDE = tl.constexpr((1e-15, 1e15)), tl.constexpr((1e-140, 1e140))
"""Squares of values outside of these ranges leave the range of float32, and of float64."""
_EXPONENT = tl.constexpr(0x7FF0000000000000)
_ONE = tl.constexpr(0x0010000000000000)  # of an exponent's field in float64
_FORMATS = tl.constexpr(len(FORMATS))
_LIMITS = tl.constexpr(
    tuple(float(np.nextafter(np.float32(f.most), np.float32(np.inf))) if f.beyond else f.most for f in FORMATS)
)
"""The least float32 numbers that are too large for each of FORMATS."""


@triton.jit
def loaded(start, table, offsets, there, TABLED: tl.constexpr, TYPE: tl.constexpr):
    """The elements at these offsets; 8-bit floats are looked up, which every GPU can."""
    x = tl.load(start + offsets, mask=there)
    if TABLED:
        x = tl.load(table + x.to(tl.int32), mask=there)
    return x.to(TYPE)


@triton.jit
def _folded(x, there, origin, low, high, zeros, total, squares):
    """The lanes with one more tile in them; `total` and `squares` are sums of distances from the origin."""
    gap = tl.where(there, x - origin, 0.0)
    low = tl.minimum(low, tl.where(there, x, float("inf")))
    high = tl.maximum(high, tl.where(there, x, float("-inf")))
    zeros += (there & (x == 0.0)).to(tl.int32)
    return low, high, zeros, total + gap, squares + gap * gap


@triton.jit
def unit_of(low, high):
    """The power of two next to the largest magnitude, and its inverse: in this unit squares stay in float64's range."""
    peak = tl.maximum(-low, high)
    field = tl.minimum(tl.maximum(peak.to(tl.int64, bitcast=True) & _EXPONENT, _ONE), 0x7FD0000000000000)
    return field.to(tl.float64, bitcast=True), (0x7FE0000000000000 - field).to(tl.float64, bitcast=True)


@triton.jit
def _spread(count, origin, total, squares):
    """Mean, summed squared deviations, and summed squares of `count` numbers, from their sums about an origin."""
    gap = total / count
    mean = origin + gap
    deviations = tl.maximum(squares - total * gap, 0.0)
    return mean, deviations, deviations + count * mean * mean


@triton.jit
def _exact(start, table, length, TILE: tl.constexpr, TABLED: tl.constexpr):
    """A stretch's figures over its finite elements, in float64: about the least, in units of the largest magnitude."""
    lanes = tl.arange(0, TILE)
    low, high = tl.full([TILE], float("inf"), tl.float64), tl.full([TILE], float("-inf"), tl.float64)
    zeros, nan, inf = tl.zeros([TILE], tl.int32), tl.zeros([TILE], tl.int32), tl.zeros([TILE], tl.int32)
    for tile in range(0, length, TILE):
        there = lanes < length - tile
        x = loaded(start, table, tile + lanes, there, TABLED, tl.float64)
        finite = there & (tl.abs(x) < float("inf"))
        low = tl.minimum(low, tl.where(finite, x, float("inf")))
        high = tl.maximum(high, tl.where(finite, x, float("-inf")))
        zeros += (there & (x == 0.0)).to(tl.int32)
        nan += (there & (x != x)).to(tl.int32)
        inf += (there & (tl.abs(x) == float("inf"))).to(tl.int32)
    least, most, nans, infs = tl.min(low), tl.max(high), tl.sum(nan), tl.sum(inf)
    unit, inverse = unit_of(least, most)
    total, squares = tl.zeros([TILE], tl.float64), tl.zeros([TILE], tl.float64)
    for tile in range(0, length, TILE):
        there = lanes < length - tile
        x = loaded(start, table, tile + lanes, there, TABLED, tl.float64)
        gap = tl.where(there & (tl.abs(x) < float("inf")), (x - least) * inverse, 0.0)
        if unit > 1e300:  # where x - least may overflow
            gap = tl.where(there & (tl.abs(x) < float("inf")), x * inverse - least * inverse, 0.0)
        total += gap
        squares += gap * gap
    count = (length - nans - infs).to(tl.float64)
    mean, deviations, whole = _spread(tl.maximum(count, 1.0), least * inverse, tl.sum(total), tl.sum(squares))
    return mean, deviations, unit, least, most, tl.sqrt(whole), tl.sum(zeros), nans, infs


@triton.jit
def _written(row, numel, mean, deviations, unit, low, high, l2, zeros, nan, inf):
    """Write a row, of a mean, summed squared deviations and norm in this unit."""
    std = tl.sqrt(deviations / tl.maximum(numel - nan - inf - 1, 1).to(tl.float64))
    tl.store(row, numel.to(tl.float64))
    tl.store(row + 1, mean * unit)
    tl.store(row + 2, std * unit)
    tl.store(row + 3, low)
    tl.store(row + 4, high)
    tl.store(row + 5, l2 * unit)
    tl.store(row + 6, zeros.to(tl.float64))
    tl.store(row + 7, nan.to(tl.float64))
    tl.store(row + 8, inf.to(tl.float64))


@triton.jit(do_not_specialize=["n", "each"])
def moments(values, table, rows, n, each, TILE: tl.constexpr, WIDE: tl.constexpr, TABLED: tl.constexpr):
    """Reduce `each` tiles of the `n` values per program, into a row each. `TABLED`: values are places in `table`."""
    TYPE: tl.constexpr = tl.float64 if WIDE else tl.float32
    program = tl.program_id(0).to(tl.int64)
    begin = program * each * TILE
    start = values + begin
    length = tl.minimum(n - begin, each.to(tl.int64) * TILE).to(tl.int32)
    lanes = tl.arange(0, TILE)
    whole = length // TILE
    first = tl.where(lanes < length, loaded(start, table, lanes, lanes < length, TABLED, TYPE), 0.0)
    origin = tl.sum(first) / tl.minimum(length, TILE).to(TYPE)
    origin = tl.where(tl.abs(origin) < float("inf"), origin, 0.0)
    low, high = tl.full([TILE], float("inf"), TYPE), tl.full([TILE], float("-inf"), TYPE)
    zeros = tl.zeros([TILE], tl.int32)
    everywhere = tl.full([TILE], 1, tl.int1)
    total, squares = tl.sum(tl.zeros([TILE], tl.float64)), tl.sum(tl.zeros([TILE], tl.float64))
    for group in range(0, whole, GROUP):
        some, theirs = tl.zeros([TILE], TYPE), tl.zeros([TILE], TYPE)
        for tile in tl.range(group, tl.minimum(group + GROUP, whole), loop_unroll_factor=4):
            x = loaded(start, table, tile * TILE + lanes, None, TABLED, TYPE)
            low, high, zeros, some, theirs = _folded(x, everywhere, origin, low, high, zeros, some, theirs)
        total += tl.sum(some.to(tl.float64))
        squares += tl.sum(theirs.to(tl.float64))
    rest = lanes < length - whole * TILE
    x = loaded(start, table, whole * TILE + lanes, rest, TABLED, TYPE)
    nothing = tl.zeros([TILE], TYPE)
    low, high, zeros, some, theirs = _folded(x, rest, origin, low, high, zeros, nothing, nothing)
    total += tl.sum(some.to(tl.float64))
    squares += tl.sum(theirs.to(tl.float64))

    count = length.to(tl.float64)
    mean, deviations, l2 = _spread(count, origin.to(tl.float64), total, squares)
    unit, l2 = count * 0.0 + 1.0, tl.sqrt(l2)
    least, most = tl.min(low).to(tl.float64), tl.max(high).to(tl.float64)
    zeros, nan, inf = tl.sum(zeros), length * 0, length * 0
    peak = tl.maximum(-least, most)
    ENDS: tl.constexpr = _WIDE if WIDE else NARROW
    ordinary = (peak == 0.0) | ((peak > ENDS[0]) & (peak < ENDS[1]))
    near = total * (total / count) <= deviations * _FAR  # Triton 3.8 makes a constexpr of `_FAR * tensor`
    if not ((squares < float("inf")) & ordinary & near):
        mean, deviations, unit, least, most, l2, zeros, nan, inf = _exact(start, table, length, TILE, TABLED)
    _written(rows + program * 9, length, mean, deviations, unit, least, most, l2, zeros, nan, inf)


@triton.jit(do_not_specialize=["count"])
def merged(rows, row, count, ROOM: tl.constexpr):
    """Merge `count` rows of `moments`, ROOM at most, into one, by Chan's formula."""
    lanes = tl.arange(0, ROOM)
    there = lanes < count
    rows += lanes * 9
    numel, nan, inf = tl.load(rows, there, 0.0), tl.load(rows + 7, there, 0.0), tl.load(rows + 8, there, 0.0)
    sizes = numel - nan - inf
    some = sizes > 0.0
    low = tl.min(tl.load(rows + 3, some, float("inf")))
    high = tl.max(tl.load(rows + 4, some, float("-inf")))
    unit, inverse = unit_of(low, high)
    means = tl.load(rows + 1, some, 0.0) * inverse
    n = tl.sum(sizes)
    base = tl.where(n > 0.0, low * inverse, 0.0)
    mean = base + tl.sum(tl.where(some, sizes * (means - base), 0.0)) / tl.maximum(n, 1.0)
    stds, norms = tl.load(rows + 2, some, 0.0) * inverse, tl.load(rows + 5, some, 0.0) * inverse
    gaps = tl.where(some, means - mean, 0.0)
    deviations = tl.sum(tl.where(some, stds * stds * (sizes - 1.0) + sizes * gaps * gaps, 0.0))
    zeros = tl.sum(tl.load(rows + 6, there, 0.0))
    l2 = tl.sqrt(tl.sum(norms * norms))
    _written(row, tl.sum(numel), mean, deviations, unit, low, high, l2, zeros, tl.sum(nan), tl.sum(inf))


@triton.jit
def _counted(x, there, bin_counts, peak, small):
    """Bins and lanes with one more tile in them: by sign and exponent, the largest magnitudes, and any subnormal."""
    field = (x.to(tl.int32, bitcast=True) >> 23) & 511
    bin_counts += tl.histogram(tl.where(there, field, 255), 512)  # 255 is the field of NaN and Inf, which do not count
    size = tl.abs(x)
    peak = tl.maximum(peak, tl.where(there & (size < float("inf")), size, 0.0))
    return bin_counts, peak, small | (there & (field % 256 == 0) & (x != 0.0)).to(tl.int32)


@triton.jit
def _added(counts, bin_counts, SHIFT: tl.constexpr):
    """Add bins of float32's fields to float64's, whose exponents belong to the numbers times 2**SHIFT."""
    bins = tl.arange(0, 512)
    exponent = bins % 256
    there = (bin_counts > 0) & (exponent > 0) & (exponent < 255)
    tl.atomic_add(counts + (bins // 256) * 2048 + exponent + (1023 - 127 - SHIFT), bin_counts.to(tl.int64), mask=there)


@triton.jit(do_not_specialize=["n", "each"])
def exponents(values, table, counts, n, each, TILE: tl.constexpr, TABLED: tl.constexpr):
    """Count `n` values by sign and exponent, `each` tiles per program, into 2 * 2048 bins as float64 has them.

    After the bins: for each of FORMATS the number of finite values that are too large for it. Such values,
    and subnormals, are rare: where a stretch has some, it is read again for them.
    """
    program = tl.program_id(0).to(tl.int64)
    begin = program * each * TILE
    start = values + begin
    length = tl.minimum(n - begin, each.to(tl.int64) * TILE).to(tl.int32)
    lanes = tl.arange(0, TILE)
    bin_counts, peak, small = tl.zeros([512], tl.int32), tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.int32)
    everywhere = tl.full([TILE], 1, tl.int1)
    whole = length // TILE * TILE
    for tile in range(0, whole, TILE):
        x = loaded(start, table, tile + lanes, None, TABLED, tl.float32)
        bin_counts, peak, small = _counted(x, everywhere, bin_counts, peak, small)
    rest = lanes < length - whole
    x = loaded(start, table, whole + lanes, rest, TABLED, tl.float32)
    bin_counts, peak, small = _counted(x, rest, bin_counts, peak, small)
    _added(counts, bin_counts, 0)
    most = tl.max(peak)
    for number in tl.static_range(_FORMATS):
        limit = _LIMITS[number]
        if most >= limit:
            over = tl.zeros([TILE], tl.int32)
            for tile in range(0, length, TILE):
                there = lanes < length - tile
                size = tl.abs(loaded(start, table, tile + lanes, there, TABLED, tl.float32))
                over += (there & (size >= limit) & (size < float("inf"))).to(tl.int32)
            tl.atomic_add(counts + 4096 + number, tl.sum(over).to(tl.int64))
    if tl.max(small) > 0:
        bin_counts = tl.zeros([512], tl.int32)
        for tile in range(0, length, TILE):
            there = lanes < length - tile
            x = loaded(start, table, tile + lanes, there, TABLED, tl.float32)
            field = (x.to(tl.int32, bitcast=True) >> 23) & 255
            raised = ((x * 18446744073709551616.0).to(tl.int32, bitcast=True) >> 23) & 511  # 2**64
            bin_counts += tl.histogram(tl.where(there & (field == 0) & (x != 0.0), raised, 255), 512)
        _added(counts, bin_counts, 64)
