"""Files of reports: written whole or not at all; JSON files are read back and checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hookcli.errors import UsageError
from hookcli.report import SCHEMA, SEVERITIES, STATS_KEYS, Report
from hookcli.report.histogram import is_histogram
from hookcli.report.stats import COUNTS
from hookcli.system.files import is_file, is_pipe, replacing

_GREATEST = 2**63
_SHOWN = 40  # characters of a value in a message
_DEEPEST = 4  # lists within lists


def looks_saved(text: str) -> bool:
    """True for an argument that names a saved report rather than a model."""
    return text.endswith(".json") or ((is_file(text) or is_pipe(text)) and not text.endswith(".py"))


def read_reports(file: str, source: Path | None = None) -> list[Report]:
    """The reports in a file. Raises UsageError if it holds none, or is damaged, empty or of a newer hookcli.

    `source` is the file that holds the text, if not the one that messages name.
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
    """The JSON object in a file, of a known schema. Raises UsageError for anything else."""
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
    """Write a file completely or leave it as it was; devices and named pipes are written directly. Raises OSError."""
    with replacing(path) as scratch:
        scratch.write_bytes(text.encode("utf-8", "backslashreplace"))  # names of files and layers may be surrogates


def sound(report: Report) -> Report:
    """The report, after a check that its values have the types that their keys ask for; readers need not check again.

    Raises ValueError, which names the first value of another type.
    """
    require({"probe": report.probe, "model": report.model}, {"probe": is_text, "model": is_text})
    require({"grouping": report.grouping}, {"grouping": lambda value: value in _GROUPINGS})
    for what, values, fits in (("meta", report.meta, _META), ("totals", report.totals, _TOTALS)):
        require({what: values}, {what: is_mapping})
        require(values, fits, is_plain)
    for column in report.columns:
        require(asdict(column), _COLUMN)
    for item in report.skipped:
        require(asdict(item), _SKIPPED)
    for finding in report.findings:
        require(asdict(finding), _FINDING)
    named = [column.name for column in report.columns if column.name not in STATS_KEYS]
    counted = {column.name: optional(is_figure) for column in report.columns if column.unit}
    needed = {*(named if report.probe in _COMPLETE else ()), *_NEEDED.get(report.probe, ())}
    needed |= set(_STEPS if report.grouping == "steps" else ())
    for row in report.rows:
        flat = row.flat()
        require(flat, _ROW, is_plain)
        require({name: flat.get(name) for name in counted}, counted)
        if missing := needed - flat.keys():
            raise ValueError(f"a row has no {min(missing)!r}")
    return report


Fits = Callable[[Any], bool]


def require(values: Mapping[str, Any], fits: Mapping[str, Fits], otherwise: Fits | None = None) -> None:
    """Raises ValueError for a value that does not fit its key; keys that are not in `fits` must fit `otherwise`, if
    given.
    """
    for key, value in values.items():
        fit = fits.get(key, otherwise)
        if fit is not None and not fit(value):
            raise ValueError(f"{key} can't be {str(value)[:_SHOWN]!r}")


def is_text(value: Any) -> bool:
    """Text."""
    return isinstance(value, str)


def is_count(value: Any) -> bool:
    """True for a whole number from 0 that fits into 64 bits."""
    return type(value) is int and 0 <= value < _GREATEST


def is_figure(value: Any) -> bool:
    """A number."""
    return isinstance(value, float) or (type(value) is int and abs(value) < _GREATEST)


def is_mapping(value: Any) -> bool:
    """True for a JSON object."""
    return isinstance(value, Mapping)


def is_plain(value: Any, depth: int = 0) -> bool:
    """True for None, a flag, text, a number, or a list of these."""
    if isinstance(value, list):
        return depth < _DEEPEST and all(is_plain(item, depth + 1) for item in value)
    return value is None or isinstance(value, (bool, str)) or is_figure(value)


def optional(fits: Fits) -> Fits:
    """A condition that None meets, too."""
    return lambda value: value is None or fits(value)


def listed(fits: Fits) -> Fits:
    """A condition for a list whose items all meet the given one."""
    return lambda value: isinstance(value, (list, tuple)) and all(map(fits, value))


def _is_integer(value: Any) -> bool:
    return type(value) is int and abs(value) < _GREATEST


def _is_shape(value: Any) -> bool:
    """True for one shape or several."""
    return isinstance(value, list) and (all(map(_is_integer, value)) or all(map(_is_shape, value)))


def _is_hooks(value: Any) -> bool:
    """True for the totals of communication hooks over a step."""
    keys = {"buckets": is_count, "step": is_count, "bytes_before": is_count, "bytes_after": optional(is_count)}
    fits = keys | dict.fromkeys(("relative_l2", "cosine"), optional(is_figure))
    steps: list[Any] = list(value.values())
    return all(is_mapping(s) and s.keys() >= fits.keys() and all(fit(s[k]) for k, fit in fits.items()) for s in steps)


