"""hookcli formats"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from hookcli.capabilities.formats.layout import (
    ACTIVATIONS,
    CHANNELS,
    DEFAULT,
    FORMATS,
    GRADIENTS,
    OF,
    WEIGHTS,
    columns_of,
)
from hookcli.commands.option_fields import check_choice, option, words_of
from hookcli.commands.options import DEFAULT_MODEL, SEVERAL, Model, Options, all_but
from hookcli.commands.probe_command import inspect_model
from hookcli.commands.run_options import OnePassOptions
from hookcli.errors import UsageError
from hookcli.registry import load

EXAMPLES = (
    "hookcli formats resnet18",
    "hookcli formats net.py:Net --data train.py:loader --to mxfp8,nvfp4",
    "hookcli formats vit_b_16 --of weights --to mxfp4 --sort sqnr_mxfp4",
    "hookcli formats net.py:Net --of gradients --loss cross-entropy",
)
COLUMNS = tuple({column.name: column for column in (*CHANNELS, *columns_of(FORMATS))}.values())
FIRST = "to of channels weights input data depth match sort format output"


@dataclass(frozen=True)
class FormatsOptions:
    """Options of `hookcli formats` alone."""

    panel = "Measurements"

    to: list[str] = option(list, f"Formats, or all [{', '.join(DEFAULT)}].", metavar="A,B")
    of: list[str] = option(list, f"{', '.join(OF)} [the first two].", metavar="A,B")
    channels: bool = option(False, "Show the channels that stand out in what layers receive, instead.")


def formats(
    model: Model = DEFAULT_MODEL,
    *,
    own: FormatsOptions,
    step: OnePassOptions,
    options: Annotated[Options, all_but("ops", *SEVERAL)],
) -> int:
    """Show what FP8, FP4 and integers cost each weight and activation.

    Rounds weights, what layers with weights receive, and gradients of what these return. Figures are signal-to-noise
    ratios in dB: at 20 dB the error is a tenth of the values, and 6 dB less is twice the error. A row of several
    tensors has the figures of the worst. With one format alone: also the shares of values that underflow to zero or
    saturate, the worst block, and what the channel of the largest value costs the others. Further formats:
    float8_e5m2, and float8_e4m3fn_row and float8_e5m2_row with a scale for each row.
    """
    if own.channels:
        for name in ("to", "of"):
            if getattr(own, name):
                raise UsageError(f"--channels and --{name}: leave one of them out", option="channels")
        from hookcli.capabilities.formats.channels import ChannelsProbe

        return inspect_model(model, ChannelsProbe, options, step=step)
    names, of = words_of(own.to), words_of(own.of) or [WEIGHTS, ACTIVATIONS]
    for word in names:
        check_choice("--to", word, (*FORMATS, "all"))
    for word in of:
        check_choice("--of", word, OF)
    chosen = [name for name in FORMATS if name in names or "all" in names] or DEFAULT
    probe = partial(load("probes", "formats"), of=of, formats=chosen)
    return inspect_model(model, probe, options, train=GRADIENTS in of, step=step)
