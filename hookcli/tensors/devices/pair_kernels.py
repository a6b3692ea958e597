"""Triton kernels that reduce two tensors on their device to their discrepancy, in one pass over both.

As in `kernels`, a program sums a stretch in float32, groups of tiles in float64, and reads a stretch again in float64
that float32 can't be trusted with; float64 and wide integers are read in float64 from the start. Rows are in the order
of `hookcli.table.discrepancy.KEYS`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hookcli.tensors.devices.kernels import GROUP, NARROW, loaded, unit_of

_FAR = tl.constexpr(2.0**62)  # farther apart, the difference of two int64 might overflow


@triton.jit
def _apart(a, b, a_table, b_table, offsets, there, A_TABLED: tl.constexpr, B_TABLED: tl.constexpr,
           INTEGERS: tl.constexpr):  # fmt: skip
    """The elements of both in float64, the sizes of their differences, and where both are finite."""
    x = loaded(a, a_table, offsets, there, A_TABLED, tl.float64)
    y = loaded(b, b_table, offsets, there, B_TABLED, tl.float64)
    error = x - y
    if INTEGERS:
        exact = (tl.load(a + offsets, mask=there) - tl.load(b + offsets, mask=there)).to(tl.float64)
        error = tl.where(tl.abs(error) < _FAR, exact, error)
    finite = there & (tl.abs(x) < float("inf")) & (tl.abs(y) < float("inf"))
    return x, y, tl.abs(error), finite


@triton.jit
def _exact(a, b, a_table, b_table, length, TILE: tl.constexpr, A_TABLED: tl.constexpr, B_TABLED: tl.constexpr,
           INTEGERS: tl.constexpr):  # fmt: skip
    """A stretch's figures over the elements that are finite in both, each norm in units of its largest magnitude."""
    lanes = tl.arange(0, TILE)
    peak, a_peak, b_peak = tl.zeros([TILE], tl.float64), tl.zeros([TILE], tl.float64), tl.zeros([TILE], tl.float64)
    count, differ = tl.zeros([TILE], tl.int32), tl.zeros([TILE], tl.int32)
    for tile in range(0, length, TILE):
        there = lanes < length - tile
        x, y, error, finite = _apart(a, b, a_table, b_table, tile + lanes, there, A_TABLED, B_TABLED, INTEGERS)
        peak = tl.maximum(peak, tl.where(finite, error, 0.0))
        a_peak = tl.maximum(a_peak, tl.where(finite, tl.abs(x), 0.0))
        b_peak = tl.maximum(b_peak, tl.where(finite, tl.abs(y), 0.0))
        count += finite.to(tl.int32)
        differ += (there & (finite == 0) & ((x == y) == 0) & (((x != x) & (y != y)) == 0)).to(tl.int32)
    most = tl.max(peak)
    unit, inverse = unit_of(0.0, most)
    a_unit, a_inverse = unit_of(0.0, tl.max(a_peak))
    b_unit, b_inverse = unit_of(0.0, tl.max(b_peak))
    total, errors = tl.zeros([TILE], tl.float64), tl.zeros([TILE], tl.float64)
    of_a, of_b = tl.zeros([TILE], tl.float64), tl.zeros([TILE], tl.float64)
    for tile in range(0, length, TILE):
        there = lanes < length - tile
        x, y, error, finite = _apart(a, b, a_table, b_table, tile + lanes, there, A_TABLED, B_TABLED, INTEGERS)
        error = tl.where(finite, error * inverse, 0.0)
        x, y = tl.where(finite, x * a_inverse, 0.0), tl.where(finite, y * b_inverse, 0.0)
        total += error
        errors += error * error
        of_a += x * x
        of_b += y * y
    mean = tl.sum(total) / length.to(tl.float64) * unit
    a_l2, b_l2 = tl.sqrt(tl.sum(of_a)) * a_unit, tl.sqrt(tl.sum(of_b)) * b_unit
    return most, mean, tl.sqrt(tl.sum(errors)) * unit, a_l2, b_l2, tl.sum(differ), tl.sum(count)


@triton.jit
def _folded(x, y, peak, total, squares, a_squares, b_squares):
    """The lanes with one more tile in them."""
    error = tl.abs(x - y)
    return tl.maximum(peak, error), total + error, squares + error * error, a_squares + x * x, b_squares + y * y


@triton.jit
def _is_ordinary(squares):
    """True for a float32 sum of squares that neither overflowed nor lost digits."""
    return (squares > 1e-24) & (squares < 1e36)


