"""hookcli grads"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import typer

from hookcli.commands.option_fields import choice
from hookcli.commands.options import DEFAULT_MODEL, GRADIENTS, LookOptions, Model, Options, TimeOptions
from hookcli.commands.probe_command import RunOptions
from hookcli.commands.run_options import PassesOptions
from hookcli.commands.tensor_commands import Layer, TensorOptions, inspect_tensors
from hookcli.errors import UsageError
from hookcli.hooks.option_values import GRADIENTS_OF, VIA
from hookcli.registry import load
from hookcli.table.columns.layouts import GRADS

EXAMPLES = (
    "hookcli grads resnet50 --input 10x3x224x224 --fill ones --depth all",
    "hookcli grads vit_b_16 --of outputs --sort l2",
    "hookcli grads net.py:Net --data train.py:loader --loss cross-entropy",
    "hookcli grads resnet18 --passes 2 --match 'fc.*' --depth all",
)
COLUMNS = GRADS
FIRST = "of hist loss input weights match depth ops format output columns data"


@dataclass(frozen=True)
class GradsOptions(TensorOptions):
    """Options of `hookcli grads` alone."""

    panel = GRADIENTS

    of: str = choice("parameters", "Gradients of parameters, outputs or inputs.", GRADIENTS_OF)
    via: str = choice("tensor", "Tensor hooks, or full backward hooks, which PyTorch refuses for most models.", VIA)


def grads(
    ctx: typer.Context,
    model: Model = DEFAULT_MODEL,
    layer: Layer = None,
    *,
    own: GradsOptions,
    step: PassesOptions,
    options: Options,
    timing: TimeOptions,
    compiling: LookOptions,
) -> int:
    """Show statistics of gradients, in order of arrival.

    Parameters are in the order in which autograd finishes their gradients. With --of inputs, a row is the gradient from
    the module's own use of its input; if the module returns its input, it is the tensor's whole gradient, over all
    uses. Statistics of complex gradients are taken over the modulus.
    """
    if own.via == "module" and own.of == "parameters":
        raise UsageError("--via module: module hooks see outputs and inputs; give --of outputs or --of inputs")
    probe = partial(load("probes", "grads"), own.of, own.via)
    how = RunOptions(train=True, step=step, time=timing.time, compiling=compiling)
    return inspect_tensors(ctx, model, layer, probe, own, options, how)
