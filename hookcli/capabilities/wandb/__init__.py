"""Writes runs of Weights & Biases, which need no account."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="wandb",
    page="run.md",
    after="github",
    order=3,
    reporter="hookcli.capabilities.wandb.reporter:WandbReporter",
    extra="wandb",
)
