"""hookcli graph"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from hookcli.capabilities.graph.layout import COLUMNS as COLUMNS
from hookcli.commands.option_fields import choice, option
from hookcli.commands.options import DEFAULT_MODEL, GRADIENTS, Model, OneBatchOptions
from hookcli.commands.output import remark
from hookcli.commands.probe_command import RunOptions, inspect_model
from hookcli.commands.run_options import PassesOptions
from hookcli.hooks.option_values import AUTOGRAD_CALLS
from hookcli.registry import load

EXAMPLES = (
    "hookcli graph resnet18 --depth all --sort -us",
    "hookcli graph net.py:Net --input 2x8 --format svg --output graph.svg",
    "hookcli graph resnet50 --depth 1 --format dot",
)
FIRST = "loss input weights match depth format output native sort columns"


@dataclass(frozen=True)
class GraphOptions:
    """Options of `hookcli graph` alone."""

    panel = GRADIENTS

    call: str = choice(
        "backward",
        "Differentiate by Tensor.backward, or by torch.autograd.grad for all parameters.",
        AUTOGRAD_CALLS,
        seldom=True,
    )
    native: bool = option(False, "Use hooks in C++, without the GIL; built on first use, which needs a compiler.")


def graph(model: Model = DEFAULT_MODEL, *, own: GraphOptions, step: PassesOptions, options: OneBatchOptions) -> int:
    """Show the autograd graph, node by node, as backward runs it.

    Backward only: `hookcli flow` shows the calls of forward, `hookcli trace` every hook in both, over time.

    Each node has the module whose forward created it, statistics of its incoming and outgoing gradients, and its time.
    """
    make_probe = partial(load("probes", "graph"), own.native, partial(remark, options=options))
    return inspect_model(model, make_probe, options, RunOptions(train=True, step=replace(step, call=own.call)))
