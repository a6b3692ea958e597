"""The discrepancy of two tensors: each is read once, in blocks, and no temporary is larger than a block.

The C++ library takes the sums over a block of narrow numbers in one pass, PyTorch's operators in nine. As in `stats`,
blocks that float32 sums can be trusted with are reduced in float32 (pairwise sums), others in float64, and blocks are
merged in float64. On an accelerator all stays there until `resolve` fetches it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hookcli.table import raised
from hookcli.table.discrepancy import KEYS, Discrepancy
from hookcli.tensors import chunks, library
from hookcli.tensors.devices import launch
from hookcli.tensors.library import Apart

CHUNK = 1 << 20
_FAR = 2.0**62
_NARROW = (torch.float32, torch.float16, torch.bfloat16)


def compare(a: Tensor, b: Tensor) -> chunks.PendingFigures | None:
    """Reduce two tensors of one shape, now; `resolve` makes the result a Discrepancy. Nothing of them is kept.

    Complex values count as pairs of real ones, where a real tensor beside them has imaginary parts of 0; sparse and
    quantized tensors as what they stand for. A tensor on another device than `a` is fetched to the CPU, and `a` with
    it. None where there are no values (the meta device).
    """
    with torch.no_grad(), torch.DisableTorchFunction():
        a, b = _plain(a.detach(), b.is_complex()), _plain(b.detach(), a.is_complex())
        if a.device.type == "meta" or b.device.type == "meta":
            return None
        if a.device != b.device:
            a, b = a.cpu(), b.cpu()
        return chunks.reduced((a, b), CHUNK, _cpu_chunk, _device_rows)


class SameBits:
    """Tells whether all pairs of tensors that were seen are alike in dtype and bits. On an accelerator nothing waits
    for a pair.
    """

    def __init__(self) -> None:
        self.excluded = False
        """True once a pair is known to differ, or can't be compared."""
        self._differ: list[Tensor] = []

    def see(self, a: Tensor, b: Tensor) -> None:
        if self.excluded:
            return
        with torch.no_grad(), torch.DisableTorchFunction():
            alike = (a.dtype, a.device, a.layout) == (b.dtype, b.device, b.layout) and a.device.type != "meta"
            a, b = (_plain(a.detach()), _plain(b.detach())) if alike else (a, b)
            if not alike or a.shape != b.shape:
                self.excluded = True
                return
            a, b = chunks.bits(a), chunks.bits(b)
            if a.device.type == "cpu":
                self.excluded = not torch.equal(a, b)
            else:
                self._differ.append((a != b).any().to(torch.int64).reshape(1))

    def __bool__(self) -> bool:
        return not (self.excluded or any(map(any, chunks.fetched(self._differ))))


def resolve(pending: Sequence[chunks.PendingFigures]) -> list[Discrepancy]:
    """The finished figures. On an accelerator this waits for them, once for each device."""
    finished = lambda part: part if isinstance(part, Discrepancy) else Discrepancy.from_floats(part)  # noqa: E731
    return chunks.resolved(pending, finished, Discrepancy.merge)


def _plain(x: Tensor, paired: bool = False) -> Tensor:
    """The tensor as strided real numbers or integers; `paired`: as pairs of a real and an imaginary part."""
    if x.is_nested:
        x = chunks.unnested(x.contiguous()).reshape(-1)  # transposed ones keep their values in the old order
    if x.layout is not torch.strided:
        x = x.to_dense()
    x = chunks.dequantized(x)
    if x.is_complex():
        return torch.view_as_real(x.resolve_conj())
    return torch.stack((x, torch.zeros_like(x)), dim=-1) if paired else x


_scratch = chunks.Scratch(CHUNK, count=2)


def by_operators(a: Tensor, b: Tensor) -> Apart:
    """The sums by PyTorch's operators."""
    error, product = (chunk[: a.numel()] for chunk in _scratch.chunks)
    of_a, of_b = (torch.mul(x, x, out=product).sum().item() for x in (a, b))
    torch.sub(a, b, out=error)
    low, high = (value.item() for value in torch.aminmax(error))
    if low == high == 0:
        return Apart(0.0, 0.0, 0.0, of_a, of_b)
    errors = torch.mul(error, error, out=product).sum().item()
    return Apart(abs(max(-low, high)), torch.abs(error, out=product).sum().item(), errors, of_a, of_b)


