"""Reports that were written with `--format json`, read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hookcli.errors import UsageError
from hookcli.report import SCHEMA, Report


def looks_saved(text: str) -> bool:
    """Whether an argument names a saved report rather than a model."""
    return text.endswith(".json") or (Path(text).is_file() and not text.endswith(".py"))


def read_reports(file: str) -> list[Report]:
    """The reports of a file. Raises UsageError where there is none, or it is damaged, empty or of a newer hookcli."""
    data = read_json(file, "a saved report", SCHEMA)
    try:
        reports = [Report.from_dict(item) for item in data["reports"]]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{file}: damaged, or not a report of hookcli ({_missing(error)})") from error
    if not reports:
        raise UsageError(f"{file}: holds no report")
    return reports


def read_json(file: str, what: str, newest: int) -> dict[str, Any]:
    """The JSON object in a file, of a schema that is known. Raises UsageError for any other."""
    try:
        data = json.loads(Path(file).read_text(encoding="utf-8"))
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


def _missing(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)
