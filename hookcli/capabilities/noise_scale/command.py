"""hookcli noise-scale"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import Annotated

from hookcli.capabilities.noise_scale.layout import COLUMNS
from hookcli.commands.model import Selection, find_recipe
from hookcli.commands.option_fields import option
from hookcli.commands.options import SEVERAL, Model, Options, all_but
from hookcli.commands.output import Output
from hookcli.commands.probe_command import feedback_of, setting_of
from hookcli.commands.progress import salvaging
from hookcli.commands.run_options import StepOptions, loss_option
from hookcli.errors import UsageError
from hookcli.sources.module_code import code_of
from hookcli.system.files import is_file
from hookcli.table.grouping import parse_depth

EXAMPLES = (
    "hookcli noise-scale net.py:Net --data train.py:loader --batches 16",
    "hookcli noise-scale net.py:Net --data train.py:loader --loss cross-entropy",
    "hookcli noise-scale net.py:Net --data data.py:loader --eval --depth 1",
)
FIRST = "micro_batch loss data batches batch_size weights depth match format output"


@dataclass(frozen=True)
class NoiseScaleOptions:
    """Options of `hookcli noise-scale` alone."""

    panel = "Noise scale"

    micro_batch: int | None = option(None, "Samples in a micro-batch [for about 64 of them].", metavar="N", min=1)
    loss: str | None = loss_option()


def noise_scale(
    model: Model, *, own: NoiseScaleOptions, options: Annotated[Options, all_but("ops", "edit", "fastpath", *SEVERAL)]
) -> int:
    """Estimate the batch size beyond which a larger one gains little.

    Compares the gradients of small parts of the batch, at the present weights: the simple noise scale tr(Σ) / |G|² of
    McCandlish et al. 2018 (arXiv:1812.06162), for the model and for its modules. The loss must be a mean over samples.
    """
    if is_file(model) and (code := code_of(model)):
        spec = code.names[0] if code.names else f"{model}:NAME"
        command = shlex.join(["hookcli", "noise-scale", spec, "--data", f"{model}:loader"])
        raise UsageError(f"{model!r} is a Python file: name its model and its data, as in `{command}`")
    output = Output(options)
    output.check_columns(COLUMNS)
    depth = parse_depth(options.depth)
    with salvaging(output) as progress:
        from hookcli.capabilities.noise_scale.measure import NoiseScaleRun
        from hookcli.engine.prepare import prepare_run

        train = options.train is not False
        setting = setting_of(options, train, targets=True)
        if setting.device.type == "meta":
            raise UsageError("--device meta: no values to look at", option="device")
        step = replace(StepOptions(loss=own.loss).make(), backward=True)
        recipe = find_recipe(model, options)
        run = prepare_run(recipe, setting, step, feedback_of(options, progress))
        select = Selection(options).of(run.model)
        report = NoiseScaleRun(run, own.micro_batch, recipe.batched, depth, select).report()
    output.write([report])
    return 0