def _cpu_chunk(a: Tensor, b: Tensor) -> Discrepancy:
    """The discrepancy of a chunk, in float32 if that is precise enough, else in float64."""
    if not (a.dtype in _NARROW and b.dtype in _NARROW):
        return _exact_chunk(a, b)
    n = a.numel()
    sums = library.loaded.distance(a, b) if library.loaded else None
    sums = sums or by_operators(a.float(), b.float())
    trusted = math.isfinite(sums.total) and (sums.peak == 0.0 or chunks.TINY < sums.peak < chunks.HUGE)
    if not (trusted and _trusted(sums.of_a, a) and _trusted(sums.of_b, b)):
        return _exact_chunk(a, b)
    error, of_a, of_b = (math.sqrt(squares) for squares in sums[2:])
    return Discrepancy(n, sums.peak, sums.total / n, error, of_a, of_b, finite=n)


def _trusted(squares: float, x: Tensor) -> bool:
    """True for a float32 sum of squares that neither overflowed nor lost digits."""
    return 1e-24 < squares < 1e36 or (squares == 0.0 and not bool(x.any()))


def _difference(a: Tensor, b: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """a - b from their copies x and y in a wide dtype; for integers that it can't tell apart, the exact difference."""
    error = x - y
    if a.dtype is b.dtype is torch.int64:
        return torch.where(error.abs() < _FAR, (a - b).to(error.dtype), error)  # farther apart, int64 might overflow
    return error


def _exact_chunk(a: Tensor, b: Tensor) -> Discrepancy:
    """The discrepancy of a chunk in float64, over the elements that are finite in both."""
    x, y = a.double(), b.double()
    error = _difference(a, b, x, y)
    a, b = x, y
    nonfinite = 0
    n = a.numel()
    if not bool(torch.isfinite(error).all()):
        both = torch.isfinite(a) & torch.isfinite(b)
        same = (a == b) | (a.isnan() & b.isnan())
        nonfinite = int((~both & ~same).sum())
        a, b, error = a[both], b[both], error[both]
    if not error.numel():
        return Discrepancy(numel=n, nonfinite=nonfinite)
    size = error.abs()
    return Discrepancy(
        numel=n,
        max_abs=size.max().item(),
        mean_abs=(size / n).sum().item(),
        error_l2=_norm(error),
        a_l2=_norm(a),
        b_l2=_norm(b),
        nonfinite=nonfinite,
        finite=error.numel(),
    )


def _norm(x: Tensor) -> float:
    """The l2 norm; in units of the largest magnitude where squares leave float64's range."""
    squares = float((x * x).sum())
    if 1e-260 < squares < 1e300 or not bool(x.any()):
        return math.sqrt(squares)
    exponent = math.frexp(float(x.abs().max()))[1]
    return float(raised(math.sqrt(float((raised(x, -exponent) ** 2).sum())), exponent))


def _device_rows(a: Tensor, b: Tensor) -> Tensor:
    """The discrepancy of two chunks on their device, by KEYS: one row by Triton's kernels, else one for each piece.

    The latter come from PyTorch's operators, in float64; nothing is read back.
    """
    row = launch.discrepancy(a, b)
    if row is not None:
        return row[None]
    kind = launch.wide(a.device)
    scaled = torch.float64 in (a.dtype, b.dtype)  # squares of other dtypes stay in float64's range
    rows = []
    for pieces in zip(a.split(chunks.DEVICE_CHUNK), b.split(chunks.DEVICE_CHUNK), strict=True):
        x, y = (piece.to(kind) for piece in pieces)
        error = _difference(*pieces, x, y).abs()
        same = (x == y) | ((x != x) & (y != y))
        lost = ~(torch.isfinite(x) & torch.isfinite(y))
        x, y, error = (some.masked_fill(lost, 0.0) for some in (x, y, error))
        n = error.new_full((), x.numel())
        figures = {
            "numel": n,
            "max_abs": error.amax(),
            "mean_abs": (error / n).sum(),
            "error_l2": _device_norm(error, scaled),
            "a_l2": _device_norm(x, scaled),
            "b_l2": _device_norm(y, scaled),
            "nonfinite": (lost & ~same).sum(),
            "finite": n - lost.sum(),
        }
        rows.append(torch.stack([figures[key].to(kind) for key in KEYS]))
    return torch.stack(rows)


def _device_norm(x: Tensor, scaled: bool) -> Tensor:
    unit = chunks.unit_of(x) if scaled else 1.0
    return (x / unit).square().sum().sqrt() * unit


def decibels(signal: float, noise: float) -> float:
    """The ratio of two sums of squares in decibels; infinite without noise, and negative infinite if noise is."""
    if not noise:
        return math.inf
    return 10 * math.log10(signal / noise) if signal / noise else -math.inf
