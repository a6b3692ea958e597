"""hookcli grads"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from hookcli.commands.common import inspect_model
from hookcli.commands.options import DEFAULT_MODEL, Model, Options
from hookcli.errors import UsageError, unknown
from hookcli.registry import load

EXAMPLES = (
    "hookcli grads resnet50 --input 10x3x224x224 --fill ones --depth all",
    "hookcli grads vit_b_16 --of outputs --sort l2",
    "hookcli grads resnet18 --passes 2 --match 'fc.*' --depth all",
)

_PANEL = "Gradients"
_OF = ("parameters", "outputs", "inputs")
_VIA = ("tensor", "module")
_VECTORS = ("ones", "randn")  # as in the engine, which is not imported before a run


def grads(
    model: Model = DEFAULT_MODEL,
    of: Annotated[
        str,
        typer.Option(metavar="|".join(_OF), help="Of what: each module's outputs or inputs.", rich_help_panel=_PANEL),
    ] = "parameters",
    via: Annotated[
        str,
        typer.Option(
            metavar="|".join(_VIA),
            help="Tensor hooks, or full backward hooks, which PyTorch refuses for most models.",
            rich_help_panel=_PANEL,
        ),
    ] = "tensor",
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="sum, mean, cross-entropy, or pkg.mod:fn from output to scalar [what suits the model].",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    backward_vector: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(_VECTORS),
            help="No loss: a vector-Jacobian product of the outputs.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    passes: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Passes without zeroing: gradients accumulate.", rich_help_panel=_PANEL),
    ] = 1,
    *,
    options: Options,
) -> int:
    """Statistics of gradients, in the order of arrival.

    Of parameters in the order in which autograd is done with them, or of what each module returned or received.
    """
    if of not in _OF:
        raise UsageError(unknown("--of", of, _OF))
    if via not in _VIA:
        raise UsageError(unknown("--via", via, _VIA))
    if via == "module" and of == "parameters":
        raise UsageError("--via module: module hooks see outputs and inputs; give --of outputs or --of inputs")
    if backward_vector is not None and backward_vector not in _VECTORS:
        raise UsageError(unknown("--backward-vector", backward_vector, _VECTORS))
    if loss and backward_vector:
        raise UsageError("--loss and --backward-vector: give one of them, each says what to differentiate")
    probe = load("probes", "grads")
    return inspect_model(
        model,
        partial(probe, of, via),
        options,
        train=True,
        loss=_loss(loss),
        backward_vector=backward_vector,
        passes=passes,
    )


def _loss(name: str | None) -> Any:
    """A name that the engine knows, or the function that an import path names."""
    if name is None:
        return None
    if ":" in name:
        from hookcli.importing import load_object

        return load_object(name)
    from hookcli.losses import NAMED

    if name not in NAMED:
        raise UsageError(unknown("--loss", name, NAMED) + " (a function of your own: pkg.mod:fn)")
    return name
