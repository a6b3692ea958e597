"""hookcli attention"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from hookcli.capabilities.attention.layout import COLUMNS as COLUMNS
from hookcli.commands.option_fields import option
from hookcli.commands.options import SEVERAL, Model, Options, all_but
from hookcli.commands.probe_command import inspect_model
from hookcli.registry import load

EXAMPLES = (
    "hookcli attention vit_b_16",
    "hookcli attention net.py:GPT --data data.py:loader --batches 10 --format csv",
)
FIRST = "input weights batch_size data batches heads match depth format output sort train columns"


@dataclass(frozen=True)
class AttentionOptions:
    """The option of `hookcli attention` alone."""

    heads: int | None = option(None, "Number of heads, where a module doesn't say it.", metavar="N", min=1)


_Options = Annotated[Options, all_but("ops", *SEVERAL)]


def attention(model: Model = "vit_b_16", *, own: AttentionOptions, options: _Options) -> int:
    """Show each head of attention: entropy, logits, sinks, dead heads.

    The first line says which heads are dead, collapsed or like another one. Weights are recomputed from queries and
    keys, in blocks, without dropout. Means are over the queries that may see two keys or more.
    """
    return inspect_model(model, partial(load("probes", "attention"), own.heads or 0), options)
