"""hookcli grads"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from hookcli.commands.common import inspect_model
from hookcli.commands.differentiation import BackwardVector, LossName, Passes, StepOptions
from hookcli.commands.options import DEFAULT_MODEL, GRADIENTS, Model, Options, check_choice, choice
from hookcli.errors import UsageError
from hookcli.hooks.choices import GRADIENTS_OF, VIA
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
        choice(GRADIENTS, GRADIENTS_OF, "Of what: each module's outputs or inputs."),
    ] = "parameters",
    via: Annotated[
        str,
        choice(GRADIENTS, VIA, "Tensor hooks, or full backward hooks, which PyTorch refuses for most models."),
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
    check_choice("--of", of, GRADIENTS_OF)
    check_choice("--via", via, VIA)
    if via == "module" and of == "parameters":
        raise UsageError("--via module: module hooks see outputs and inputs; give --of outputs or --of inputs")
    return inspect_model(
        model,
        partial(load("probes", "grads"), of, via),
        options,
        train=True,
        step=StepOptions(loss, backward_vector, passes=passes),
    )
