"""Writes event files that TensorBoard shows."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="tensorboard",
    page="run.md",
    after="github",
    order=1,
    reporter="hookcli.capabilities.tensorboard.reporter:TensorboardReporter",
    extra="tensorboard",
)