@triton.jit
def _written(row, numel, most, mean, error_l2, a_l2, b_l2, differ, count):
    tl.store(row, numel.to(tl.float64))
    tl.store(row + 1, most)
    tl.store(row + 2, mean)
    tl.store(row + 3, error_l2)
    tl.store(row + 4, a_l2)
    tl.store(row + 5, b_l2)
    tl.store(row + 6, differ.to(tl.float64))
    tl.store(row + 7, count.to(tl.float64))


@triton.jit(do_not_specialize=["n", "each"])
def discrepancies(a, b, a_table, b_table, rows, n, each, TILE: tl.constexpr, WIDE: tl.constexpr,
                  A_TABLED: tl.constexpr, B_TABLED: tl.constexpr, INTEGERS: tl.constexpr):  # fmt: skip
    """Compare `each` tiles of the `n` elements per program, into a row each. `INTEGERS`: both are int64."""
    program = tl.program_id(0).to(tl.int64)
    begin = program * each * TILE
    a += begin
    b += begin
    length = tl.minimum(n - begin, each.to(tl.int64) * TILE).to(tl.int32)
    row = rows + program * 8
    trusted = length < 0
    if not WIDE:
        lanes = tl.arange(0, TILE)
        peak, nothing = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.float32)
        zero = tl.sum(tl.zeros([TILE], tl.float64))
        total, errors, of_a, of_b = zero, zero, zero, zero
        whole = length // TILE * TILE
        for group in range(0, whole, GROUP * TILE):
            some, squares, a_squares, b_squares = nothing, nothing, nothing, nothing
            for tile in tl.range(group, tl.minimum(group + GROUP * TILE, whole), TILE, loop_unroll_factor=2):
                x = loaded(a, a_table, tile + lanes, None, A_TABLED, tl.float32)
                y = loaded(b, b_table, tile + lanes, None, B_TABLED, tl.float32)
                peak, some, squares, a_squares, b_squares = _folded(x, y, peak, some, squares, a_squares, b_squares)
            total, errors = total + tl.sum(some.to(tl.float64)), errors + tl.sum(squares.to(tl.float64))
            of_a, of_b = of_a + tl.sum(a_squares.to(tl.float64)), of_b + tl.sum(b_squares.to(tl.float64))
        rest = lanes < length - whole
        x = tl.where(rest, loaded(a, a_table, whole + lanes, rest, A_TABLED, tl.float32), 0.0)
        y = tl.where(rest, loaded(b, b_table, whole + lanes, rest, B_TABLED, tl.float32), 0.0)
        peak, some, squares, a_squares, b_squares = _folded(x, y, peak, nothing, nothing, nothing, nothing)
        total, errors = total + tl.sum(some.to(tl.float64)), errors + tl.sum(squares.to(tl.float64))
        of_a, of_b = of_a + tl.sum(a_squares.to(tl.float64)), of_b + tl.sum(b_squares.to(tl.float64))
        most = tl.max(peak).to(tl.float64)
        trusted = (total < float("inf")) & ((most == 0.0) | ((most > NARROW[0]) & (most < NARROW[1])))
        trusted = trusted & _is_ordinary(of_a) & _is_ordinary(of_b)
        if trusted:
            mean = total / length.to(tl.float64)
            _written(row, length, most, mean, tl.sqrt(errors), tl.sqrt(of_a), tl.sqrt(of_b), length * 0, length)
    if not trusted:
        most, mean, error_l2, a_l2, b_l2, differ, count = _exact(
            a, b, a_table, b_table, length, TILE, A_TABLED, B_TABLED, INTEGERS
        )
        _written(row, length, most, mean, error_l2, a_l2, b_l2, differ, count)


@triton.jit
def _hypot(norms):
    unit, inverse = unit_of(0.0, tl.max(norms))
    norms *= inverse
    return tl.sqrt(tl.sum(norms * norms)) * unit


@triton.jit(do_not_specialize=["count"])
def merged(rows, row, count, ROOM: tl.constexpr):
    """Merge `count` rows of `discrepancies`, ROOM at most, into one."""
    lanes = tl.arange(0, ROOM)
    there = lanes < count
    rows += lanes * 8
    numel = tl.load(rows, there, 0.0)
    n = tl.sum(numel)
    most, mean = tl.max(tl.load(rows + 1, there, 0.0)), tl.sum(tl.load(rows + 2, there, 0.0) * (numel / n))
    error_l2, a_l2 = _hypot(tl.load(rows + 3, there, 0.0)), _hypot(tl.load(rows + 4, there, 0.0))
    b_l2 = _hypot(tl.load(rows + 5, there, 0.0))
    differ, finite = tl.sum(tl.load(rows + 6, there, 0.0)), tl.sum(tl.load(rows + 7, there, 0.0))
    _written(row, n, most, mean, error_l2, a_l2, b_l2, differ, finite)
