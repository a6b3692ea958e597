"""A recorded step at a glance: activations, gradients and updates of each module in one row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from hookcli.checks.judgement import PROBE
from hookcli.record.file.parameter_rows import UPDATE_FIGURES, parameter_rows
from hookcli.record.file.record_lines import NonFinite, RecordedStep
from hookcli.table import Reason, Report, Row
from hookcli.table.columns import names
from hookcli.table.columns.costs import TIMES
from hookcli.table.columns.layouts import with_operators
from hookcli.table.columns.recorded import GRAD_FAULTS, STEP, TENSOR
from hookcli.table.merge import gathered
from hookcli.table.meta import Meta, only
from hookcli.table.stats import norm
from hookcli.table.times import NAMES

JOINED = ("activations", "grads", "updates")
_MATERIAL = 1e-3  # of the other gradients of a module; a smaller one may be rounding
_NOTHING = 1e-6  # of the weights; a healthy update is a thousandth, and float32 tells apart a ten-millionth
_RECORDED = (*JOINED, "inputs", "optimizer", "time", "check")


@dataclass
class _Module:
    """The rows of a module or operator in a step's reports: outputs and their gradients by path, and its parameters'.

    `source`: the line that called an operator. `summed`: ranks hold summands of some of its parameters' gradients,
    whose norms are unknown. `tied` and `still` are words on parameters that are, or that an update left as they were.
    """

    type: str | None = None
    source: str | None = None
    outputs: dict[str, Row] = field(default_factory=dict)
    grads: dict[str, Row] = field(default_factory=dict)
    parameters: list[Row] = field(default_factory=list)
    tied: list[str] = field(default_factory=list)
    still: list[str] = field(default_factory=list)
    summed: bool = False


def overview(step: RecordedStep) -> Report:
    """Join the reports "activations", "grads" and "updates": a row per module and tensor that it returned.

    Statistics describe the returned tensor; `output_grad` is the L2 norm of its gradient. The first row of a module
    also has L2 norms of its parameters, without those in its parts: `param_grad` of their gradients, `weight`,
    `update`, and `ratio` of the last two; grouping merges them exactly. `grad_nan` and `grad_inf` count over all its
    gradients. The columns of times are those that were measured, over all calls of the module. `note` says to
    what a tied parameter of the module is tied, and which ones an update left as they were.
    """
    modules = _modules(step)
    joined = [report for report in step.reports if report.probe in JOINED]
    skipped = list(dict.fromkeys(item for report in joined for item in report.skipped))
    for item in skipped:
        owner, _, name = item.fqn.rpartition(".")
        if item.kind == Reason.TIED and owner in modules:
            modules[owner].tied.append(f"{name} {item.reason}")
        if item.kind == Reason.SUMMED and owner in modules:
            modules[owner].summed = True
    if not moves_barely(step, modules.values()):
        for module in modules.values():
            module.still = _still(module)
    rows = [
        _row(fqn, module, path, first=not number)
        for fqn, module in modules.items()
        for number, path in enumerate(dict.fromkeys((*module.outputs, *module.grads)) or [""])
    ]
    whole = gathered(rows)
    if any(module.summed for module in modules.values()):
        whole["param_grad"] = None
    totals = {name: whole[name] for name in ("param_grad", "ratio") if whole[name] is not None}
    times = {row.fqn: {name: row[name] for name in NAMES if name in row.values} for row in step.rows("time")}
    names = list(next(iter(times.values()), ()))
    rows = [row.having(times.pop(row.fqn, dict.fromkeys(names))) for row in rows]
    columns = with_operators(STEP) if any(module.source for module in modules.values()) else STEP
    columns = (*columns, *(column for column in TIMES if column.name in names))
    return Report("run", step.model, columns, rows, step_meta(step), totals | step_totals(step), skipped)


def step_totals(step: RecordedStep) -> dict[str, Any]:
    """The figures of the whole step: its parameter `groups`, the gradient's norm before clipping, times and memory."""
    groups = [dict(row.values) for row in step.rows("optimizer")]
    before = [group["unclipped_grad"] for group in groups if group.get("unclipped_grad") is not None]
    totals: dict[str, object] = {"groups": groups} if groups else {}
    totals |= {"unclipped_grad": norm(before)} if before else {}
    return totals | dict(step.totals("time"))


def probe_reports(step: RecordedStep, *probes: str) -> list[Report]:
    """The reports of these probes as they were recorded, with the figures of their step; empty without such a probe."""
    reports = (report for probe in probes for report in step.reports if report.probe == probe)
    return [replace(report, meta={**report.meta, **step_meta(step)}) for report in reports]


def in_full(step: RecordedStep) -> list[Report]:
    """Every report of the step as it was recorded."""
    return probe_reports(step, *step.probes)


def further(step: RecordedStep) -> list[Report]:
    """The reports of further probes (`--probe`, `--attention` ...), each a table of its own."""
    return probe_reports(step, *(probe for probe in step.probes if probe not in _RECORDED))


