"""hookcli inputs"""

from __future__ import annotations

from typing import Annotated

import typer

from hookcli.commands.options import DEFAULT_MODEL, LookOptions, Model, Options, all_but
from hookcli.commands.probe_command import RunOptions
from hookcli.commands.tensor_commands import Layer, TensorOptions, inspect_tensors
from hookcli.registry import load
from hookcli.table.columns.layouts import STATISTICS

EXAMPLES = (
    "hookcli inputs resnet50 --batch-size 10",
    "hookcli inputs vit_b_16 --type LayerNorm --sort -std",
    "hookcli inputs raft_small --match 'feature_encoder.*' --format csv",
)
COLUMNS = STATISTICS
FIRST = "hist input weights batch_size data match depth format output sort columns device"


def inputs(
    ctx: typer.Context,
    model: Model = DEFAULT_MODEL,
    layer: Layer = None,
    *,
    own: TensorOptions,
    options: Annotated[Options, all_but("ops")],
    compiling: LookOptions,
) -> int:
    """Show statistics of every module's inputs."""
    how = RunOptions(compiling=compiling)
    return inspect_tensors(ctx, model, layer, load("probes", "inputs"), own, options, how)
