"""hookcli coord-check"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from hookcli.capabilities.coord_check.layout import COLUMNS, POINTS
from hookcli.capabilities.coord_check.slopes import FEWEST
from hookcli.commands.model import Selection, find_recipe, parse_args
from hookcli.commands.option_fields import OnlyFields, option
from hookcli.commands.options import DATA, GENERATED, SHOWING, Model, Options
from hookcli.commands.output import Output
from hookcli.commands.probe_command import feedback_of, setting_of
from hookcli.commands.progress import salvaging
from hookcli.commands.run_options import StepOptions, loss_option
from hookcli.errors import UsageError
from hookcli.table.formatting import counted

EXAMPLES = (
    "hookcli coord-check net.py:make --arg width=64,128,256,512 --input 16x32",
    "hookcli coord-check net.py:GPT --arg width=64,128,256 --input 4x64:int64",
    "hookcli coord-check net.py:make --arg width=64,128,256 --optimizer sgd --lr 1",
)
FIRST = "arg input data optimizer lr loss steps seeds points format output match"
_SHARED = {*GENERATED, *DATA, "arg", "seed", "task", "train", "device", "dtype", "threads", "match", "type", *SHOWING}
_SHARED -= {"batches"}


@dataclass(frozen=True)
class CoordOptions:
    """Options of `hookcli coord-check` alone."""

    panel = "Training"

    optimizer: str = option(
        "adamw", "adamw, adam, sgd, or file.py:fn, a function of the model or its parameters.", metavar="NAME"
    )
    lr: float | None = option(None, "Learning rate [1e-3, or a function's own].", metavar="X", min=0, max=1e9)
    steps: int = option(4, "Steps of each training.", metavar="N", min=1)
    seeds: int = option(5, "Trainings at each width, with other weights.", metavar="N", min=1)
    points: bool = option(False, "Instead of slopes: the sizes at each width, with each seed, after each step.")
    loss: str | None = loss_option()


def coord_check(model: Model, *, own: CoordOptions, options: Annotated[Options, OnlyFields(_SHARED)]) -> int:
    """Check whether a learning rate transfers to larger widths.

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
        rate = "" if own.lr is None else f", lr {own.lr:g}"
        check = CoordCheck(
            name,
            {width: find_recipe(model, replace(options, arg=texts)) for width, texts in arguments.items()},
            setting,
            replace(StepOptions(loss=own.loss).make(), backward=True),
            Plan(optimizer_maker(own.optimizer, own.lr), own.steps, lambda model: Selection(options).of(model)),
            own.seeds,
            f"{own.optimizer}{rate}, {counted(own.steps, 'step')}, {counted(own.seeds, 'seed')}",
            feedback_of(options, progress),
        )
        results = check.run()
    output.write([results.points() if own.points else results.report()])
    return 0


def widths_of(texts: Sequence[str]) -> tuple[str, Mapping[float, list[str]]]:
    """The name of the width, and for each of its values, from the smallest, the texts of --arg with that value alone.

    Raises UsageError unless exactly one argument has several values, at least three of them, all positive numbers.
    """
    given = width_among(texts)
    name, _, values = given.partition("=")
    numbers: dict[Any, list[str]] = {}
    for value in values.split(","):
        one = f"{name}={value.strip()}"
        number = parse_args([one])[name]
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < math.inf:
            raise UsageError(f"--arg {given}: a width is a number above 0, not {value.strip()!r}", option="arg")
        numbers[number] = [one if text == given else text for text in texts]
    if len(numbers) < FEWEST:
        raise UsageError(f"--arg {given}: a slope needs three widths or more, as in {name}=64,128,256", option="arg")
    return name, dict(sorted(numbers.items()))


def width_among(texts: Sequence[str]) -> str:
    """The text of --arg that has several values. Raises UsageError unless there is one, and its name is given once."""
    several = [text for text in texts if "," in text and not text.partition("=")[2].strip().startswith(tuple("([{'\""))]
    if not several:
        raise UsageError("give the width several values, as in --arg width=64,128,256,512", option="arg")
    given, *others = several
    if others:
        both = " and ".join(f"--arg {text}" for text in several[:2])
        raise UsageError(f"{both}: several values are for the width alone; give the others one value", option="arg")
    name = given.partition("=")[0]
    if again := [text for text in texts if text != given and text.partition("=")[0] == name]:
        raise UsageError(f"--arg {again[0]}: --arg {given} gives {name} already", option="arg")
    return given
