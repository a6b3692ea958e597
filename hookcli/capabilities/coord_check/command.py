"""hookcli coord-check"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from hookcli.capabilities.coord_check.layout import COLUMNS, POINTS, rate_columns
from hookcli.capabilities.coord_check.slopes import FEWEST
from hookcli.commands.model import Selection, find_recipe, parse_args
from hookcli.commands.next_command import all_typed, with_next
from hookcli.commands.option_fields import OnlyFields, option
from hookcli.commands.options import DATA, GENERATED, SHOWING, Model, Options
from hookcli.commands.output import Output
from hookcli.commands.probe_command import feedback_of, setting_of
from hookcli.commands.progress import salvaging
from hookcli.commands.run_options import StepOptions, loss_option
from hookcli.errors import UsageError
from hookcli.table import Report
from hookcli.table.formatting import counted, listed

if TYPE_CHECKING:
    from hookcli.capabilities.coord_check.training import Plan

EXAMPLES = (
    "hookcli coord-check net.py:make --arg width=64,128,256,512 --input 16x32",
    "hookcli coord-check net.py:GPT --arg width=64,128,256 --input 4x64:int64",
    "hookcli coord-check net.py:make --arg width=64,128,256 --optimizer sgd --lr 1",
    "hookcli coord-check net.py:GPT --arg width=64,128,256 --lr 1e-4,1e-3,1e-2",
)
FIRST = "arg input data optimizer lr loss steps seeds points format output match"
_SHARED = {*GENERATED, *DATA, "arg", "seed", "task", "train", "device", "dtype", "threads", "match", "type", *SHOWING}
_SHARED -= {"batches"}
GREATEST_RATE = 1e9
STEPS = 4
RATE_STEPS = 10
"""A batch of random numbers is learned by then with a good learning rate, and not yet with all of them."""


@dataclass(frozen=True)
class CoordOptions:
    """Options of `hookcli coord-check` alone."""

    panel = "Training"

    optimizer: str = option(
        "adamw", "adamw, adam, sgd or file.py:fn; fn gets the model or its parameters.", metavar="NAME"
    )
    lr: str | None = option(None, "Learning rate, or several, as 1e-3,1e-2 [1e-3].", metavar="X")
    steps: int | None = option(
        None, f"Steps of each training [{STEPS}; {RATE_STEPS} with several --lr].", metavar="N", min=1
    )
    seeds: int = option(5, "Trainings at each width, with other weights.", metavar="N", min=1)
    points: bool = option(False, "Show sizes by width, seed and step instead of slopes.")
    loss: str | None = loss_option()


def coord_check(model: Model, *, own: CoordOptions, options: Annotated[Options, OnlyFields(_SHARED)]) -> int:
    """Check whether a learning rate transfers to larger widths.

    Give one --arg several values: the widths. For each width and seed, the model is built and trained on one batch. A
    learning rate transfers from a narrow model to a wide one only if the sizes of outputs, and of their changes, do not
    grow with the width (the coordinate check of muP: Yang et al. 2022, arXiv 2203.03466, D.1). With several learning
    rates (--lr 1e-4,1e-3,1e-2) it shows which is best at each width, and at which width the best one changes.
    """
    rates = parse_rates(own, options)
    is_search = len(rates) > 1
    name, arguments = widths_of(options.arg, fewest=2 if is_search else FEWEST)
    output = Output(options)
    steps = own.steps or (RATE_STEPS if is_search else STEPS)
    output.check_columns(rate_columns(rates) if is_search else POINTS if own.points else COLUMNS)
    with salvaging(output) as progress:
        from hookcli.capabilities.coord_check.check import CoordCheck, Results
        from hookcli.capabilities.coord_check.optimizers import RATE

        setting = setting_of(options, options.train in (None, True))
        if setting.device.type == "meta":
            raise UsageError("--device meta: no values to look at", option="device")
        rate = "" if own.lr is None else f", lr {listed([f'{rate:g}' for rate in rates])}"
        check = CoordCheck(
            name,
            {width: find_recipe(model, replace(options, arg=texts)) for width, texts in arguments.items()},
            setting,
            replace(StepOptions(loss=own.loss).make(), backward=True),
            plans_of(own, options, rates, steps),
            own.seeds,
            f"{own.optimizer}{rate}, {counted(steps, 'step')}, {counted(own.seeds, 'seed')}",
            feedback_of(options, progress),
        )
        results = check.run()
    report = results.points() if own.points and isinstance(results, Results) else results.report()
    output.write([report if is_search else with_search(report, model, own, options, (rates or [RATE])[0])])
    return 0


def plans_of(own: CoordOptions, options: Options, rates: Sequence[float], steps: int) -> list[Plan]:
    """The trainings with each of these learning rates; without any, with the optimizer's own."""
    from hookcli.capabilities.coord_check.optimizers import optimizer_maker
    from hookcli.capabilities.coord_check.training import Plan

    asked: Sequence[float | None] = rates or [None]
    is_search = len(asked) > 1
    return [
        Plan(optimizer_maker(own.optimizer, one), steps, Selection(options).of, not is_search, one) for one in asked
    ]


