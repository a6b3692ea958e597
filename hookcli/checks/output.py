"""HK021 and HK027: the model differs from the output that was expected, or from its saved baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from hookcli.checks.base import ERROR, Check, of_kind
from hookcli.checks.measurements import Expected, ReadsActivations, ReadsInventory
from hookcli.diff.baseline import Baseline
from hookcli.diff.tolerance import Tolerance
from hookcli.table import Finding, Report, Row, formatting


class _ReadsOutputs(ReadsInventory, Protocol):
    expected: Sequence[Expected]


class UnexpectedOutput(Check):
    """The model's output differs from --expect-output: in its shapes, its dtypes or the number of tensors.

    `*x1000` accepts any batch size; `*x1000:float32` also checks the dtype. Expectations apply to the tensors of a
    nested output in their order; with a path, as in `out=*x21x224x224`, to the tensor of that name. The output of the
    run is judged: in training mode some models return more than in eval mode (--eval checks that output instead).
    """

    id = "HK021"
    name = "unexpected-output"
    severity = ERROR
    means = "a changed head, stride or cast"
    advice = "`hookcli shapes MODEL` shows where the shape comes from"
    look = "shapes"
    needs = ("inventory", "expected")
    asked_by = "--expect-output"
    whole = True
    values = False

    def judge(self, measured: _ReadsOutputs) -> Iterator[Finding]:
        rows = of_kind(measured.inventory, "output")
        unnamed = [expected for expected in measured.expected if expected.path is None]
        if unnamed and len(unnamed) != len(rows):
            returned = ", ".join(map(_described, rows)) or "no tensor"
            yield self.finding("", f"returned {returned}, expected {', '.join(map(str, unnamed))}", len(rows))
            return
        by_path = {_plain(row["path"]): row for row in rows}
        pairs: list[tuple[Expected, Row | None]] = [*zip(unnamed, rows, strict=False)]
        pairs += [(one, by_path.get(_plain(one.path))) for one in measured.expected if one.path is not None]
        for expected, row in pairs:
            if row is None:
                paths = ", ".join(by_path) or "none with a path"
                yield self.finding("", f"returned no tensor {expected.path!r}; available: {paths}")
            elif not expected.takes(row["shape"], row["dtype"]):
                yield self.finding("", f"returned {_described(row)}, expected {expected}")


def _plain(path: str) -> str:
    """A path without brackets and quotes: `["out"]`, `.out` and `out` are the same."""
    return path.replace('["', ".").replace('"]', "").replace("[", ".").replace("]", "").strip(".")


def _described(row: Row) -> str:
    path = _plain(row["path"])
    return (f"{path}=" if path else "") + f"{formatting.shape(row['shape'])}:{row['dtype']}"


class _RunLikeTheBaselines(ReadsActivations, Protocol):
    shapes: Report
    baseline: Baseline
    settings: Report | None
    grads: Report | None
    tolerance: Tolerance


class Changed(Check):
    """The model differs from its baseline: the file that was saved with --save and is given with --against.

    Settings (such as the momentum of a normalization), shapes, types, dtypes, parameters and MACs of every layer are
    compared exactly. Statistics of activations and gradients are compared within --rtol and --atol, which limit by norm
    how far the elements may have moved [3.5e-4 for float32, ten times that for gradients]. Every layer that was changed
    is reported. Differences in shapes and statistics that follow from such a change are only counted; without one, the
    first that moved is reported, and the figure is how many times its tolerance it moved. A baseline of another input,
    seed, mode or dtype is refused; one of another version of torch is compared, with a note.
    """

    id = "HK027"
    name = "changed"
    severity = ERROR
    means = "a changed layer, initialisation or setting, or a lost gradient"
    advice = "undo it or, if it is intended, save a new baseline (--save)"
    needs = ("shapes", "activations", "baseline")
    asked_by = "--against"
    whole = True

    def judge(self, measured: _RunLikeTheBaselines) -> Iterator[Finding]:
        reports = filter(None, (measured.settings, measured.shapes, measured.activations, measured.grads))
        for change in measured.baseline.changes([*reports], measured.tolerance):
            limit = None if change.excess is None else 1.0
            yield replace(self.finding(change.fqn, change.message, change.excess), threshold=limit)
