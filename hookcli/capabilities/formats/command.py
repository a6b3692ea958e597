"""hookcli formats"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from hookcli.capabilities.formats.layout import (
    ACTIVATIONS,
    CHANNELS,
    DEFAULT,
    EFFECT,
    FORMATS,
    GRADIENTS,
    OF,
    WEIGHTS,
    columns_of,
    effect_columns,
)
from hookcli.commands.model import Selection, find_recipe
from hookcli.commands.next_command import all_typed
from hookcli.commands.option_fields import check_choice, option, words_of
from hookcli.commands.options import DEFAULT_MODEL, SEVERAL, SHOWING, Model, Options, all_but
from hookcli.commands.output import Output
from hookcli.commands.probe_command import RunOptions, feedback_of, inspect_model, setting_of
from hookcli.commands.progress import salvaging
from hookcli.commands.run_options import OnePassOptions, StepOptions
from hookcli.errors import UsageError
from hookcli.registry import load

EXAMPLES = (
    "hookcli formats resnet18",
    "hookcli formats net.py:Net --data train.py:loader --to mxfp8,nvfp4",
    "hookcli formats vit_b_16 --of weights --to mxfp4 --sort sqnr_mxfp4",
    "hookcli formats net.py:Net --of gradients --loss cross-entropy",
    "hookcli formats resnet18 --effect --to int8,nvfp4",
    "hookcli formats hf:gpt2 --channels",
)
COLUMNS = tuple({column.name: column for column in (*CHANNELS, *EFFECT, *columns_of(FORMATS))}.values())
FIRST = "to of effect channels input weights data match depth format output sort"


@dataclass(frozen=True)
class FormatsOptions:
    """Options of `hookcli formats` alone."""

    panel = "Measurements"

    to: list[str] = option(list, f"Formats, or all; by default {', '.join(DEFAULT)}.", metavar="A,B")
    of: list[str] = option(list, f"{', '.join(OF)} [the first two].", metavar="A,B")
    effect: bool = option(False, "Round the layers, and show how far the output moves.")
    channels: bool = option(False, "Show the channels that stand out in layers' inputs.")


def formats(
    model: Model = DEFAULT_MODEL,
    *,
    own: FormatsOptions,
    step: OnePassOptions,
    options: Annotated[Options, all_but("ops", *SEVERAL)],
) -> int:
    """Show what FP8, FP4 and integers cost each weight and activation.

    Rounds weights, the inputs of layers with weights, and the gradients of their outputs. Figures are signal-to-noise
    ratios in dB: at 20 dB the error is a tenth of the values, and 6 dB less is twice the error. A row of several
    tensors has the figures of the worst. With only one format, it also shows the shares of values that underflow to
    zero or saturate, the worst block, and what the channel with the largest value costs the others. Further formats:
    float8_e5m2, and float8_e4m3fn_row and float8_e5m2_row with a scale for each row.
    """
    names, of = words_of(own.to), words_of(own.of) or [WEIGHTS, ACTIVATIONS]
    for word in names:
        check_choice("--to", word, (*FORMATS, "all"))
    for word in of:
        check_choice("--of", word, OF)
    chosen = [name for name in FORMATS if name in names or "all" in names] or DEFAULT
    if own.channels:
        check_channels(own, step)
        from hookcli.capabilities.formats.channels import ChannelsProbe

        return inspect_model(model, ChannelsProbe, options, RunOptions(step=step))
    if own.effect:
        return effect(model, of, chosen, step, options)
    probe = partial(load("probes", "formats"), of=of, formats=chosen, following=on_output(model, own, step, options))
    return inspect_model(model, probe, options, RunOptions(train=GRADIENTS in of, step=step))


def on_output(model: str, own: FormatsOptions, step: StepOptions, options: Options) -> str:
    """The same command with --effect, which says whether the output still agrees; "" where it does not go with it."""
    if GRADIENTS in words_of(own.of) or step != StepOptions() or options.batches != Options.batches:
        return ""
    plain = {name: getattr(Options(), name) for name in SHOWING}  # its table has other columns
    typed = all_typed(replace(own, effect=True), replace(options, **plain))
    return shlex.join(["hookcli", "formats", model, *typed])


def check_channels(own: FormatsOptions, step: StepOptions) -> None:
    """Raises UsageError for options that --channels does not go with."""
    others = {"--effect": own.effect, "--to": own.to, "--of": own.of, "--loss": step.loss}
    for name in (name for name, is_set in others.items() if is_set):
        raise UsageError(f"--channels and {name}: leave one of them out", option="channels")


def effect(model: str, of: Sequence[str], formats: Sequence[str], step: StepOptions, options: Options) -> int:
    """Write how far the output moves when layers are rounded to these formats.

    Raises UsageError for options that are for gradients, or for several batches.
    """
    others = {
        "--of gradients": GRADIENTS in of,
        "--loss": step.loss,
        "--backward-vector": step.backward_vector,
        "--batches": options.batches != Options.batches,
    }
    for name in (name for name, is_set in others.items() if is_set):
        raise UsageError(f"--effect and {name}: leave one of them out", option="effect")
    output = Output(replace(options, sort=options.sort or "order"))
    output.check_columns(effect_columns(formats))
    with salvaging(output) as progress:
        from hookcli.capabilities.formats.effect import EffectRun
        from hookcli.engine.prepare import prepare_run

        setting = setting_of(options, bool(options.train))
        if setting.device.type == "meta":
            raise UsageError("--device meta: no values to look at", option="device")
        run = prepare_run(find_recipe(model, options), setting, step.make(), feedback_of(options, progress))
        select = Selection(options).of(run.model)
        report = EffectRun(run, formats, of, options.edit, options.fastpath, select).report()
    output.write([report])
    return 0