def with_search(report: Report, model: str, own: CoordOptions, options: Options, rate: float) -> Report:
    """The report, which names a check with learning rates around this one next, if something grows that has targets.

    Without, as with random numbers, all rates but the smallest learn the one class that is the target.
    """
    grows = any("grows" in (row.get("with_width") or "") for row in report.rows)
    has_targets = options.data is not None or report.meta["loss"] not in ("sum", "mean", own.loss)
    if not (grows and has_targets and (own.lr is not None or ":" not in own.optimizer)):
        return report
    several = ",".join(f"{rate * factor:g}" for factor in (0.1, 0.3, 1, 3, 10, 30))
    plain = {name: getattr(Options(), name) for name in ("match", "type", *SHOWING)}
    own = replace(own, lr=several, steps=None)
    command = shlex.join(["hookcli", "coord-check", model, *all_typed(own, replace(options, **plain))])
    return with_next([report], command)[0]


def parse_rates(own: CoordOptions, options: Options) -> list[float]:
    """The learning rates of --lr, each once, from the smallest.

    Raises UsageError for a text that is not a number, and for options that have no effect on several.
    """
    if own.lr is None:
        return []
    try:
        rates = sorted({float(text) for text in own.lr.split(",")})
    except ValueError:
        rates = []
    if not rates or not all(0 <= rate <= GREATEST_RATE for rate in rates):
        raise UsageError(f"--lr {own.lr}: give a number, or several, as 1e-4,1e-3,1e-2", option="lr")
    vain = {"points": own.points, "match": options.match, "type": options.type}
    for name in (name for name, value in vain.items() if value and len(rates) > 1):
        raise UsageError(f"--{name}: no module is looked at with several learning rates; leave it out", option=name)
    return rates


def widths_of(texts: Sequence[str], fewest: int) -> tuple[str, Mapping[float, list[str]]]:
    """The name of the width, and for each of its values, from the smallest, the texts of --arg with that value alone.

    Raises UsageError unless exactly one argument has several values, `fewest` of them or more, all positive numbers.
    """
    text_of_widths = width_among(texts)
    name, _, values = text_of_widths.partition("=")
    numbers: dict[Any, list[str]] = {}
    for value in values.split(","):
        one = f"{name}={value.strip()}"
        number = parse_args([one])[name]
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < math.inf:
            raise UsageError(
                f"--arg {text_of_widths}: a width is a number above 0, not {value.strip()!r}", option="arg"
            )
        numbers[number] = [one if text == text_of_widths else text for text in texts]
    if len(numbers) < fewest:
        need = "a slope needs three widths or more, as in" if fewest == FEWEST else "give two widths or more, as in"
        raise UsageError(f"--arg {text_of_widths}: {need} {name}=64,128,256", option="arg")
    return name, dict(sorted(numbers.items()))


def width_among(texts: Sequence[str]) -> str:
    """The text of --arg that has several values. Raises UsageError unless there is one, and its name is given once."""
    several = [text for text in texts if "," in text and not text.partition("=")[2].strip().startswith(tuple("([{'\""))]
    if not several:
        raise UsageError("give the width several values, as in --arg width=64,128,256,512", option="arg")
    several_values, *others = several
    if others:
        both = " and ".join(f"--arg {text}" for text in several[:2])
        raise UsageError(f"{both}: several values are for the width alone; give the others one value", option="arg")
    name = several_values.partition("=")[0]
    if again := [text for text in texts if text != several_values and text.partition("=")[0] == name]:
        raise UsageError(f"--arg {again[0]}: --arg {several_values} gives {name} already", option="arg")
    return several_values
