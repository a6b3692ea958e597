"""Compares two records of `hookcli run`."""

from __future__ import annotations

from pathlib import Path

from hookcli.commands.options import Options
from hookcli.commands.output import Output, remark
from hookcli.commands.progress import Progress
from hookcli.diff.rows import beyond
from hookcli.diff.tolerance import Tolerance
from hookcli.errors import UsageError
from hookcli.record.file.comparison.different_models import DIFFERENT
from hookcli.record.file.comparison.record_diff import Narrowing, diff_records
from hookcli.record.file.comparison.remarks import record_remarks
from hookcli.record.file.ranks.ranked_record import open_record
from hookcli.system.files import is_folder, is_pipe, opened
from hookcli.table.columns.layouts import DIFF, RECORD_DIFF, WHOLE_MODEL_DIFF
from hookcli.table.dump import is_dump


def is_record(text: str) -> bool:
    """True for the name of a record: a folder of ranks, or a file that begins with a line of one."""
    if is_folder(text):
        return (text.rstrip("/").endswith(".run") and not is_dump(text)) or any(Path(text).glob("rank*.jsonl"))
    if text.endswith(".jsonl"):
        return True
    if is_pipe(text):  # a look would take from it
        return False
    try:
        with opened(text) as file:
            return bytes(file.read(9)).startswith(b'{"line":')
    except OSError:
        return False


def compare_records(a: str, b: str, tolerance: Tolerance, narrow: Narrowing, options: Options) -> int:
    """Write where two records diverge. Returns 1 if anything is beyond tolerance. Raises UsageError."""
    require_records(a, b)
    output = Output(options)
    with Progress(options.quiet) as progress:
        progress.stage(f"comparing {a} and {b}")
        records = open_record(a), open_record(b)
        reports = diff_records(*records, tolerance, narrow)
    output.check_columns(list(dict.fromkeys((*RECORD_DIFF, *WHOLE_MODEL_DIFF, *DIFF))))
    for text in record_remarks(*records):
        remark(text, options)
    output.write(reports, mixed=True)
    for report in reports if not output.for_people else ():
        for key in ("settings", "structure", "verdict", "grew"):
            if report.grouping == "list" and key in report.totals:
                remark(f"{report.model}: {report.totals[key]}" if key == "verdict" else report.totals[key], options)
    return int(beyond(reports) or any(report.meta.get(DIFFERENT) for report in reports))


def require_records(a: str, b: str) -> None:
    """Raise UsageError if one of two sides is no record."""
    for label, text, other in (("A", a, b), ("B", b, a)):
        if not is_record(text):
            raise UsageError(f"{label} {text!r}: {other} is a record of hookcli run; compare it with another record")
