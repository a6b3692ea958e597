"""A recorded step at a glance: activations, gradients and updates of each module in one row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hookcli.record.file.record_lines import NonFinite, RecordedStep
from hookcli.table import Column, Reason, Report, Row
from hookcli.table.columns.costs import TIMES
from hookcli.table.columns.layouts import with_operators
from hookcli.table.norms import gathered, norm, ratio
from hookcli.table.times import NAMES

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
    """The rows of a module or operator in a step's reports: outputs and their gradients by path, and its parameters'.

    `source`: the line that called an operator. `summed`: ranks hold summands of some of its parameters' gradients,
    whose norms are unknown.
    """

    type: str | None = None
    source: str | None = None
    outputs: dict[str, Row] = field(default_factory=dict)
    grads: dict[str, Row] = field(default_factory=dict)
    param_grads: list[Row] = field(default_factory=list)
    updates: list[Row] = field(default_factory=list)
    tied: list[str] = field(default_factory=list)
    summed: bool = False


def overview(step: RecordedStep) -> Report:
    """Join the reports "activations", "grads" and "updates": a row per module and tensor that it returned.

    Statistics are those of the returned tensor; `output_grad` is the L2 norm of its gradient. The first row of a module
    also has the L2 norms of its own parameters, without those of its parts: `param_grad` of their gradients, `weight`,
    `update`, and `ratio` of the last two; grouping merges them exactly. `grad_nan` and `grad_inf` count over all its
    gradients. The columns of times are those that were measured, over all calls of the module. `note` says to
    what a tied parameter of the module is tied.
    """
    modules = _modules(step.reports)
    joined = [report for report in step.reports if report.probe in JOINED]
    skipped = list(dict.fromkeys(item for report in joined for item in report.skipped))
    for item in skipped:
        owner, _, name = item.fqn.rpartition(".")
        if item.kind == Reason.TIED and owner in modules:
            modules[owner].tied.append(f"{name} {item.reason}")
        if item.kind == Reason.SUMMED and owner in modules:
            modules[owner].summed = True
    rows = [row for fqn, module in modules.items() for row in _rows(fqn, module)]
    whole = gathered(rows)
    if any(module.summed for module in modules.values()):
        whole["param_grad"] = None
    totals = {name: whole[name] for name in ("param_grad", "ratio") if whole[name] is not None}
    times = _times(step)
    names = list(next(iter(times.values()), ()))
    rows = [replace(row, values={**row.values, **times.pop(row.fqn, dict.fromkeys(names))}) for row in rows]
    columns = with_operators(COLUMNS) if any(module.source for module in modules.values()) else COLUMNS
    columns = (*columns, *(column for column in TIMES if column.name in names))
    return Report("run", step.model, columns, rows, step_meta(step), totals | step_totals(step), skipped)


def step_totals(step: RecordedStep) -> dict[str, Any]:
    """The figures of the whole step: its parameter `groups`, the gradient's norm before clipping, times and memory."""
    by_probe = {report.probe: report for report in step.reports}
    groups = [dict(row.values) for row in by_probe["optimizer"].rows] if "optimizer" in by_probe else []
    before = [group["unclipped_grad"] for group in groups if group.get("unclipped_grad") is not None]
    found: dict[str, Any] = {"groups": groups} if groups else {}
    found |= {"unclipped_grad": norm(before)} if before else {}
    return found | (dict(by_probe["time"].totals) if "time" in by_probe else {})


def _times(step: RecordedStep) -> dict[str, dict[str, Any]]:
    """The times of each module, over all of its calls."""
    report = next((report for report in step.reports if report.probe == "time"), None)
    return {row.fqn: {name: row[name] for name in NAMES if name in row.values} for row in report.rows} if report else {}


def probe_reports(step: RecordedStep, probe: str) -> list[Report]:
    """The report of one probe as it was recorded, with the figures of its step; empty without such a probe."""
    return [replace(r, meta={**r.meta, **step_meta(step)}) for r in step.reports if r.probe == probe]


