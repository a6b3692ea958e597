"""Files of reports: written whole or not at all; JSON files are read back and checked."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hookcli.errors import UsageError
from hookcli.registry.capability import file_source
from hookcli.system.files import content, is_file, is_pipe, replacing
from hookcli.table import SCHEMA, STATS_KEYS, Report
from hookcli.table.column import Kind
from hookcli.table.columns import DECLARED
from hookcli.table.validation import (
    COLUMN,
    COMPLETE,
    FINDING,
    META,
    NEEDED,
    OF_GROUPING,
    REPORT,
    ROW,
    SKIPPED,
    TOTALS,
    fits,
    is_figure,
    is_plain,
    optional,
    require,
)


def looks_saved(text: str) -> bool:
    """True for an argument that names a saved report rather than a model."""
    is_model = text.endswith((".py", ".pt2")) or file_source(text)
    return text.endswith(".json") or ((is_file(text) or is_pipe(text)) and not is_model)


def read_reports(file: str, source: Path | None = None) -> list[Report]:
    """The reports in a file. Raises UsageError if it holds none, or is damaged, empty or of a newer hookcli.

    `source` is the file that holds the text, if not the one that messages name.
    """
    data = read_json(file, "a saved report", SCHEMA, source)
    try:
        reports = [sound(Report.from_dict(item)) for item in data["reports"]]
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise UsageError(f"{file}: damaged, or not a report of hookcli ({reason(error)})") from error
    if not reports:
        raise UsageError(f"{file}: holds no report")
    return reports


def unfamiliar(file: str, reports: Iterable[Report]) -> str | None:
    """One line on the statistics in which a file's reports and this version of hookcli differ; None if in none."""
    measured = [r for r in reports if NEEDED.get(r.probe) is STATS_KEYS and r.grouping == "nested"]
    lacking = {key: None for report in measured for key in STATS_KEYS if key not in report.statistics}
    unknown = {column.name: None for report in measured for column in report.columns if column.name not in ROW}
    parts = [f"has {', '.join(unknown)}, which this version of hookcli does not know"] if unknown else []
    parts += (
        [f"has no {', '.join(lacking)} (saved by another version of hookcli, or with --columns)"] if lacking else []
    )
    return f"{file}: {'; '.join(parts)}" if parts else None


def read_json(file: str, what: str, newest: int, source: Path | None = None) -> dict[str, Any]:
    """The JSON object in a file, of a known schema. Raises UsageError for anything else."""
    try:
        text = content(source or file).decode("utf-8")
        if not text.strip():
            raise UsageError(f"{file}: is empty, not {what}")
        data = json.loads(text)
    except OSError as error:
        raise UsageError(f"{file}: can't be read as {what} ({error.strerror})") from error
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise UsageError(f"{file}: damaged, or not {what}: not JSON ({error})") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, int):
        raise UsageError(f"{file}: not {what}: it has no schema number (hookcli writes them with --format json)")
    if schema > newest:
        raise UsageError(f"{file}: schema {schema} is of a newer hookcli; this one knows {newest}: upgrade it")
    return dict(data)


def write_whole(path: Path, text: str, *, output: bool = True) -> None:
    """Write a file completely or leave it as it was; devices and named pipes are written directly. Raises OSError.

    An `output` of the command is not written after an interrupt.
    """
    with replacing(path, output=output) as scratch:
        scratch.write_bytes(text.encode("utf-8", "backslashreplace"))  # names of files and layers may be surrogates


def sound(report: Report) -> Report:
    """The report, after a check that its values have the types that their keys ask for; readers need not check again.

    Raises ValueError, which names the first value of another type.
    """
    require({name: getattr(report, name) for name in REPORT}, REPORT)
    require(report.meta, META, is_plain)
    require(report.totals, TOTALS, is_plain)
    for items, tests in ((report.columns, COLUMN), (report.skipped, SKIPPED), (report.findings, FINDING)):
        for item in items:
            require({name: getattr(item, name) for name in tests}, tests)
    needed = keys_of_rows(report)
    own = {c.name: optional(is_figure) if c.unit else fits(c) for c in report.columns if c is not DECLARED.get(c.name)}
    of_row = {**ROW, **own}
    counted = {column.name: optional(is_figure) for column in report.columns if column.unit}
    for row in report.rows:
        flat = report.flat(row)
        require(flat, of_row, is_plain)
        require(flat, counted)
        if missing := needed - flat.keys():
            raise ValueError(f"a row has no {min(missing)!r}")
    return report


def keys_of_rows(report: Report) -> set[str]:
    """The keys that each row of a report must have."""
    needed = {*NEEDED.get(report.probe, ()), *OF_GROUPING.get(report.grouping, ())}
    if report.probe in COMPLETE or report.grouping == "moments":
        operators_alone = {column.name for column in report.columns if column.kind is Kind.SOURCE}
        needed |= {column.name for column in report.columns} - {*STATS_KEYS} - operators_alone
    return needed - set(STATS_KEYS).difference(report.statistics)


def reason(error: Exception) -> str:
    """Why a JSON document can't be read, in words."""
    return f"no {error}" if isinstance(error, KeyError) else str(error)
