"""What became of one module or parameter, window after window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hookcli.record.file.overview import overview
from hookcli.record.file.record import Window
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


def series(windows: Iterable[Window], fqn: str) -> list[Report]:
    """A report per model and phase, a row per window, of a module or parameter; "" is the model itself. None of those
    in which nothing was measured of it.

    `loss` is the model's alone, the sum over the step's calls of `backward`. Norms over parameters are those of all
    within the module. Statistics are those of the first tensor that it returned.
    """
    found: dict[tuple[str, str], list[Row]] = {}
    for window in windows:
        found.setdefault((window.model, window.phase), []).append(_row(window, fqn))
    return [_report(model, phase, fqn, rows) for (model, phase), rows in found.items() if any(map(_says, rows))]


def needed(fqn: str) -> Callable[[Mapping[str, Any]], bool]:
    """Whether `series` needs a row, as JSON has it: its own, and those of all parameters within."""

    def keep(row: Mapping[str, Any]) -> bool:
        name = row["fqn"]
        of_parameter = row.get("kind") == "parameter" or "update" in row
        return bool(name == fqn or (of_parameter and (not fqn or name.startswith(f"{fqn}."))))

    return keep


def names(window: Window) -> set[str]:
    """Every module, container and parameter that the window knows."""
    return {name for report in window.reports for row in report.rows for name in _owners(row.fqn)} - {""}


def titled(model: str, fqn: str) -> str:
    """Net: body.0; Net for the model itself."""
    return f"{model}: {fqn}" if fqn else model


def spoken(phase: str) -> str:
    """no grad for no_grad."""
    return phase.replace("_", " ")


def _says(row: Row) -> bool:
    return row.stats is not None or any(row.get(column.name) is not None for column in _FIGURES)


def _report(model: str, phase: str, fqn: str, rows: Sequence[Row]) -> Report:
    said = {"mode": spoken(phase)}
    always = ("step", "forward")  # by which a reporter of charts knows such a report
    columns = [c for c in COLUMNS if c.name in always or any(row.get(c.name) is not None for row in rows)]
    return Report("over-time", titled(model, fqn), columns, rows, said, {"windows": len(rows)}, grouping="list")


def _row(window: Window, fqn: str) -> Row:
    report = overview(window)
    parameters = {row.fqn: row for row in _of_parameters(window)}
    values: dict[str, Any] = {"step": window.step, "forward": window.forward, "seconds": window.seconds}
    values["loss"] = window.loss if not fqn else None
    if fqn in parameters:
        return Row({**values, **parameters[fqn].values})
    within = [row for row in report.rows if not fqn or row.fqn == fqn or row.fqn.startswith(f"{fqn}.")]
    own = next((row for row in within if row.fqn == fqn), None)
    values |= {"fqn": fqn, "output_grad": own.get("output_grad") if own else None, **gathered(within)}
    return Row(values, own.stats if own else None)


def _owners(fqn: str) -> Iterator[str]:
    """The name and those of all containers of it, which need not have run by themselves."""
    parts = fqn.split(".")
    return (".".join(parts[:n]) for n in range(1, len(parts) + 1))


def _of_parameters(window: Window) -> Iterator[Row]:
    """A row per parameter, with what its gradient and its update were."""
    values: dict[str, dict[str, Any]] = {}
    for report in window.reports:
        for row in report.rows:
            if report.probe == "grads" and row.get("kind") == "parameter":
                values.setdefault(row.fqn, {}).update(_gradient(row))
            elif report.probe == "updates":
                values.setdefault(row.fqn, {}).update({key: row.get(key) for key in ("weight", "update", "ratio")})
    return (Row({"fqn": fqn, **found}) for fqn, found in values.items())


def _gradient(row: Row) -> Mapping[str, Any]:
    return {"param_grad": row["l2"], "grad_nan": row["nan"], "grad_inf": row["inf"]}
