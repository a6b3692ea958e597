"""hookcli activations"""

from __future__ import annotations

import typer

from hookcli.commands.options import DEFAULT_MODEL, LookOptions, Model, Options, TimeOptions
from hookcli.commands.probe_command import RunOptions
from hookcli.commands.tensor_commands import Layer, TensorOptions, inspect_tensors
from hookcli.registry import load
from hookcli.table.columns.layouts import STATISTICS

EXAMPLES = (
    "hookcli activations resnet50 --input 10x3x224x224 --fill ones --depth 1",
    "hookcli activations convnext_tiny --type Linear --sort -max",
    "hookcli activations resnet18 --hist --sort -outside_float8_e4m3",
    "hookcli activations resnet18 --hist conv1",
    "hookcli activations resnet50 --image photos --batches all",
    "hookcli activations resnet18 --train --batch-size 4 --output activations.csv",
)
COLUMNS = STATISTICS
FIRST = "hist input weights batch_size data match depth format output ops sort columns device"


def activations(
    ctx: typer.Context,
    model: Model = DEFAULT_MODEL,
    layer: Layer = None,
    *,
    own: TensorOptions,
    options: Options,
    timing: TimeOptions,
    compiling: LookOptions,
) -> int:
    """Show statistics of every module's outputs.

    Statistics of complex outputs are taken over the modulus.
    """
    how = RunOptions(time=timing.time, compiling=compiling)
    return inspect_tensors(ctx, model, layer, load("probes", "activations"), own, options, how)
