"""hookcli inputs"""

from __future__ import annotations

from hookcli.commands.options import DEFAULT_MODEL, Model, Options
from hookcli.commands.probe_command import inspect_model
from hookcli.registry import load

EXAMPLES = (
    "hookcli inputs resnet50 --batch-size 10",
    "hookcli inputs vit_b_16 --type LayerNorm --sort -std",
    "hookcli inputs raft_small --match 'feature_encoder.*' --format csv",
)


def inputs(model: Model = DEFAULT_MODEL, *, options: Options) -> int:
    """Show statistics of every module's inputs."""
    return inspect_model(model, load("probes", "inputs"), options)
