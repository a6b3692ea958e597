"""Compares two records of `hookcli run`, or two files of tensors, for `hookcli diff`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from hookcli.commands.diff_kinds import EXAMPLE, Asked, Side, require_model
from hookcli.commands.mistakes import ending_in_example
from hookcli.commands.model import matching
from hookcli.commands.options import DATA, RUNNING, Options
from hookcli.commands.output import Output, remark
from hookcli.commands.progress import Position, Progress, working
from hookcli.diff.rows import beyond
from hookcli.diff.tolerance import Tolerance
from hookcli.diff.weights.pairs import pair
from hookcli.diff.weights.report import WeightsDiff
from hookcli.errors import HookcliError, UsageError
from hookcli.record.file.comparison.record_diff import Narrowing, Wanted, diff_records
from hookcli.record.file.comparison.run_settings import record_remarks
from hookcli.record.file.ranks.ranked_record import folder_of, open_record
from hookcli.record.file.reading import Record
from hookcli.system.escaping import shell_path
from hookcli.system.files import exists, is_folder, is_pipe, opened
from hookcli.table import Report
from hookcli.table.columns.layouts import DIFF, FILES
from hookcli.table.columns.recorded import RECORD_DIFF, WHOLE_MODEL_DIFF
from hookcli.table.dump import is_dump
from hookcli.table.names import checked_filter
from hookcli.table.validation import HEADLINES
from hookcli.tensors.files.opening import holds_tensors, open_tensors

_RUNNING = {*RUNNING, *DATA, "fastpath", "edit", "ops", "type", "loss", "backward_vector"}
"""Options of models, and of runs."""


def is_record(text: str) -> bool:
    """True for the name of a record: a folder of ranks, or a file that begins with a line of one, or that such a folder
    stands in place of.
    """
    if is_folder(text):
        named = Path(text).name.endswith((".run", ".run.jsonl"))
        return (named and not is_dump(text)) or any(Path(text).glob("rank*.jsonl"))
    if text.endswith(".jsonl") or folder_of(Path(text)):
        return True
    if is_pipe(text):  # a look would take from it
        return False
    try:
        with opened(text) as file:
            return bytes(file.read(9)).startswith(b'{"line":')
    except OSError:
        return False


def example(typed: Sequence[str], otherwise: str) -> str:
    """A comparison that can be made of one of these sides, for messages; a record alone is shown."""
    for text in filter(is_record, typed):
        there = Path(text).parent.glob("*.run.jsonl") if exists(text) else ()
        other = next((str(path) for path in sorted(there) if path.name != Path(text).name), None)
        if exists(text):
            return (
                f"hookcli diff {shell_path(text)} {shell_path(other)}" if other else f"hookcli show {shell_path(text)}"
            )
    files = [text for text in typed if holds_tensors(text)]
    models = [text for text in typed if text not in files and not text.startswith("-")]
    if files and models:
        return shlex.join(["hookcli", "diff", models[0], f"{models[0]} --weights {shell_path(files[0])}"])
    return otherwise


def both_records(a: str, b: str) -> tuple[Record, Record]:
    """Open two records. Raises UsageError if one is none."""
    for label, text, other in (("A", a, b), ("B", b, a)):
        if not is_record(text):
            raise UsageError(f"{label} {text!r}: {other} is a record of hookcli run; compare it with another record")
    return open_record(a), open_record(b)


def records_compared(
    records: tuple[Record, Record], tolerance: Tolerance, narrow: Narrowing, options: Options
) -> list[Report]:
    """Which of two records is better, and where they diverge."""
    with Progress(options.quiet) as progress:
        progress.stage(f"comparing {' and '.join(str(record.path) for record in records)}")
        return diff_records(*records, tolerance, narrow)


class Records(Side):
    """Records of `hookcli run`: files, or folders of ranks."""

    what = "records"
    place = 0
    no_operators = "saved reports and records have operators if --ops measured them; leave it out"

    def fits(self, text: str) -> bool:
        return is_record(text)

    def compare(self, asked: Asked) -> int:
        """Write which of two records is better, and where they diverge."""
        a, b, options = asked.a, asked.b, asked.options
        output = Output(options)
        with ending_in_example(example((a, b), "")):
            records = both_records(a, b)
        reports = records_compared(records, asked.tolerance, narrowing(options), options)
        output.check_columns(list(dict.fromkeys((*RECORD_DIFF, *WHOLE_MODEL_DIFF, *DIFF))))
        output.write(reports, mixed=True)
        for report in reports if not output.for_people else ():
            for key in (*HEADLINES, "structure", "grew"):
                if report.grouping == "list" and key in report.totals:
                    remark(f"{report.model}: {report.totals[key]}" if key == "verdict" else report.totals[key], options)
        for text in record_remarks(*records):
            remark(text, options)
        return int(beyond(reports) or any(report.meta.get("different_models") for report in reports))


class Tensors(Side):
    """Files and folders of weights."""

    what = "files of tensors"
    place = 3

    def fits(self, text: str) -> bool:
        return holds_tensors(text)

    def why_no_model(self, text: str) -> str:
        """Say how to give a model these weights."""
        return f"weights belong to a model: give 'MODEL --weights {text}', or compare two files of weights"

    def compare(self, asked: Asked) -> int:
        """Write which tensors of two files differ."""
        a, b, options = asked.a, asked.b, asked.options
        with ending_in_example(example((a, b), EXAMPLE)):
            for label, text in (("A", a), ("B", b)) if not (self.fits(a) and self.fits(b)) else ():
                require_model(label, text)
        for name in sorted(asked.typed & _RUNNING):
            raise UsageError(f"--{name.replace('_', '-')}: is for models; both sides are files of tensors")
        output = Output(options)
        output.check_columns(FILES)
        with working(options, torch=False) as progress:
            progress.stage(f"opening {a} and {b}")
            left, right = open_tensors(a), open_tensors(b)
            chosen = matching([*left.tensors, *right.tensors], options.match)
            pairing = pair(left.tensors, right.tensors).among({x.name for x in chosen})
            comparison = WeightsDiff(left, right, pairing, asked.tolerance)
            try:
                comparison.compare(Position(progress, [y for _, y in pairing.pairs]))
            except (HookcliError, KeyboardInterrupt):
                output.salvage([comparison.report])
                raise
        report = comparison.report
        why = (
            "values of the tensors in common can't be read"
            if report.skipped
            else "the two sides have no tensor in common"
        )
        error = None if report.totals["compared"] else UsageError(f"nothing to compare: {why}")
        output.write([report], error=error)
        if not output.for_people:
            remark(str(report.totals["verdict"]), options)
        if error:
            raise error
        return int(beyond([report]))


def require_rows(wanted: Wanted, reports: Sequence[Report], options: Options) -> list[Report]:
    """Reduce reports to the wanted rows. Raises UsageError if there are none."""
    match, kind = options.match, options.type
    left = [replace(report, rows=[*filter(wanted, report.rows)]) for report in reports]
    if (match or kind) and not any(report.rows for report in left):
        raise UsageError(f"nothing to compare: no row matches --match {match!r} and --type {kind}")
    return left


def narrowing(options: Options) -> Narrowing:
    """Make the test of both sides' rows by --match and --type. Raises UsageError if one of these fits nothing."""

    def narrow(*sides: Iterable[Report]) -> Wanted:
        rows = (row for side in sides for report in side for row in report.rows)
        names = {row.fqn: row.get("type") or "" for row in rows}
        matches = checked_filter(options.match, options.type, names)
        return lambda row: (
            matches(row.fqn, row.get("type") or "") and (options.type is None or row.get("type") == options.type)
        )

    return narrow
