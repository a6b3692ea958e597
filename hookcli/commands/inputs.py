"""hookcli inputs"""

from __future__ import annotations

from functools import partial

import typer

from hookcli.commands.histogram import Layer, requested
from hookcli.commands.options import DEFAULT_MODEL, HistOptions, Model, Options
from hookcli.commands.probe_command import inspect_model
from hookcli.registry import load
from hookcli.report.columns import STATISTICS

EXAMPLES = (
    "hookcli inputs resnet50 --batch-size 10",
    "hookcli inputs vit_b_16 --type LayerNorm --sort -std",
    "hookcli inputs raft_small --match 'feature_encoder.*' --format csv",
)
COLUMNS = STATISTICS


def inputs(
    ctx: typer.Context, model: Model = DEFAULT_MODEL, layer: Layer = None, *, own: HistOptions, options: Options
) -> int:
    """Show statistics of every module's inputs."""
    model, options = requested(ctx, model, layer, own, options)
    return inspect_model(model, partial(load("probes", "inputs"), hist=own.hist), options)
