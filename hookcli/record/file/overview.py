"""A window at a glance: activations, gradients and updates of each module, in one row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from hookcli.record.file.record import Window
from hookcli.report import Column, Report, Row
from hookcli.report.norms import gathered, norm, ratio

COLUMNS = (
    Column("fqn", "Layer"),
    Column("type", "Type"),
    Column("calls", "Calls"),
    Column("path", "Path"),
    Column("shape", "Shape"),
    Column("dtype", "Dtype"),
    Column("mean", "Mean"),
    Column("std", "Std"),
    Column("zeros", "Zeros", "elements"),
    Column("nan", "NaN", "elements"),
    Column("inf", "Inf", "elements"),
    Column("output_grad", "Output grad"),
    Column("param_grad", "Param grad"),
    Column("grad_nan", "NaN in gradients", "elements"),
    Column("grad_inf", "Inf in gradients", "elements"),
    Column("weight", "Weight"),
    Column("update", "Update"),
    Column("ratio", "|dw|/|w|"),
)
JOINED = ("activations", "grads", "updates")


@dataclass
class _Module:
    """What the reports of a window say of a module: an activation and an output's gradient per path, its parameters."""

    type: str | None = None
    outputs: dict[str, Row] = field(default_factory=dict)
    grads: dict[str, Row] = field(default_factory=dict)
    param_grads: list[Row] = field(default_factory=list)
    updates: list[Row] = field(default_factory=list)


def overview(window: Window) -> Report:
    """The window's reports "activations", "grads" and "updates" as one, a row per module and tensor that it returned.

    Statistics are those of what the module returned; `output_grad` is the L2 norm of that tensor's gradient. On the
    first row of a module stand `param_grad`, the L2 norm of the gradients of its own parameters, without those of its
    parts, and the norms of their `weight` and `update`, whose quotient is `ratio`; folding merges them exactly.
    `grad_nan` and `grad_inf` count in all its gradients.
    """
    modules = _modules(window.reports)
    rows = [row for fqn, module in modules.items() for row in _rows(fqn, module)]
    joined = [report for report in window.reports if report.probe in JOINED]
    skipped = list(dict.fromkeys(item for report in joined for item in report.skipped))
    whole = gathered(rows)
    totals = {name: whole[name] for name in ("param_grad", "ratio") if whole[name] is not None}
    return Report("run", window.model, COLUMNS, rows, meta(window), totals, skipped)


def of_probe(window: Window, probe: str) -> list[Report]:
    """A window's report as it was recorded, with what is known of its step; none where there was no such probe."""
    return [replace(r, meta={**r.meta, **meta(window)}) for r in window.reports if r.probe == probe]


def findings(window: Window) -> list[Report]:
    """What checks said of a step, where it was judged."""
    return of_probe(window, "check")


def meta(window: Window) -> dict[str, Any]:
    """What the reports of a window have in common, as meta of a report; figures of its step that are known."""
    ran = {key: r.meta[key] for r in window.reports for key in ("device", "dtype") if key in r.meta}
    found = ran | {
        "complete": window.complete,
        "phase": window.phase,
        "step": window.step,
        "forward": window.forward,
        "forwards": window.forwards,
        "watched": window.watched,
        "losses": list(window.losses),
        "plain_seconds": window.plain_seconds,
        "notes": list(window.notes),
    }
    return found | ({"seconds": window.seconds} if window.seconds is not None else {})


def _modules(reports: Iterable[Report]) -> dict[str, _Module]:
    """By fqn, in the order in which they ran; what did not run by itself comes behind its siblings."""
    found: dict[str, _Module] = {}
    late: dict[str, _Module] = {}

    def of(fqn: str, row: Row) -> _Module:
        module = found.get(fqn) or late.setdefault(fqn, _Module())
        module.type = module.type or row.get("type")
        return module

    by_probe = {report.probe: report for report in reports}
    for row in by_probe["activations"].rows if "activations" in by_probe else ():
        found.setdefault(row.fqn, _Module(row.get("type"))).outputs[row.get("path", "")] = row
    for row in by_probe["updates"].rows if "updates" in by_probe else ():
        of(_owner(row), row).updates.append(row)
    for row in by_probe["grads"].rows if "grads" in by_probe else ():
        if row.get("kind") == "parameter":
            of(_owner(row), row).param_grads.append(row)
        else:
            of(row.fqn, row).grads[row.get("path", "")] = row
    return _in_place(found, late)


def _owner(row: Row) -> str:
    return row.fqn.rpartition(".")[0]


def _in_place(found: dict[str, _Module], late: dict[str, _Module]) -> dict[str, _Module]:
    """Each late module behind the last that lies in the same container, containers before what lies in them."""
    names = list(found)
    for fqn in sorted(late, key=lambda name: name.count(".") if name else -1):
        owner = fqn.rpartition(".")[0]
        beside = [i for i, name in enumerate(names) if name == owner or not owner or name.startswith(f"{owner}.")]
        inside = [i for i, name in enumerate(names) if not fqn or name.startswith(f"{fqn}.")]
        names.insert(inside[0] if inside else beside[-1] + 1 if beside else len(names), fqn)
    every = found | late
    return {name: every[name] for name in names}


def _rows(fqn: str, module: _Module) -> list[Row]:
    paths = list(dict.fromkeys((*module.outputs, *module.grads))) or [""]
    return [_row(fqn, module, path, first=path == paths[0]) for path in paths]


def _row(fqn: str, module: _Module, path: str, *, first: bool) -> Row:
    output, grad = module.outputs.get(path), module.grads.get(path)
    said = output or grad
    values = {name: said.get(name) if said else None for name in ("calls", "shape", "dtype")}
    gradients = [row for row in ([grad] if grad else []) + (module.param_grads if first else []) if row.stats]
    counts = {f"grad_{name}": sum(row[name] for row in gradients) if gradients else None for name in ("nan", "inf")}
    own = _own(module) if first else dict.fromkeys(("param_grad", "weight", "update", "ratio"))
    return Row(
        {"fqn": fqn, "type": module.type, "path": path, **values}
        | {"output_grad": grad.get("l2") if grad else None, **own, **counts},
        output.stats if output else None,
    )


def _own(module: _Module) -> dict[str, float | None]:
    grads = [row["l2"] for row in module.param_grads]
    weight, update = ([row[name] for row in module.updates] for name in ("weight", "update"))
    found = {name: norm(parts) if parts else None for name, parts in (("weight", weight), ("update", update))}
    return {"param_grad": norm(grads) if grads else None, **found, "ratio": ratio(found["update"], found["weight"])}