def findings(step: RecordedStep) -> list[Report]:
    """The verdict of the checks on a step, if it was judged."""
    return probe_reports(step, "check")


def rows_before(found: NonFinite) -> list[Report]:
    """The last rows up to a non-finite value, in the order in which they were measured; the last one has it."""
    title = f"{found.model}, step {found.step:,}: the last rows up to"
    return [
        replace(report, model=f"{title} {report.rows[-1].fqn or '(model)'}", grouping="list")
        for report in found.reports
    ]


def step_meta(step: RecordedStep) -> dict[str, Any]:
    """The figures of a step as meta of its reports; `seconds` only if known."""
    ran = {key: r.meta[key] for r in step.reports for key in ("device", "dtype", "containers") if key in r.meta}
    found = ran | {
        "complete": step.complete,
        "phase": step.phase,
        "step": step.step,
        "forward": step.forward,
        "forwards": step.forwards,
        "observed_forwards": step.observed_forwards,
        "losses": list(step.losses),
        "plain_seconds": step.plain_seconds,
        "notes": list(step.notes),
    }
    return found | ({"seconds": step.seconds} if step.seconds is not None else {})


def _modules(reports: Iterable[Report]) -> dict[str, _Module]:
    """The modules by fqn, in the order in which they ran; one that never ran by itself comes after its siblings."""
    found: dict[str, _Module] = {}
    late: dict[str, _Module] = {}

    def module_of(fqn: str, row: Row) -> _Module:
        module = found.get(fqn) or late.setdefault(fqn, _Module())
        module.type = module.type or row.get("type")
        module.source = module.source or row.get("source")
        return module

    by_probe = {report.probe: report for report in reports}
    for row in by_probe["activations"].rows if "activations" in by_probe else ():
        found.setdefault(row.fqn, _Module(row.get("type"), row.get("source"))).outputs[row.get("path", "")] = row
    for row in by_probe["updates"].rows if "updates" in by_probe else ():
        module_of(_owner(row), row).updates.append(row)
    for row in by_probe["grads"].rows if "grads" in by_probe else ():
        if row.get("kind") == "parameter":
            module_of(_owner(row), row).param_grads.append(row)
        else:
            module_of(row.fqn, row).grads[row.get("path", "")] = row
    return _in_place(found, late)


def _owner(row: Row) -> str:
    return row.fqn.rpartition(".")[0]


def _in_place(found: dict[str, _Module], late: dict[str, _Module]) -> dict[str, _Module]:
    """Put each late module after the last one of the same container, and containers before their parts."""
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
    counts = {f"grad_{name}": _sum_of(gradients, name) for name in ("nan", "inf")}
    tied = {"note": ", ".join(module.tied)} if first and module.tied else {}
    called_at = {"source": module.source} if module.source else {}
    own = _own_parameters(module) if first else dict.fromkeys(("param_grad", "weight", "update", "ratio"))
    return Row(
        {"fqn": fqn, "type": module.type, "path": path, **values, **called_at}
        | {"output_grad": grad.get("l2") if grad else None, **own, **counts, **tied},
        output.stats if output else None,
        output.lacking if output else (),
    )


def _sum_of(rows: Sequence[Row], count: str) -> int | None:
    """The sum of a count over all rows; None without rows, or if one does not know it."""
    counts = [row[count] for row in rows]
    return sum(counts) if counts and None not in counts else None


def _own_parameters(module: _Module) -> dict[str, float | None]:
    grads = [row["l2"] for row in module.param_grads if row["numel"]]
    weight, update = ([row[name] for row in module.updates] for name in ("weight", "update"))
    found = {name: norm(parts) if parts else None for name, parts in (("weight", weight), ("update", update))}
    known = grads and not module.summed
    return {"param_grad": norm(grads) if known else None, **found, "ratio": ratio(found["update"], found["weight"])}
