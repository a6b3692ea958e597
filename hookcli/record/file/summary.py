"""What a run comes to, on a screen: which models ran, what each looked like last, and how to see more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hookcli.record.file.overview import findings, overview
from hookcli.record.file.record import Bad, End, Header, Window
from hookcli.registry import load
from hookcli.report import Column, Report, Row, formatting
from hookcli.report.grouping import View, fitting_depth, group_rows
from hookcli.system.escaping import shell_path, shell_word, visible

_MODELS = 10  # in the table of models
_SHOWN = 3  # of which the modules are shown
_ROWS = 14  # of a model
_MODEL_COLUMNS = (
    Column("name", "Model"),
    Column("parameters", "Params"),
    Column("steps", "Steps"),
    Column("forwards", "Forwards"),
    Column("no_grad_forwards", "No grad"),
    Column("windows", "Windows"),
    Column("first_loss", "First loss"),
    Column("loss", "Loss seen last"),
    Column("seconds", "Plain step"),
)


def summary(
    header: Header,
    end: End,
    latest: Mapping[tuple[str, str], Window],
    bad: Sequence[Bad],
    path: str | Path | None,
    width: int | None,
    color: bool,
    first_losses: Mapping[str, float] = MappingProxyType({}),
) -> str:
    """The text that ends a run, for a terminal of this `width` (None: no terminal).

    `latest` is the last window of each model and phase, `first_losses` the first loss of each model, as far as known;
    `path` is the record as a person would name it, None where none was kept.
    """
    view = View(depth=math.inf, width=width, color=color)
    models = sorted(end.models, key=lambda model: -model["windows"])  # the sort is stable: else as they came
    parts = [visible(ran_line(header, end, path))]
    if not models or path is None:
        return "\n".join([*parts, *map(visible, end.notes or [_nothing(end)]), ""])
    shown = [window for model in models[:_SHOWN] for window in _last(model["model"], latest)]
    parts += ["", _rendered([_table(models, latest, first_losses)], view)]
    parts += [_rendered([condensed(overview(window)) for window in shown], view)] if shown else []
    found = [report for window in shown for report in findings(window)]
    parts += [_rendered(found, view)] if found else []
    parts += [f"… and {len(models) - _MODELS} more models"] if models[_MODELS:] else []
    unseen = [window for window in latest.values() if window not in shown]
    said = [*(bad_line(one) for one in bad[:1]), *_notes(end, unseen), *_further(shown, path)]
    return "\n".join([*parts, *map(visible, said), ""])


def _last(name: str, latest: Mapping[tuple[str, str], Window]) -> list[Window]:
    """The model's last window of training; where it was not trained, of any phase."""
    own = [window for (model, _), window in latest.items() if model == name]
    return [window for window in own if window.phase == "train"] or own[-1:]


def ran_line(header: Header, end: End | None, path: str | Path | None) -> str:
    """train.py: 300 steps of 2 models in 41.2 s, exit code 0; 8 windows in train.run.jsonl"""
    if end is None:
        return f"{header.name}, started {header.started}: no end is recorded; it still runs, or was killed"
    windows = sum(model["windows"] for model in end.models)
    steps = end.program_steps
    if steps is None:  # the models of an older record may have made the same ones
        steps = max((model["steps"] for model in end.models), default=0)
    forwards = sum(model["forwards"] + model["no_grad_forwards"] for model in end.models)
    did = formatting.counted(steps, "step") if steps else formatting.counted(forwards, "forward")
    of = f"{did} of {formatting.counted(len(end.models), 'model')} in " if end.models else ""
    ended = f"{end.error} (exit code {end.exit_code})" if end.error else f"exit code {end.exit_code}"
    kept = f"{formatting.counted(windows, 'window')} in {path}" if path else "no record is kept"
    return f"{header.name}: {of}{formatting.clock(end.seconds)}, {ended}; {kept}"


def _nothing(end: End) -> str:
    why = f" ({'; '.join(end.notes)})" if end.notes else ""
    if end.others:
        return f"no module with parameters was called, so there is nothing to see{why}; without: {_called(end.others)}"
    return f"no module was called, so there is nothing to see{why}"


def _called(others: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count:,})" for name, count in others.items())


def _table(
    models: Sequence[Mapping[str, Any]], latest: Mapping[tuple[str, str], Window], first_losses: Mapping[str, float]
) -> Report:
    """A row per model: what it did, and where its loss went."""
    rows = [_model_row(m, latest.get((m["model"], "train")), first_losses) for m in models[:_MODELS]]
    return Report("models", "", _MODEL_COLUMNS, rows, grouping="list")


def _model_row(model: Mapping[str, Any], window: Window | None, first_losses: Mapping[str, float]) -> Row:
    name = model["model"]
    losses = {"first_loss": first_losses.get(name), "loss": window.loss if window else None}
    return Row({**model, **losses, "name": name, "seconds": window.plain_seconds if window else None})


def condensed(report: Report) -> Report:
    """As deep as fits in a few lines; of what doesn't even so, the first and the last rows. Norms that `ratio` is of
    are left out."""
    report = replace(report, columns=[column for column in report.columns if column.name not in ("weight", "update")])
    report = group_rows(report, fitting_depth(report, _ROWS))
    left_out = len(report.rows) - _ROWS
    if left_out <= 0:
        return report
    half = _ROWS // 2
    said = Row({"fqn": f"… {left_out} more …"})
    return replace(report, rows=[*report.rows[:half], said, *report.rows[-half:]])


def _rendered(reports: Sequence[Report], view: View) -> str:
    text: str = load("reporters", "table")().render(reports, view)
    return text


def bad_line(bad: Bad) -> str:
    """first NaN: 12 in the output of layer1.relu (Net, step 3)"""
    found = [f"{count:,} {what}" for count, what in ((bad.nan, "NaN"), (bad.inf, "Inf")) if count]
    phase = "" if bad.phase == "train" else f", {bad.phase}"
    where = f"{bad.what} of {bad.fqn or 'the model'}" if bad.what != "loss" else "loss"
    cause = f"; {bad.cause}" if bad.cause else ""
    place = f"{bad.model}, step {bad.step:,}{phase}"
    return f"first that is not finite: {' and '.join(found)} in the {where} ({place}){cause}"


def _notes(end: End, windows: Iterable[Window]) -> list[str]:
    said = [*end.notes, *(f"{m['model']}: {note}" for m in end.models for note in m.get("notes", ()))]
    said += [f"{window.model}: {note}" for window in windows for note in window.notes]
    said += [f"called by themselves: {_called(end.others)}"] if end.others else []
    return list(dict.fromkeys(said))


def _further(shown: Sequence[Window], path: str | Path) -> list[str]:
    """How to see more, with the module whose weights change most as the example."""
    command = f"hookcli show {shell_path(path)}"
    rows = [row for window in shown for row in overview(window).rows if row.fqn]
    known = [row for row in rows if math.isfinite(row.get("ratio") or math.nan)]
    example = max(known, key=lambda row: row["ratio"]) if known else rows[-1] if rows else None
    over_time = [f"over time: {command} --over-time {shell_word(example.fqn)}"] if example else []
    return [f"see more: {command}", *over_time]
