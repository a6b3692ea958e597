"""Baselines: the reports of a model at a time when it was known to work, in a small file to keep in the repository.

The file has a line per row, sorted keys, figures rounded to six digits and no times, so that a diff of two versions
shows what changed in the model.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from hookcli.diff.changes import Change, changes
from hookcli.diff.tolerance import Tolerance
from hookcli.errors import UsageError, unknown
from hookcli.system.escaping import visible_json
from hookcli.system.files import exists
from hookcli.table import STATS_KEYS, Kind, Report, Row, columns_named, relaxed, strict
from hookcli.table.columns import TEXTS, names
from hookcli.table.files import read_json, sound, write_whole
from hookcli.table.meta import only

SCHEMA = 1
_WHAT = "a baseline of hookcli"
# Entries of `meta` that a run must share with its baseline, those compared only if both have them (inputs given by a
# program have neither), and those that may differ with a note.
_SAME = ("input", "mode", "dtype", "edits")
_IF_KNOWN = ("fill", "seed")
_OF_GRADIENTS = ("loss", "backward_vector")
_NOTED = ("torch", "torchvision", "device")
_DIGITS = 6
_LEFT_OUT_IF_ZERO = ("nan", "inf")


@dataclass(frozen=True)
class Baseline:
    """The reports of one model's run, as far as a baseline keeps them; `run` describes the run."""

    model: str
    run: Mapping[str, Any]
    reports: Sequence[Report]

    @classmethod
    def of(cls, reports: Sequence[Report], meta: Mapping[str, Any]) -> Baseline:
        """A baseline of the reports of one run, which `meta` describes."""
        keys = sorted((*_SAME, *_IF_KNOWN, *_OF_GRADIENTS, *_NOTED))
        run = {key: _bare(key, meta[key]) for key in keys if meta.get(key) is not None}
        return cls(reports[0].model, run, [_kept(report) for report in reports])

    def changes(self, reports: Sequence[Report], tolerance: Tolerance | None = None) -> list[Change]:
        """The differences between a run and the baseline. Check `require_same_run` first."""
        return changes({r.probe: r for r in self.reports}, {r.probe: r for r in reports}, tolerance)

    def require_same_run(self, meta: Mapping[str, Any]) -> None:
        """Raises UsageError if the run that `meta` describes can't be compared: another input, mode, dtype ..."""
        differentiated = all(any(run.get(key) for key in _OF_GRADIENTS) for run in (self.run, meta))
        in_both = [key for key in _IF_KNOWN if key in self.run and key in meta]
        if other := _other(self.run, meta, (*_SAME, *in_both, *(_OF_GRADIENTS if differentiated else ()))):
            message = f"the baseline of {self.model} was made by a different run: {', '.join(other)}"
            raise UsageError(f"{message}; repeat that run, or --save a new baseline")

    def notes(self, reports: Sequence[Report], meta: Mapping[str, Any]) -> list[str]:
        """Remarks on a comparison: another version or device, and measurements that only one side has."""
        elsewhere = _other(self.run, meta, _NOTED)
        notes = [f"the baseline comes from another environment: {', '.join(elsewhere)}"] if elsewhere else []
        if untold := [key for key in _IF_KNOWN if (key in self.run) != (key in meta)]:
            notes.append(f"only one of the runs tells its {' and '.join(untold)}: were both given the same values?")
        ours, theirs = ({report.probe for report in side} for side in (reports, self.reports))
        notes += [f"the baseline has no {probe}" for probe in sorted(ours - theirs)]
        notes += [f"{probe} of the baseline were not measured now" for probe in sorted(theirs - ours)]
        return notes + _other_figures(self.reports, reports)


def _other_figures(then: Iterable[Report], now: Iterable[Report]) -> list[str]:
    """Notes on the figures that only the baseline or only the run has, which another version of hookcli measured."""
    then, now = ([report for report in side if any(row.stats for row in report.rows)] for side in (then, now))
    if not then or not now:
        return []
    lacking = [key for key in STATS_KEYS if not any(key in report.statistics for report in then)]
    new, old = ({*chain.from_iterable(row.values for report in side for row in report.rows)} for side in (now, then))
    unknown_here = ", ".join(sorted(old - new))
    notes = [f"the baseline has no {', '.join(lacking)}; --save adds it"] if lacking else []
    return notes + ([f"the baseline has {unknown_here}, unknown here"] if unknown_here else [])


