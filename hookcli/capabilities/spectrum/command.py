"""hookcli spectrum"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from hookcli.capabilities.spectrum.layout import COLUMNS as COLUMNS
from hookcli.capabilities.spectrum.layout import OF
from hookcli.commands.option_fields import choice
from hookcli.commands.options import DEFAULT_MODEL, SEVERAL, LookOptions, Model, Options, all_but
from hookcli.commands.probe_command import RunOptions, inspect_model
from hookcli.registry import load

EXAMPLES = (
    "hookcli spectrum resnet50",
    "hookcli spectrum vit_b_16 --match '*attention' --depth all",
    "hookcli spectrum net.py:Net --data train.py:loader --batches 8",
    "hookcli spectrum resnet18 --of weights --sort effective_rank",
)
FIRST = "of input weights batch_size data match depth format output sort columns"


@dataclass(frozen=True)
class SpectrumOptions:
    """The option of `hookcli spectrum` alone."""

    of: str | None = choice(None, "Only what modules return, or only weights [both].", OF)


def spectrum(
    model: Model = DEFAULT_MODEL,
    *,
    own: SpectrumOptions,
    options: Annotated[Options, all_but("ops", *SEVERAL)],
    compiling: LookOptions,
) -> int:
    """Show the ranks of outputs and weights: their singular values.

    The effective rank is the number of directions in which a matrix extends, weighted by how far (Roy and Vetterli
    2007); the stable rank uses squares instead. An output is a matrix of tokens by features, shown beside the rank of
    its input. Exact over calls and batches. `hookcli run --spectrum` records them over time, also for updates.
    """
    probe = partial(load("probes", "spectrum"), of=own.of)
    return inspect_model(model, probe, options, RunOptions(compiling=compiling))
