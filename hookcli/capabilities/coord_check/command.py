"""hookcli coord-check"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from hookcli.capabilities.coord_check.layout import COLUMNS, POINTS
from hookcli.capabilities.coord_check.widths import widths_of
from hookcli.commands.model import Selection, find_recipe
from hookcli.commands.option_fields import OnlyFields, option
from hookcli.commands.options import DATA, GENERATED, SHOWING, Model, Options
from hookcli.commands.output import Output
from hookcli.commands.probe_command import feedback_of, setting_of
from hookcli.commands.progress import salvaging
from hookcli.commands.run_options import StepOptions, loss_option
from hookcli.errors import UsageError

EXAMPLES = (
    "hookcli coord-check net.py:make --arg width=64,128,256,512 --input 16x32",
    "hookcli coord-check net.py:GPT --arg width=64,128,256 --input 4x64:int64",
    "hookcli coord-check net.py:make --arg width=64,128,256 --data train.py:loader",
    "hookcli coord-check mu.py:make --arg width=64,128,256 --optimizer mu.py:adam",
)
FIRST = "arg optimizer lr steps seeds points loss input data match format output"
_SHARED = {*GENERATED, *DATA, "arg", "seed", "task", "train", "device", "dtype", "threads", "match", "type", *SHOWING}


@dataclass(frozen=True)
class CoordOptions:
    """Options of `hookcli coord-check` alone."""

    panel = "Training"

    optimizer: str = option(
        "adamw",
        "adamw, adam, sgd, or your own as file.py:fn, a function of the model or its parameters.",
        metavar="NAME",
    )
    lr: float | None = option(
        None, "Learning rate [1e-3; of your own function: its default].", metavar="X", min=0, max=1e9
    )
    steps: int = option(4, "Steps of each training.", metavar="N", min=1)
    seeds: int = option(5, "Trainings at each width, with other weights.", metavar="N", min=1)
    points: bool = option(False, "Instead of slopes: the sizes at each width, with each seed, after each step.")
    loss: str | None = loss_option()


def coord_check(
    model: Model,
    *,
    own: CoordOptions,
    options: Annotated[Options, OnlyFields(_SHARED - {"batches"})],
) -> int:
    """Train several widths for a few steps: will the learning rate transfer?

    One --arg has several values: the width. For each of them and each seed the model is built and trained on one batch.
    The sizes of its outputs, and of their changes, must not grow with the width if a learning rate that suits a narrow
    model is to suit a wide one (the coordinate check of muP: Yang et al. 2022, arXiv 2203.03466, D.1).
    """
    name, arguments = widths_of(options.arg)
    output = Output(options)
    output.check_columns(POINTS if own.points else COLUMNS)
    with salvaging(output) as progress:
        from hookcli.capabilities.coord_check.check import CoordCheck
        from hookcli.capabilities.coord_check.optimizers import optimizer_maker
        from hookcli.capabilities.coord_check.training import Plan

        setting = setting_of(options, options.train in (None, True))
        if setting.device.type == "meta":
            raise UsageError("--device meta: no values to look at", option="device")
        step = replace(StepOptions(loss=own.loss).make(), backward=True)
        check = CoordCheck(
            name,
            {width: find_recipe(model, replace(options, arg=texts)) for width, texts in arguments.items()},
            setting,
            step,
            Plan(optimizer_maker(own.optimizer, own.lr), own.steps, lambda model: Selection(options).of(model)),
            own.seeds,
            f"{own.optimizer}, {own.steps} steps",
            feedback_of(options, progress),
        )
        results = check.run()
    output.write([results.points() if own.points else results.report()])
    return 0


globals()["coord-check"] = coord_check  # the command's name, by which its function is found
