"""hookcli attention"""

from __future__ import annotations

from typing import Annotated

from hookcli.capabilities.attention.layout import COLUMNS as COLUMNS
from hookcli.commands.options import SEVERAL, Model, Options, all_but
from hookcli.commands.probe_command import inspect_model
from hookcli.registry import load

EXAMPLES = (
    "hookcli attention vit_b_16",
    "hookcli attention net.py:GPT --data data.py:loader --batches 10 --format csv",
)
FIRST = "weights input batch_size data batches train depth match columns sort format output"
_Options = Annotated[Options, all_but("ops", *SEVERAL)]


def attention(model: Model = "vit_b_16", *, options: _Options) -> int:
    """Show each head of attention: entropy, logits, sinks, dead heads.

    The first line says which heads are dead, collapsed or like another one. Weights are computed again from queries and
    keys, in blocks, without dropout. Means are over the queries that may see two keys or more.
    """
    return inspect_model(model, load("probes", "attention"), options)
