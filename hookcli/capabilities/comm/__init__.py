"""Measures the effect of DDP's communication hooks on gradients, bucket by bucket."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="comm",
    page="processes.md",
    after="show",
    summary="Measure what DDP's communication hooks do to gradients.",
    command="hookcli.capabilities.comm.command",
    columns="hookcli.capabilities.comm.columns:DECLARED",
    hooks={"comm": "comm", "collective": "comm"},
    complete=True,
    shortens=True,
)