def leading_report(step: RecordedStep) -> Report:
    """The overview; if it has no rows, the inputs, if they were measured, with the figures of the whole step."""
    whole = overview(step)
    return whole if whole.rows else replace(next(iter(probe_reports(step, "inputs")), whole), totals=whole.totals)


def joined(step: RecordedStep) -> list[Report]:
    """The step as it is shown: the leading report, the verdict of the checks if it was judged, and all others."""
    first = leading_report(step)
    others = [*probe_reports(step, PROBE, "inputs"), *further(step)]
    return [first, *(report for report in others if report.probe != first.probe)]


def rows_before(value: NonFinite) -> list[Report]:
    """The last rows up to a non-finite value, in the order in which they were measured; the last one has it."""
    title = f"{value.model}, step {value.step:,}: the last rows measured, up to"
    return [
        replace(report, model=f"{title} {report.rows[-1].fqn or '(model)'!r}", grouping="list")
        for report in value.reports
    ]


def step_meta(step: RecordedStep) -> Meta:
    """The figures of a step as meta of its reports; `seconds` only if known."""
    ran: Meta = {}
    for report in step.reports:
        ran |= only(report.meta, "device", "dtype", "containers")
    meta: Meta = {
        **ran,
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
    if step.seconds is not None:
        meta["seconds"] = step.seconds
    return meta


def _modules(step: RecordedStep) -> dict[str, _Module]:
    """The modules by fqn, in the order in which they ran; one that never ran by itself comes after its siblings."""
    ran: dict[str, _Module] = {}
    late: dict[str, _Module] = {}

    def module_of(fqn: str, row: Row) -> _Module:
        module = ran.get(fqn) or late.setdefault(fqn, _Module())
        module.type = module.type or row.get("type")
        module.source = module.source or row.get("source")
        return module

    for row in step.rows("activations"):
        ran.setdefault(row.fqn, _Module(row.get("type"), row.get("source"))).outputs[row.get("path", "")] = row
    for row in step.rows("updates"):
        module_of(row.fqn.rpartition(".")[0], row)
    for row in step.rows("grads"):
        if row.get("kind") == "parameter":
            module_of(row.fqn.rpartition(".")[0], row)
        else:
            module_of(row.fqn, row).grads[row.get("path", "")] = row
    modules = _in_place(ran, late)
    for fqn, row in parameter_rows(step.reports).items():
        modules[fqn.rpartition(".")[0]].parameters.append(row)
    return modules


def _in_place(ran: dict[str, _Module], late: dict[str, _Module]) -> dict[str, _Module]:
    """Put each late module after the last one of the same container, and containers before their parts."""
    names = list(ran)
    for fqn in sorted(late, key=lambda name: name.count(".") if name else -1):
        owner = fqn.rpartition(".")[0]
        beside = [i for i, name in enumerate(names) if name == owner or not owner or name.startswith(f"{owner}.")]
        inside = [i for i, name in enumerate(names) if not fqn or name.startswith(f"{fqn}.")]
        names.insert(inside[0] if inside else beside[-1] + 1 if beside else len(names), fqn)
    every = ran | late
    return {name: every[name] for name in names}


def _still(module: _Module) -> list[str]:
    """Words on parameters that an update left as they were beside others, which alone the row's ratio would show."""
    moved = [row["param_grad"] or 0.0 for row in module.parameters if row.get("update") and row.get("param_grad")]
    if not moved:
        return []
    still = [row for row in module.parameters if row.get("update") == 0 and row.get("param_grad")]
    names = [row.fqn.rpartition(".")[2] for row in still if row["param_grad"] > _MATERIAL * max(moved)]
    return [f"{', '.join(names)} did not move"] if names else []


def moves_barely(step: RecordedStep, modules: Iterable[_Module]) -> bool:
    """True if a step moved the weights, all together, by next to nothing, as at the end of a learning rate's schedule.

    Rounding then leaves some of them unchanged. In 16 bits, that is worth saying: updates are lost.
    """
    moved = gathered(row for module in modules for row in module.parameters)["ratio"]
    coarse = any(row.get("dtype") in ("bfloat16", "float16") for row in step.rows("updates"))
    return moved is not None and moved < _NOTHING and not coarse


def _row(fqn: str, module: _Module, path: str, *, first: bool) -> Row:
    output, grad = module.outputs.get(path), module.grads.get(path)
    tensor = output or grad
    gradients = [Row({f"grad_{count}": grad[count] for count in ("nan", "inf")})] if grad and grad.stats else []
    figures = gathered([*gradients, *(module.parameters if first else ())])
    if module.summed:
        figures["param_grad"] = None
    return Row(
        {"fqn": fqn, "type": module.type, "path": path}
        | {column.name: tensor.get(column.name) if tensor else None for column in TENSOR}
        | ({"source": module.source} if module.source else {})
        | ({"scores": output["scores"]} if output and output.get("scores") else {})
        | {"output_grad": grad.get("l2") if grad else None}
        | {name: figures[name] for name in ("param_grad", *UPDATE_FIGURES, *names(GRAD_FAULTS))}
        | ({"note": note} if first and (note := ", ".join([*module.tied, *module.still])) else {}),
        output.stats if output else None,
        output.lacking if output else (),
    )
