"""hookcli graph"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from hookcli.commands.common import inspect_model
from hookcli.commands.differentiation import BackwardVector, LossName, Passes, StepOptions
from hookcli.commands.options import DEFAULT_MODEL, GRADIENTS, Model, Options, check_choice, choice
from hookcli.commands.output import remark
from hookcli.hooks.choices import CALLS
from hookcli.registry import load

EXAMPLES = (
    "hookcli graph resnet18 --depth all --sort -us",
    "hookcli graph net.py:Net --input 2x8 --format svg --output graph.svg",
    "hookcli graph resnet50 --depth 1 --format dot",
)


def graph(
    model: Model = DEFAULT_MODEL,
    call: Annotated[
        str,
        choice(GRADIENTS, CALLS, "Differentiate by Tensor.backward, or by torch.autograd.grad for all parameters."),
    ] = "backward",
    native: Annotated[
        bool,
        typer.Option(
            "--native",
            help="By hooks in C++, without the GIL; built on first use, which needs a compiler.",
            rich_help_panel=GRADIENTS,
        ),
    ] = False,
    loss: LossName = None,
    backward_vector: BackwardVector = None,
    passes: Passes = 1,
    *,
    options: Options,
) -> int:
    """The autograd graph, node by node, as backward runs it.

    With the module whose forward made it, the gradients that come in and go out, and the time that it took.
    """
    check_choice("--call", call, CALLS)
    return inspect_model(
        model,
        partial(load("probes", "graph"), native, partial(remark, options=options)),
        options,
        train=True,
        step=StepOptions(loss, backward_vector, call, passes),
    )
