"""hookcli experts"""

from __future__ import annotations

from typing import Annotated

from hookcli.capabilities.experts.layout import COLUMNS as COLUMNS
from hookcli.commands.options import SEVERAL, Model, Options, all_but
from hookcli.commands.probe_command import inspect_model
from hookcli.registry import load

EXAMPLES = ("hookcli experts net.py:MoE --data train.py:loader --batches 20",)
FIRST = "input weights batch_size data batches depth format output sort train columns"
_Options = Annotated[Options, all_but("ops", "match", "type", *SEVERAL)]


def experts(model: Model, *, options: _Options) -> int:
    """Show how tokens spread over a mixture of experts.

    A row per layer; with --depth all, and in JSON, also a row per expert. The load is relative to the layer's mean (a
    layer shows its busiest expert's), the entropy is relative to an even choice, and the margin is that between the
    lowest chosen score and the next.
    """
    return inspect_model(model, load("probes", "experts"), options)
