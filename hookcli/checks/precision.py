"""HK016 to HK018: values that half precision would lose; float16 has a small range, bfloat16 few digits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from hookcli.checks.base import Check, Threshold, of_kind
from hookcli.checks.blocks import blocks
from hookcli.checks.measurements import ReadsActivations, ReadsInventory, ReadsValues
from hookcli.table import Finding, Report, Row
from hookcli.table.formatting import number
from hookcli.table.names import is_operator, is_within, owner_of

# A standard deviation means little for fewer values.
_ENOUGH = 16
_SMALLEST = 2.0**-24  # above zero in float16
_ROUNDING = 2.0**-20  # a few times the precision of float32


def _more(rows: Iterable[Row]) -> str:
    """A remark on the number of modules besides the one that a finding names."""
    count = len({row.fqn for row in rows}) - 1
    return f" (as in {count} more)" if count else ""


class _ReadsWhatHasValues(ReadsActivations, ReadsInventory, Protocol):
    grads: Report | None


class Float16Overflow(Check):
    """A value comes close to the largest number in float16, 65504; anything larger becomes infinite.

    The run may be in float32: the check predicts what --dtype float16 or torch.autocast would meet. The default limit
    is a quarter of 65504, since other data have other extremes; values that did overflow are infinite and are found by
    HK003. Gradients are judged without loss scaling, which makes them larger. The finding names the first module (in
    the order of the run, parts before their containers) that returns such a value, else a parameter, else a gradient;
    the figure is the largest magnitude. What programs write into masked places (-1e9, or a dtype's lowest number) does
    not count, and of operators only positive values do: masks of attention are far below zero. bfloat16 has the range
    of float32, so a run in bfloat16 is not judged.
    """

    id = "HK016"
    name = "float16-overflow"
    over_steps = "largest"
    means = "activations without normalization, or sums over many elements, exceed the range of float16"
    advice = "keep it in float32 (autocast(enabled=False)), or use bfloat16"
    follows = ("HK015", "HK055")
    look = "activations --hist --sort -outside_float16"
    needs = ("activations", "inventory")
    threshold = Threshold("largest magnitude", 16376.0, 1.0, 65504.0)

    def judge(self, measured: _ReadsWhatHasValues) -> Iterator[Finding]:
        assert self.limit is not None
        if measured.dtype == "bfloat16":
            return
        outputs = self._large(measured.activations.rows)
        inside = {one.fqn: sum(is_within(row.fqn, one.fqn) for row in outputs) for one in outputs}
        # In the order in which modules return: each after its parts.
        in_order = sorted(enumerate(outputs), key=lambda item: (item[0] + inside[item[1].fqn], -item[0]))
        groups = {
            "its output": [row for _, row in in_order],
            "its value": self._large(of_kind(measured.inventory, "parameter")),
            "its gradient": self._large(measured.grads.rows if measured.grads else ()),
        }
        large = [(what, row) for what, rows in groups.items() for row in rows]
        if large:
            what, row = large[0]
            peaks = {other.fqn: _peak(other) for _, other in large}
            peak, last = _peak(row), max(peaks, key=peaks.__getitem__)
            more = f"; up to {number(peaks[last])} in {last or 'the model'}, {len(peaks)} places in all"
            reach = f"{what} reaches {number(peak)}{more if peaks[last] > peak else _more(row for _, row in large)}"
            yield self.finding(row.fqn, f"{reach}; the largest float16 number is 65504", peak)

    def _large(self, rows: Iterable[Row]) -> list[Row]:
        floats = [row for row in rows if row.stats and row.get("dtype", "").startswith(("float", "bf"))]
        return [row for row in floats if _peak(row) >= (self.limit or 0)]


def _peak(row: Row) -> float:
    if not row.stats or not row.stats.finite or row.stats.filled:
        return 0.0
    return row.stats.max if is_operator(row.fqn) else max(abs(row.stats.min), abs(row.stats.max))


class Float16Underflow(Check):
    """A value is so small that it would be zero in float16: the output of a block, or, even with loss scaling, the
    gradient of a parameter.

    The figure is the root mean square. float16 has no numbers below 6e-8 (2^-24). A block's output below that is
    reported, since nothing scales activations; HK014 explains what counts as a block. Branches inside of blocks are not
    judged: those that begin near zero, as with LayerScale, are added to large values. Of gradients, Micikevicius et al.
    2018 (arXiv:1710.03740, section 3.2) found most of a detector's below 6e-8 and introduced loss scaling, which
    torch.amp.GradScaler starts with a factor of 2^16. Below the threshold's default, 2^-40, even that does not help: a
    typical element becomes zero. For a run in float16 without scaling, use 6e-8. Gradients that are entirely zero are
    reported by HK009; gradients that are zero but for rounding, such as of the keys' bias in attention, are left out.
    bfloat16 has the range of float32, so a run in bfloat16 is not judged, nor is one in float64.
    """

    id = "HK017"
    name = "float16-underflow"
    means = "activations or gradients below what float16 can hold"
    advice = "use bfloat16 or float32, or GradScaler with a larger init_scale"
    follows = ("HK012", "HK010", "HK014")
    look = "grads --hist --sort -outside_float16"
    needs = ("grads", "activations")
    threshold = Threshold("root mean square of a gradient; smaller is reported", 2.0**-40, 0.0, 1.0)

    def judge(self, measured: ReadsValues) -> Iterator[Finding]:
        assert self.limit is not None
        if measured.dtype in ("bfloat16", "float64"):
            return
        small = [row for row in blocks(measured.activations) if _rms(row) < _SMALLEST]
        if small:
            size = _rms(small[0])
            message = f"the root mean square of its output is {number(size)}{_more(small)}"
            finding = self.finding(small[0].fqn, f"{message}; the smallest float16 number is {_SMALLEST:.0e}", size)
            yield replace(finding, threshold=_SMALLEST)
        largest: dict[str, float] = {}
        for row in measured.grads.rows:
            owner = owner_of(row.fqn)
            largest[owner] = max(largest.get(owner, 0.0), _rms(row))
        lost = [row for row in measured.grads.rows if 0 < _rms(row) < self.limit]
        # Gradients that are tiny next to others of their module are zero but for rounding.
        lost = [row for row in lost if _rms(row) > _ROUNDING * largest[owner_of(row.fqn)]]
        if lost:
            row = min(lost, key=_rms)
            message = f"the root mean square of its gradient is {number(_rms(row))}{_more(lost)}"
            yield self.finding(row.fqn, message, _rms(row))


def _rms(row: Row) -> float:
    return row.stats.rms if row.stats else 0.0


class Bfloat16Rounding(Check):
    """The values of an activation are so far from zero, compared with their spread, that bfloat16 can't tell them
    apart.

    bfloat16 keeps 8 significant bits, so neighbouring numbers near m are |m|/256 to |m|/128 apart. If the mean is more
    than 1024 times the standard deviation, the spread is below a quarter of that step, and nearly all values round to
    one number. For a float32 run the check predicts what bfloat16 would lose; a run in bfloat16 has already lost it.
    Freshly initialised torchvision models reach 911.
    """

    id = "HK018"
    name = "bfloat16-rounding"
    means = "a large constant offset (a bias, a coordinate, a time) carries a small signal"
    advice = "subtract the offset, normalise before, or keep this in float32"
    follows = ("HK011",)
    look = "activations"
    needs = ("activations",)
    threshold = Threshold("magnitude of the mean over the standard deviation", 1024.0, 1.0)

    def judge(self, measured: ReadsActivations) -> Iterator[Finding]:
        far = [row for row in measured.activations.rows if _offset(row) > (self.limit or 0)]
        if far:
            row = max(far, key=_offset)
            message = f"its mean is {number(_offset(row))} times its standard deviation{_more(far)}"
            yield self.finding(row.fqn, message, _offset(row))


def _offset(row: Row) -> float:
    stats = row.stats
    spread = stats and stats.finite >= _ENOUGH and stats.std > 0 and row["dtype"].startswith(("float", "bfloat"))
    return abs(stats.mean) / stats.std if stats and spread else 0.0
