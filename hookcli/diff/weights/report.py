"""The report on two files or folders of tensors: which tensors differ, by how much, and in what way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hookcli.diff.origin import WEIGHT
from hookcli.diff.tensor_rows import MeasuredPair, apart_line, tensor_rows
from hookcli.diff.tolerance import Tolerance
from hookcli.diff.verdict import CHECK
from hookcli.diff.weights.pairs import Pairing, change_of_low_rank, distance, same_bytes
from hookcli.table import Finding, Kind, Report, Row, Skipped
from hookcli.table.columns import names
from hookcli.table.columns.layouts import FILES
from hookcli.table.formatting import counted, shape
from hookcli.table.meta import Meta
from hookcli.tensors.files.statistics import Told
from hookcli.tensors.files.stored import StoredTensor, TensorFile

_EQUAL = dict.fromkeys(names(c for c in FILES if c.kind == Kind.FIGURE), 0.0) | {"aside": True}


@dataclass
class WeightsDiff:
    """The comparison of two files or folders, which grows as tensors are read."""

    a: TensorFile
    b: TensorFile
    pairing: Pairing
    tolerance: Tolerance
    rows: list[Row] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    complete: bool = False

    def compare(self, begin: Callable[[StoredTensor], Told]) -> None:
        """Compare all pairs. `begin(name)` is called for each tensor and returns a callback for the bytes read."""
        for x, y in self.pairing.pairs:
            self._compare(x, y, begin(y))
        for tensors, change, side in ((self.pairing.removed, "removed", "A"), (self.pairing.added, "added", "B")):
            alone = {"change": change, "differs": f"only in {side}", "beyond": True}
            self.rows += [Row(_place(x) | alone) for x in tensors]
        self.complete = True

    def _compare(self, x: StoredTensor, y: StoredTensor, tell: Told) -> None:
        values = _place(x) | {"dtype": " → ".join(dict.fromkeys((x.dtype, y.dtype)))}
        values |= {"change": f"renamed: {y.name}"} if x.name != y.name else {}
        if x.shape != y.shape:
            message = f"shape {shape(list(x.shape))} → {shape(list(y.shape))}"
            self.rows.append(Row({**values, "differs": message, "beyond": True}))
        elif unreadable := x.unreadable or y.unreadable:
            self.skipped.append(Skipped(x.name, unreadable))
        elif same_bytes(x, y):
            tell(y.nbytes)
            renamed_alone = x.name != y.name and not self.pairing.prefix
            self.rows.append(Row({**values, **_EQUAL, "aside": not renamed_alone}))
        else:
            discrepancy = distance(x, y, tell)
            (row,) = tensor_rows([MeasuredPair(values, discrepancy, (x.dtype, y.dtype))], self.tolerance)
            low = change_of_low_rank(x, y, discrepancy)
            figures = {"change_rank": low.rank if low else None, "rank_share": low.share if low else None}
            self.rows.append(Row({**row.values, **figures}))

    @property
    def report(self) -> Report:
        """The report of what was compared so far."""
        beyond = [row for row in self.rows if row.get("beyond")]
        differ = [row for row in self.rows if row.get("times") or row.get("beyond")]
        whole: Meta = {} if self.complete else {"complete": False}
        notes = [*dict.fromkeys([*self.a.notes, *self.b.notes])]
        if ranks := [row["change_rank"] for row in self.rows if row.get("change_rank")]:
            least, most = min(ranks), max(ranks)
            rank = f"{least}" if least == most else f"{least} to {most}"
            notes.append(f"{counted(len(ranks), 'change')} of low rank ({rank}), as merged LoRA adapters make")
        return Report(
            "diff",
            f"{self.a.name} → {self.b.name}",
            FILES,
            self.rows,
            {
                "rtol": self.tolerance.rtol,
                "atol": self.tolerance.atol,
                **whole,
                "notes": notes,
                "a": {"format": self.a.format},
                "b": {"format": self.b.format},
            },
            self._totals(beyond) | {"verdict": self._verdict(differ, beyond)},
            self.skipped,
            _findings(beyond),
            grouping="disjoint",
        )

    def _totals(self, beyond: Sequence[Row]) -> dict[str, Any]:
        pairing = self.pairing
        sides = {"removed": len(pairing.removed), "added": len(pairing.added)}
        compared = len(self.rows) - sum(sides.values()) * self.complete
        counts = {"compared": compared, "beyond": len(beyond), **{key: n for key, n in sides.items() if n}}
        if pairing.prefix:
            side = "A" if pairing.prefix.startswith("-") else "B"
            return counts | {
                "structure": f"names differ by the prefix {pairing.prefix.lstrip('-')!r}, which only {side} has"
            }
        renamed = sum(x.name != y.name for x, y in pairing.pairs)
        return counts | ({"renamed": renamed} if renamed else {})

    def _verdict(self, differ: Sequence[Row], beyond: Sequence[Row]) -> str:
        pairing = self.pairing
        changed = [row for row in differ if row.get("change") not in ("removed", "added")]
        compared = len(self.rows) - len(differ) + len(changed)
        if not compared:
            unread = f"the values of {counted(len(self.skipped), 'tensor')} can't be read"
            return f"Nothing compared: {unread if self.skipped else 'no tensor has a counterpart'}"
        line = apart_line(changed, counted(compared, "tensor"), alone=bool(beyond))
        if not changed:
            converted = any(x.dtype != y.dtype for x, y in pairing.pairs)
            same = "equal in every value" if converted else "identical, bit for bit"
            line = f"{counted(compared, 'tensor')} compared: {same}"
        sides = ((len(pairing.removed), "only in A"), (len(pairing.added), "only in B"))
        alone = [f"{counted(n, 'tensor')} {what}" for n, what in sides if n]
        return f"{line}; {', '.join(alone)}" if alone else line


def _place(tensor: StoredTensor) -> dict[str, Any]:
    return {"fqn": tensor.name, "kind": WEIGHT, "shape": list(tensor.shape), "dtype": tensor.dtype}


def _findings(beyond: Sequence[Row]) -> list[Finding]:
    """An error at the tensor that is furthest beyond tolerance, which counts the others."""
    if not beyond:
        return []
    worst = max(beyond, key=lambda row: row.get("times") or 0.0)
    others = f"; {len(beyond) - 1} more beyond tolerance" if beyond[1:] else ""
    message = f"{worst.fqn}: {worst['differs']}{others}"
    return [Finding(CHECK, "error", worst.fqn, message, worst.get("times"), 1.0)]
