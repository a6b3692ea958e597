"""The history of one module or parameter over the recorded steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hookcli.record.file.overview import overview
from hookcli.record.file.record import RecordedStep
from hookcli.report import STATS_COLUMNS, Column, Report, Row
from hookcli.report.norms import gathered

_WHEN = (Column("step", "Step"), Column("forward", "Forward"), Column("seconds", "Time", "seconds"))
_FIGURES = (
    Column("loss", "Loss"),
    Column("std", "Std of the output"),
    Column("output_grad", "L2 of the output's gradient"),
    Column("param_grad", "L2 of the parameters' gradients"),
    Column("ratio", "|dw|/|w|"),
    Column("weight", "L2 of the weights"),
)
_COUNTED = (*(c for c in STATS_COLUMNS if c.name in ("mean", "zeros", "nan", "inf")),)
_IN_GRADIENTS = (
    Column("grad_nan", "NaN in gradients", "elements"),
    Column("grad_inf", "Inf in gradients", "elements"),
)
COLUMNS = (*_WHEN, *_FIGURES, *_COUNTED, *_IN_GRADIENTS)


def over_time(steps: Iterable[RecordedStep], fqn: str) -> list[Report]:
    """A report per model and phase, with a row per step of a module or parameter; "" is the model itself.

    Only the model itself has a `loss`, the sum over the step's calls of `backward`. Norms cover all parameters within
    the module; statistics are those of the first tensor that it returned. Models without any figure get no report.
    """
    found: dict[tuple[str, str], list[Row]] = {}
    for step in steps:
        found.setdefault((step.model, step.phase), []).append(_row(step, fqn))
    return [_report(model, phase, fqn, rows) for (model, phase), rows in found.items() if any(map(_has_figures, rows))]


def needed(fqn: str) -> Callable[[Mapping[str, Any]], bool]:
    """A test for rows in JSON: whether `over_time` needs them, as the module's own or those of parameters within."""

    def keep(row: Mapping[str, Any]) -> bool:
        name = row["fqn"]
        of_parameter = row.get("kind") == "parameter" or "update" in row
        return bool(name == fqn or (of_parameter and (not fqn or name.startswith(f"{fqn}."))))

    return keep


def report_title(model: str, fqn: str) -> str:
    """Net: body.0; Net for the model itself."""
    return f"{model}: {fqn}" if fqn else model


def spoken(phase: str) -> str:
    """The phase in words: "no grad" for "no_grad"."""
    return phase.replace("_", " ")


def _has_figures(row: Row) -> bool:
    return row.stats is not None or any(row.get(column.name) is not None for column in _FIGURES)


def _report(model: str, phase: str, fqn: str, rows: Sequence[Row]) -> Report:
    said = {"mode": spoken(phase)}
    always = ("step", "forward")  # the chart reporter needs them
    columns = [c for c in COLUMNS if c.name in always or any(row.get(c.name) is not None for row in rows)]
    return Report(
        "over-time", report_title(model, fqn), columns, rows, said, {"recorded_steps": len(rows)}, grouping="list"
    )


def _row(step: RecordedStep, fqn: str) -> Row:
    report = overview(step)
    parameters = {row.fqn: row for row in _parameter_rows(step)}
    values: dict[str, Any] = {"step": step.step, "forward": step.forward, "seconds": step.seconds}
    values["loss"] = step.loss if not fqn else None
    if fqn in parameters:
        return Row({**values, **parameters[fqn].values})
    within = [row for row in report.rows if not fqn or row.fqn == fqn or row.fqn.startswith(f"{fqn}.")]
    own = next((row for row in within if row.fqn == fqn), None)
    values |= {"fqn": fqn, "output_grad": own.get("output_grad") if own else None, **gathered(within)}
    return Row(values, own.stats if own else None)


def _parameter_rows(step: RecordedStep) -> Iterator[Row]:
    """A row per parameter, with its gradient and its update."""
    values: dict[str, dict[str, Any]] = {}
    for report in step.reports:
        for row in report.rows:
            if report.probe == "grads" and row.get("kind") == "parameter":
                gradient = {"param_grad": row["l2"], "grad_nan": row["nan"], "grad_inf": row["inf"]}
                values.setdefault(row.fqn, {}).update(gradient)
            elif report.probe == "updates":
                values.setdefault(row.fqn, {}).update({key: row.get(key) for key in ("weight", "update", "ratio")})
    return (Row({"fqn": fqn, **found}) for fqn, found in values.items())
