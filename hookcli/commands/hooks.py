"""The command `hookcli hooks`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from hookcli.commands.options import DEFAULT_MODEL, BuildingOptions, Model, Options
from hookcli.commands.output import Output, remark
from hookcli.commands.progress import Progress, working
from hookcli.commands.recipe import find_recipe
from hookcli.commands.selection import Selection
from hookcli.table import Report, Row
from hookcli.table.columns.layouts import HOOKS_FOUND

if TYPE_CHECKING:
    from hookcli.hooks.existing import ExistingHook

EXAMPLES = (
    "hookcli hooks net.py:Net",
    "hookcli hooks net.py:Net --type Linear --columns fqn,function,file",
    "hookcli hooks resnet50 --format json",
)


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
        progress.stage("importing torch")
        report = _look(model, options, progress)
    if not report.rows:
        chosen = " on the selected modules" if options.match or options.type else ""
        said = f"{report.model} has no hooks{chosen}"
        report = replace(report, totals={**report.totals, "nothing": said})
        if not output.for_people:
            remark(said, options)
    output.write([report])
    return 0


def _look(spec: str, options: Options, progress: Progress) -> Report:
    import torch

    from hookcli.engine.prepare import build
    from hookcli.engine.run_info import RunInfo, torchvision_version
    from hookcli.engine.setting import META, Setting
    from hookcli.hooks.existing import existing_hooks

    recipe = find_recipe(spec, options)
    progress.stage(f"building {recipe.name}")
    setting = Setting(seed=options.seed, weights=options.weights, strict=options.strict, device=META)
    model, said = build(recipe, setting, original=True)
    if said:
        remark(said, options)
    found = existing_hooks(model, Selection(options).among(model))
    info = RunInfo(torch=torch.__version__, seed=options.seed, source=recipe.meta, torchvision=torchvision_version())
    rows = [Row(asdict(hook) | {"flags": ", ".join(hook.flags)}) for hook in found]
    return Report("hooks", recipe.name, HOOKS_FOUND, rows, info.to_meta(), _totals(found))


def _totals(found: Sequence[ExistingHook]) -> dict[str, int]:
    """Count the hooks, the legacy ones among them, and the hooked modules; stale flags are counted separately."""
    there = [hook for hook in found if hook.kind != "stale_flag"]
    places = {hook.fqn for hook in there if hook.type not in (None, "Parameter", "Buffer")}
    totals = {"hooks": len(there), "legacy": sum(hook.legacy for hook in there), "modules": len(places)}
    return totals | {"stale_flags": len(found) - len(there)}
