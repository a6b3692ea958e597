"""Shows tensors at rest: of files, which need no torch, and the parameters and buffers of models."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="weights",
    page="weights.md",
    after="shapes",
    order=3,
    summary="Show the tensors of files, or parameters and buffers of models.",
    command="hookcli.capabilities.weights.command",
    layout="hookcli.capabilities.weights.layout:WEIGHTS",
    on_one_rank=True,
    shortens=True,
    pictures=("hist",),
    hints={
        "tensors at rest": "`hookcli weights {}` shows its parameters; to run it, ",
        "command for a file of tensors": "hookcli weights {}",
    },
)
