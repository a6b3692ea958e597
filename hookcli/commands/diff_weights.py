"""Compares files or folders of tensors for `hookcli diff`."""

from __future__ import annotations

from dataclasses import replace

from hookcli.commands.options import Options
from hookcli.commands.output import Output, remark
from hookcli.commands.progress import working
from hookcli.commands.reading import Position, matching
from hookcli.diff.rows import beyond
from hookcli.diff.tolerance import Tolerance
from hookcli.diff.weights.pairing import pair
from hookcli.diff.weights.report import WeightsDiff
from hookcli.errors import HookcliError, UsageError
from hookcli.table.columns.layouts import FILES
from hookcli.tensors.files.opening import open_tensors


def compare_weights(a: str, b: str, tolerance: Tolerance, options: Options) -> int:
    """Write which tensors of two files differ. Returns 1 if anything is beyond tolerance. Raises UsageError."""
    output = Output(options)
    output.check_columns(FILES)
    with working(options) as progress:
        progress.stage(f"opening {a} and {b}")
        left, right = open_tensors(a), open_tensors(b)
        pairing = pair(left.tensors, right.tensors)
        kept = {x.name for x in matching([*left.tensors, *right.tensors], options.match)}
        pairing = replace(
            pairing,
            pairs=[(x, y) for x, y in pairing.pairs if kept & {x.name, y.name}],
            removed=[x for x in pairing.removed if x.name in kept],
            added=[y for y in pairing.added if y.name in kept],
        )
        found = WeightsDiff(left, right, pairing, tolerance)
        try:
            found.compare(Position(progress, [y for _, y in pairing.pairs]))
        except (HookcliError, KeyboardInterrupt):
            output.salvage([found.report])
            raise
    report = found.report
    output.write([report])
    if not output.for_people:
        remark(str(report.totals["verdict"]), options)
    if not report.totals["compared"]:
        why = (
            "values of the tensors in common can't be read"
            if report.skipped
            else "the two sides have no tensor in common"
        )
        raise UsageError(f"nothing to compare: {why}")
    return int(beyond([report]))
