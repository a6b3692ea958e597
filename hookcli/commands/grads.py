"""hookcli grads"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from hookcli.choices import GRADIENTS_OF, VIA
from hookcli.commands.common import inspect_model
from hookcli.commands.differentiation import BackwardVector, LossName, Passes, chosen_loss
from hookcli.commands.options import DEFAULT_MODEL, GRADIENTS, Model, Options
from hookcli.errors import UsageError, unknown
from hookcli.registry import load

EXAMPLES = (
    "hookcli grads resnet50 --input 10x3x224x224 --fill ones --depth all",
    "hookcli grads vit_b_16 --of outputs --sort l2",
    "hookcli grads resnet18 --passes 2 --match 'fc.*' --depth all",
)


def grads(
    model: Model = DEFAULT_MODEL,
    of: Annotated[
        str,
        typer.Option(
            metavar="|".join(GRADIENTS_OF), help="Of what: each module's outputs or inputs.", rich_help_panel=GRADIENTS
        ),
    ] = "parameters",
    via: Annotated[
        str,
        typer.Option(
            metavar="|".join(VIA),
            help="Tensor hooks, or full backward hooks, which PyTorch refuses for most models.",
            rich_help_panel=GRADIENTS,
        ),
    ] = "tensor",
    loss: LossName = None,
    backward_vector: BackwardVector = None,
    passes: Passes = 1,
    *,
    options: Options,
) -> int:
    """Statistics of gradients, in the order of arrival.

    Of parameters in the order in which autograd is done with them, or of what each module returned or received.
    """
    if of not in GRADIENTS_OF:
        raise UsageError(unknown("--of", of, GRADIENTS_OF))
    if via not in VIA:
        raise UsageError(unknown("--via", via, VIA))
    if via == "module" and of == "parameters":
        raise UsageError("--via module: module hooks see outputs and inputs; give --of outputs or --of inputs")
    return inspect_model(
        model,
        partial(load("probes", "grads"), of, via),
        options,
        train=True,
        loss=chosen_loss(loss, backward_vector),
        backward_vector=backward_vector,
        passes=passes,
    )
