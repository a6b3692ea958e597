"""What would be lost in half precision: float16 has a small range, bfloat16 few digits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from hookcli.checks.base import Check, Measurements, Threshold
from hookcli.report import Finding, Row, TensorStats
from hookcli.report.formatting import number
from hookcli.report.names import is_within

# A spread is of a few values only where there are many.
_ENOUGH = 16


def _worst(rows: Iterable[tuple[Row, float]]) -> tuple[Row, float, int] | None:
    """The row with the largest figure, the figure, and how many other rows there are."""
    found = list(rows)
    if not found:
        return None
    row, value = max(found, key=lambda pair: pair[1])
    return row, value, len({r.fqn for r, _ in found}) - 1


def _others(count: int) -> str:
    return f" (as in {count} more)" if count else ""


class Float16Overflow(Check):
    """A value comes close to the largest that float16 holds, 65504: beyond it everything is infinite.

    The run may be in float32: the check tells what --dtype float16 or torch.autocast would meet. The default is a
    quarter of 65504, since other data have other extremes; what overflowed already is infinite, and HK003 finds it.
    Gradients count as the loss here gives them: with loss scaling they are larger. Named is the first module (in the
    order of the run, parts before what contains them) that returns such a value, else a parameter, else a gradient; the
    figure is its largest magnitude. bfloat16 has the range of float32, so a run in it is not judged.
    """

    id = "HK016"
    name = "float16-overflow"
    means = "activations without normalization, or sums over many elements, outgrow float16"
    advice = "keep this module in float32 (autocast(enabled=False)), normalise before it, or use bfloat16"
    needs = ("activations", "inventory")
    threshold = Threshold("largest magnitude", 16376.0, 1.0, 65504.0)

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        assert measured.activations is not None and measured.inventory is not None and self.limit is not None
        if measured.dtype == "bfloat16":
            return
        groups = {
            "what it returns": _parts_first(self._large(measured.activations.rows)),
            "its value": self._large([row for row in measured.inventory.rows if row["kind"] == "parameter"]),
            "its gradient": self._large(measured.grads.rows if measured.grads else ()),
        }
        found = [(what, row) for what, rows in groups.items() for row in rows]
        if found:
            what, row = found[0]
            peaks = {other.fqn: _peak(other.stats) for _, other in found}
            peak, last = _peak(row.stats), max(peaks, key=peaks.__getitem__)
            more = f"; up to {number(peaks[last])} in {last or 'the model'}, {len(peaks)} places in all"
            said = f"{what} reaches {number(peak)}{more if peaks[last] > peak else _others(len(peaks) - 1)}"
            yield self.finding(row.fqn, f"{said}; float16 ends at 65504", peak)

    def _large(self, rows: Iterable[Row]) -> list[Row]:
        floats = [row for row in rows if row.stats and row.get("dtype", "").startswith(("float", "bf"))]
        return [row for row in floats if _peak(row.stats) >= (self.limit or 0)]


def _parts_first(rows: Sequence[Row]) -> list[Row]:
    """Rows in the order of entry, each after those that lie within it: as modules return."""
    names = [row.fqn for row in rows]
    inside = {name: sum(is_within(n, name) for n in names) for name in names}
    return [row for _, row in sorted(enumerate(rows), key=lambda item: (item[0] + inside[item[1].fqn], -item[0]))]


def _peak(stats: TensorStats | None) -> float:
    return max(abs(stats.min), abs(stats.max)) if stats and stats.finite else 0.0


class Float16Underflow(Check):
    """The gradient of a parameter is so small that it would be zero in float16, loss scaling or not.

    The figure is the root mean square of the gradient. float16 holds nothing below 6e-8 (2^-24); Micikevicius et al.
    2018 (arXiv:1710.03740, section 3.2) found most gradients of a detector there and introduced loss scaling, which
    torch.amp.GradScaler begins with a factor of 2^16. The default, 2^-40, is where even that does not help: a typical
    element is flushed to zero. For a run in float16 without scaling, give 6e-8. Gradients that are zero altogether are
    left to HK009. bfloat16 has the range of float32: a run in it is not judged.
    """

    id = "HK017"
    name = "float16-underflow"
    means = "gradients below what float16 can hold"
    advice = "use bfloat16 or float32, a larger scale (GradScaler(init_scale=...)), or see HK012"
    needs = ("grads",)
    threshold = Threshold("root mean square of a gradient; below is too small", 2.0**-40, 0.0, 1.0)

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        assert measured.grads is not None and self.limit is not None
        if measured.dtype == "bfloat16":
            return
        sized = [(r, r.stats.l2 / math.sqrt(r.stats.finite)) for r in measured.grads.rows if r.stats and r.stats.finite]
        found = _worst((row, -size) for row, size in sized if 0 < size < self.limit)
        if found:
            row, size, others = found
            yield self.finding(
                row.fqn, f"the typical element of its gradient is {number(-size)}{_others(others)}", -size
            )


class Bfloat16Rounding(Check):
    """The values of an activation are so far from zero, beside their spread, that bfloat16 can't tell them apart.

    bfloat16 keeps 8 significant bits, so numbers near m lie |m|/256 to |m|/128 apart. Where the mean is more than 1024
    times the standard deviation, the spread is below a quarter of that step, and nearly all values round to one
    number. The check tells of a float32 run what bfloat16 would lose; in a run that is in bfloat16 already it is lost.
    Freshly initialised torchvision models reach 911.
    """

    id = "HK018"
    name = "bfloat16-rounding"
    means = "a large constant offset (a bias, a coordinate, a time) carries a small signal"
    advice = "subtract the offset or normalise before, or keep this module in float32"
    needs = ("activations",)
    threshold = Threshold("magnitude of the mean over the standard deviation", 1024.0, 1.0)

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        assert measured.activations is not None
        found = _worst((row, ratio) for row in measured.activations.rows if (ratio := _offset(row)) > (self.limit or 0))
        if found:
            row, ratio, others = found
            yield self.finding(
                row.fqn, f"its mean is {number(ratio)} times its standard deviation{_others(others)}", ratio
            )


def _offset(row: Row) -> float:
    stats = row.stats
    spread = stats and stats.finite >= _ENOUGH and stats.std > 0 and row["dtype"].startswith(("float", "bfloat"))
    return abs(stats.mean) / stats.std if stats and spread else 0.0
