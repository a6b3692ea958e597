"""hookcli sweep"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from hookcli.capabilities.sweep.layout import COLUMNS
from hookcli.commands.model import Selection, find_recipe
from hookcli.commands.option_fields import option
from hookcli.commands.options import DEFAULT_MODEL, SEVERAL, Model, Options, all_but
from hookcli.commands.output import Output
from hookcli.commands.probe_command import feedback_of, setting_of
from hookcli.commands.progress import salvaging
from hookcli.commands.run_options import StepOptions, loss_option
from hookcli.errors import UsageError
from hookcli.hooks.option_values import NUMBER_FORMATS
from hookcli.table.grouping import parse_depth

EXAMPLES = (
    "hookcli sweep net.py:GPT --input 1x64:int64 --logit 42",
    "hookcli sweep net.py:GPT --input 1x64:int64 --logit 42 --heads",
    "hookcli sweep net.py:Net --data train.py:loader --loss cross-entropy",
    "hookcli sweep net.py:Net --input 8x3x32x32 --with 'from(acts)'",
    "hookcli sweep resnet18 --quantize int4",
)
FIRST = "operation logit loss heads experts quantize input match depth format output"


@dataclass(frozen=True)
class SweepOptions:
    """Options of `hookcli sweep` alone."""

    panel = "Sweep"

    operation: str = option("zero", "zero, mean, from(DUMP), or another OP of --edit.", "--with", metavar="OP")
    heads: int | None = option(None, "Sweep heads of attention; N if not found.", metavar="[N]", min=0)
    experts: bool = option(False, "Sweep experts, not modules.")
    quantize: str | None = option(
        None,
        f"Round each layer's weights instead; formats: {', '.join(NUMBER_FORMATS)}.",
        words=NUMBER_FORMATS,
        metavar="FORMAT",
    )
    logit: str | None = option(
        None, "Rank by this number of the output; 42, '[0,-1,42]' or 'logits[0,-1,42]'.", metavar="INDEX"
    )
    loss: str | None = loss_option()


def sweep(
    model: Model = DEFAULT_MODEL,
    *,
    own: SweepOptions,
    options: Annotated[Options, all_but("batches", "ops", *SEVERAL)],
) -> int:
    """Zero each module in turn, and rank them by what that changes.

    Runs the model once for each module down to --depth (by default 100 at most), on one batch with the same random
    numbers, and compares the output, the loss and a logit with the unchanged model's.
    """
    output = Output(replace(options, sort=options.sort or "order"))
    output.check_columns(COLUMNS)
    if own.heads is not None and (own.experts or own.quantize):
        other = "experts" if own.experts else "quantize"  # another word
        raise UsageError(f"--heads and --{other}: leave one of them out")
    if own.quantize and own.operation != SweepOptions.operation:
        raise UsageError(f"--quantize and --with {own.operation}: leave one of them out")
    with salvaging(output) as progress:
        from hookcli.capabilities.sweep.run import SweepRun
        from hookcli.capabilities.sweep.trials import Sweep
        from hookcli.engine.prepare import prepare_run

        of = "heads" if own.heads is not None else "experts" if own.experts else "modules"  # another word
        plan = Sweep(own.operation, of, own.quantize, parse_depth(options.depth), options.seed, own.heads or 0)
        plan.edit("*")  # a mistake ends here
        setting = setting_of(options, bool(options.train))
        if setting.device.type == "meta":
            raise UsageError("--device meta: no values to look at", option="device")
        recipe = find_recipe(model, options)
        run = prepare_run(recipe, setting, StepOptions(loss=own.loss).make(), feedback_of(options, progress))
        if run.step.target is not None and not own.loss:
            run = replace(run, step=replace(run.step, loss=recipe.loss))
        select = Selection(options).of(run.model)
        report = SweepRun(run, plan, own.logit or "", options.edit, options.fastpath, select).report()
    output.write([report])
    return 0