_GROUPINGS = ("nested", "disjoint", "events", "steps", "list")
_STEPS = ("step", "fqns")
_COMPLETE = ("shapes", "graph", "trace", "comm")  # probes whose rows have all columns
_NEEDED = {"updates": ("weight", "update"), "grads": STATS_KEYS, "activations": STATS_KEYS, "inputs": STATS_KEYS}
_COLUMN: Mapping[str, Fits] = {"name": is_text, "title": is_text, "unit": optional(is_text)}
_SKIPPED: Mapping[str, Fits] = dict.fromkeys(("fqn", "reason", "path"), is_text)
_FINDING: Mapping[str, Fits] = {
    **dict.fromkeys(("check", "severity", "fqn", "message", "hint"), is_text),
    **dict.fromkeys(("value", "threshold"), optional(is_figure)),
    "file": optional(is_text),
    "line": optional(is_count),
}
# Types of a row's values under these keys, if it has them.
_ROW: Mapping[str, Fits] = {
    **dict.fromkeys(
        (
            *("type", "kind", "path", "dtype", "name", "check", "severity", "message", "hint", "source", "note"),
            *(
                "optimizer",
                "change",
                "differs",
                "edited",
                "hook",
                "file",
                "figure",
                "module",
                "action",
                "rule",
                "needed_by",
            ),
        ),
        optional(is_text),
    ),
    "fqn": is_text,
    **dict.fromkeys(
        (
            *("call", "calls", "pass", "index", "depth", "params", "trainable", "macs", "order", "fired", "bytes"),
            *(
                "kept",
                "bytes_before",
                "bytes_after",
                "elements",
                "step",
                "forward",
                "forwards",
                "steps",
                "recorded_steps",
            ),
            *("no_grad_forwards", "parameters", "group", "grad_nan", "grad_inf", "merged", "line", "size", "bucket"),
        ),
        optional(is_count),
    ),
    "id": is_count,
    "next": listed(optional(is_count)),
    "fqns": listed(is_text),
    **dict.fromkeys(
        (
            *("us", "seconds", "loss", "first_loss", "cosine", "ratio", "weight", "update", "output_grad"),
            *("param_grad", "value", "threshold", "times", "error_l2", "error_max", "exact_l2", "after_l2"),
            *("relative_l2", "rel_l2", "max_abs", "mean_abs"),
            *("lr", "weight_decay", "momentum", "unclipped_grad", "forward_seconds", "backward_seconds"),
            *(f"{side}_{key}" for side in ("out", "before") for key in STATS_KEYS),
        ),
        optional(is_figure),
    ),
    **{key: is_count if key in COUNTS else is_figure for key in STATS_KEYS},
    **dict.fromkeys(
        ("shape", "input_shape", "output_shape", "in_shape", "out_shape", "grad_shape"), optional(_is_shape)
    ),
    "settings": is_mapping,
    "betas": optional(listed(is_figure)),
    "hist": is_histogram,
}
_META: Mapping[str, Fits] = {
    **dict.fromkeys(("dtype", "loss"), is_text),
    **dict.fromkeys(("input", "device", "mode", "phase", "error", "parallel"), optional(is_text)),
    "fail_on": lambda value: value in SEVERITIES,
    **dict.fromkeys(("seconds", "hookcli_seconds"), is_figure),
    **dict.fromkeys(("loss_value", "plain_seconds"), optional(is_figure)),
    **dict.fromkeys(("step", "forwards", "observed_forwards", "processes"), is_count),
    "forward": optional(is_count),
    **dict.fromkeys(("notes", "checks", "edits"), listed(is_text)),
    "losses": listed(is_figure),
    "rank": lambda value: value is None or is_count(value) or listed(is_count)(value),
    **dict.fromkeys(("a", "b", "ddp"), is_mapping),
}
_GROUP = (
    "optimizer",
    "group",
    "parameters",
    "lr",
    "weight_decay",
    "momentum",
    "betas",
    "param_grad",
    "weight",
    "ratio",
)
_TOTALS: Mapping[str, Fits] = {
    "groups": listed(lambda group: is_mapping(group) and all(key in group and _ROW[key](group[key]) for key in _GROUP)),
    **dict.fromkeys(
        (f"{part}_seconds" for part in ("data", "forward", "backward", "optimizer", "rest", "hookcli")), is_figure
    ),
    **dict.fromkeys(("unclipped_grad", "param_grad", "ratio"), is_figure),
    **dict.fromkeys(("resident_bytes", "peak_bytes"), is_count),
    **dict.fromkeys(("order", "verdict", "structure", "weights"), is_text),
    "hooks": lambda value: (is_mapping(value) and _is_hooks(value)) or is_figure(value),
    **dict.fromkeys(("errors", "warnings", "checks", "modules", "backward_us"), is_count),
    **dict.fromkeys(("macs", "kept_bytes", "param_bytes"), is_count),
}


def _missing(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)
