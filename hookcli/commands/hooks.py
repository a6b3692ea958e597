"""The command `hookcli hooks`."""

from __future__ import annotations

from dataclasses import asdict, replace

from hookcli.commands.model import Selection, built_model
from hookcli.commands.options import DEFAULT_MODEL, BuildingOptions, Model, Options
from hookcli.commands.output import Output, remark
from hookcli.commands.progress import Progress, working
from hookcli.table import Report, Row
from hookcli.table.columns.layouts import HOOKS_FOUND

EXAMPLES = (
    "hookcli hooks net.py:Net",
    "hookcli hooks net.py:Net --type Linear --columns fqn,function,file",
    "hookcli hooks resnet50 --format json",
)
COLUMNS = HOOKS_FOUND


def hooks(model: Model = DEFAULT_MODEL, *, options: BuildingOptions) -> int:
    """List the hooks that are already registered on a model.

    Covers every module, parameter and buffer, and PyTorch's global hooks: the function that is called, and where its
    code is. Hooks of the deprecated register_backward_hook are marked as legacy. The model is built but not run. Hooks
    on autograd's nodes (such as FSDP's on AccumulateGrad) and DDP's communication hooks live in C++ and can't be
    listed.
    """
    output = Output(replace(options, depth="all"))  # each hook is a row: nothing can be merged
    output.check_columns(HOOKS_FOUND)
    with working(options) as progress:
        report = _look(model, options, progress)
    if not report.rows:
        chosen = " on the selected modules" if options.match or options.type else ""
        nothing = f"{report.model} has no hooks{chosen}"
        report = replace(report, totals={**report.totals, "nothing": nothing})
        if not output.for_people:
            remark(nothing, options)
    output.write([report])
    return 0


def _look(spec: str, options: Options, progress: Progress) -> Report:
    from hookcli.engine.run_info import finished
    from hookcli.hooks.existing import existing_hooks

    name, model, info = built_model(spec, options, progress, meta=True, original=True)
    listed = existing_hooks(model, Selection(options).among(model))
    rows = [Row(asdict(hook) | {"flags": ", ".join(hook.flags)}) for hook in listed]
    hooks = [hook for hook in listed if hook.kind != "stale_flag"]
    places = {hook.fqn for hook in hooks if hook.type not in (None, "Parameter", "Buffer")}
    totals = {"hooks": len(hooks), "legacy": sum(hook.legacy for hook in hooks), "modules": len(places)}
    totals["stale_flags"] = len(listed) - len(hooks)
    return Report("hooks", name, HOOKS_FOUND, rows, finished(info), totals)
