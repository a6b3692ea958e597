"""Files of reports: written whole or not at all, and read back where they are JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookcli.errors import UsageError
from hookcli.files import is_file, is_pipe, replacing
from hookcli.report import SCHEMA, STATS_KEYS, Report

# What a row has under these keys, where it has them.
_TEXTS = ("fqn", "type", "kind", "path", "dtype")
_COUNTS = ("numel", "zeros", "nan", "inf", "call", "pass", "index", "depth", "params", "trainable", "macs")
_GREATEST = 2**63
_SHOWN = 40  # characters of a value in a message


def looks_saved(text: str) -> bool:
    """Whether an argument names a saved report rather than a model."""
    return text.endswith(".json") or ((is_file(text) or is_pipe(text)) and not text.endswith(".py"))


def read_reports(file: str, source: Path | None = None) -> list[Report]:
    """The reports of a file. Raises UsageError where there is none, or it is damaged, empty or of a newer hookcli.

    `source` is where its text is, if not in the file that messages name.
    """
    data = read_json(file, "a saved report", SCHEMA, source)
    try:
        reports = [sound(Report.from_dict(item)) for item in data["reports"]]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{file}: damaged, or not a report of hookcli ({_missing(error)})") from error
    if not reports:
        raise UsageError(f"{file}: holds no report")
    return reports


def read_json(file: str, what: str, newest: int, source: Path | None = None) -> dict[str, Any]:
    """The JSON object in a file, of a schema that is known. Raises UsageError for any other."""
    try:
        data = json.loads((source or Path(file)).read_text(encoding="utf-8"))
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


def write_whole(path: Path, text: str) -> None:
    """Write a file that is complete or as it was before; a device or a named pipe as it comes. Raises OSError."""
    with replacing(path) as scratch:
        scratch.write_bytes(text.encode("utf-8", "backslashreplace"))  # names of files and layers may be surrogates


def sound(report: Report) -> Report:
    """The report, whose values are of the kinds that their keys say: what compares it need not look again.

    Raises ValueError, which names the first value that isn't.
    """
    whole = (report.probe, report.model, report.grouping)
    _require(all(isinstance(word, str) for word in whole), "probe, model and grouping", whole)
    _require(isinstance(report.meta, Mapping), "meta", report.meta)
    _require(isinstance(report.totals, Mapping), "totals", report.totals)
    for key in ("dtype", "loss"):
        _require(isinstance(report.meta.get(key, ""), str), key, report.meta.get(key))
    for column in report.columns:
        _require(isinstance(column.name, str) and isinstance(column.title, str), "column", column.name)
    for item in report.skipped:
        _require(all(isinstance(word, str) for word in (item.fqn, item.reason, item.path)), "skipped", item)
    for row in report.rows:
        for key, value in row.flat().items():
            _require(_fits(key, value), key, value)
    return report


def _require(fits: bool, what: str, value: Any) -> None:
    if not fits:
        raise ValueError(f"{what} can't be {str(value)[:_SHOWN]!r}")


def _fits(key: str, value: Any) -> bool:
    if key == "settings":
        return isinstance(value, Mapping)
    if value is None:
        return key != "fqn" and key not in STATS_KEYS
    if key in _TEXTS:
        return isinstance(value, str)
    if key in _COUNTS:
        return _is_integer(value) and value >= 0
    if key in STATS_KEYS:
        return isinstance(value, float) or _is_integer(value)
    return _is_shape(value) if key.endswith("shape") else True


def _is_integer(value: Any) -> bool:
    return type(value) is int and abs(value) < _GREATEST


def _is_shape(value: Any) -> bool:
    """Sizes, or several shapes."""
    return isinstance(value, list) and (all(map(_is_integer, value)) or all(map(_is_shape, value)))


def _missing(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)