def text_of(baselines: Iterable[Baseline]) -> str:
    """Write baselines as the text of a file."""
    zeros = ("call", "pass", *_LEFT_OUT_IF_ZERO)
    models = []
    for baseline in sorted(baselines, key=lambda baseline: baseline.model):
        name = json.dumps(baseline.model, ensure_ascii=False)
        run = ",\n".join(f"   {_json(key)}: {_json(value)}" for key, value in sorted(baseline.run.items()))
        parts = [f'  "run": {{\n{run}\n  }}']
        for report in sorted(baseline.reports, key=lambda report: report.probe):
            rows = []
            for row in report.rows:
                # Without values that say nothing: an empty path, the first call, no NaN and no Inf.
                filled = {key: value for key, value in row.flat().items() if key == "fqn" or value not in (None, "")}
                lean = {key: value for key, value in filled.items() if value != 0 or key not in zeros}
                first = [key for key in ("fqn", "type") if key in lean]
                rows.append(f"   {_json({key: lean[key] for key in (*first, *sorted(lean.keys() - set(first)))})}")
            parts.append(f"  {_json(report.probe)}: [\n" + ",\n".join(rows) + "\n  ]")
        models.append(f" {name}: {{\n" + ",\n".join(parts) + "\n }")
    text = ",\n".join(models)
    return visible_json(f'{{"schema": {SCHEMA}, "kind": "baseline", "models": {{\n{text}\n}}}}\n')


def write_baselines(file: str, baselines: Iterable[Baseline]) -> None:
    """Write the file, whole or not at all. Raises UsageError if that fails."""
    try:
        write_whole(Path(file), text_of(baselines))
    except OSError as error:
        raise UsageError(f"{file}: can't be written ({error.strerror})") from error


def add_baselines(file: str, baselines: Sequence[Baseline]) -> None:
    """Add baselines to a file; baselines of the same models are replaced, and others stay."""
    there = read_baselines(file).models if exists(file) else {}
    write_baselines(file, ({**there} | {baseline.model: baseline for baseline in baselines}).values())


@dataclass(frozen=True)
class Baselines:
    """The baselines in a file, by model."""

    file: str
    models: Mapping[str, Baseline]

    def of(self, model: str) -> Baseline:
        """Return the baseline of a model. Raises UsageError if the file has none."""
        if model not in self.models:
            has = f"it has {', '.join(sorted(self.models)) or 'none'}"
            message = unknown("model", model, self.models, see=has)
            raise UsageError(f"{self.file}: no baseline of this model: {message}; --save adds one")
        return self.models[model]


def read_baselines(file: str) -> Baselines:
    """Read a file of baselines. Raises UsageError if it is missing, damaged, newer or another kind of file."""
    data = read_json(file, _WHAT, SCHEMA)
    if data.get("kind") != "baseline":
        what = "a saved report: `hookcli diff` compares these" if "reports" in data else "something else"
        raise UsageError(f"{file}: not {_WHAT} but {what}")
    try:
        return Baselines(file, {model: _read(model, relaxed(saved, TEXTS)) for model, saved in data["models"].items()})
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise UsageError(f"{file}: damaged: {type(error).__name__}: {error}; save it anew") from error


def _other(then: Mapping[str, Any], now: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    """The differences between two runs, in words. Compared as JSON has them: without tuples."""
    pairs = [(key, *(strict(_bare(key, run.get(key))) for run in (then, now))) for key in keys]
    return [f"{key} {a} → {b}" for key, a, b in pairs if a != b]


def _bare(key: str, value: Any) -> Any:
    """The value to compare: of an input only its shapes, without its source or its model's own dtype."""
    return re.sub(r":\w+| \(its example\)$", "", value) if key == "input" and isinstance(value, str) else value


def _kept(report: Report) -> Report:
    meta = only(report.meta, "dtype")
    words = (Kind.ANY, Kind.TEXT, Kind.NAMES, Kind.SOURCE)
    # Numbers that say nothing of the model: the order of calls, and what follows from other columns.
    left_out = names(c for c in report.known_columns() if not (c.compared or c.identity) and c.kind not in words)
    flat = [{k: _rounded(v) for k, v in report.flat(row).items() if k not in left_out} for row in report.rows]
    rows = [Row.from_flat(values, report.statistics) for values in flat]
    return Report(report.probe, report.model, _COLUMNS, rows, meta, dict(report.totals), statistics=report.statistics)


_COLUMNS = columns_named("fqn")


def _rounded(value: Any) -> Any:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) and math.isfinite(value) else value


def _json(value: Any) -> str:
    return json.dumps(strict(value), ensure_ascii=False, allow_nan=False)


def _read(model: str, saved: Mapping[str, Any]) -> Baseline:
    run = dict(saved["run"])
    reports = [_report(probe, model, rows, run) for probe, rows in saved.items() if probe != "run"]
    return Baseline(model, run, reports)


def _report(probe: str, model: str, rows: Sequence[Mapping[str, Any]], run: Mapping[str, Any]) -> Report:
    """Restore a report from the rows that `text_of` wrote. A statistic that none of them has was not measured."""
    keys = set(_LEFT_OUT_IF_ZERO).union(*rows)
    statistics = tuple(key for key in STATS_KEYS if key in keys)
    zeros = dict.fromkeys(_LEFT_OUT_IF_ZERO, 0)
    restored = [Row.from_flat({**zeros, **row}, statistics) if "numel" in row else Row(dict(row)) for row in rows]
    return sound(Report(probe, model, _COLUMNS, restored, {"dtype": run["dtype"]}, statistics=statistics))
