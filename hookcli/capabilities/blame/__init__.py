"""Names the rank, the micro-batch and the rows of a batch that made a gradient large, or not finite."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="blame",
    page="questions/blame.md",
    recorder="hookcli.capabilities.blame.recorder:Recorder",
    lines="hookcli.capabilities.blame.lines:LINES",
    headline="hookcli.capabilities.blame.headline:headline",
)
