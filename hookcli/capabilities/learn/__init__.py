"""Says why a training does not learn: gradients that are never cleared, a loss no better than that of guessing."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="learn",
    page="questions/learn.md",
    checks={
        "HK056": "hookcli.capabilities.learn.checks:GradientsNotCleared",
        "HK057": "hookcli.capabilities.learn.checks:NoBetterThanGuessing",
    },
    recorder="hookcli.capabilities.learn.recorder:Recorder",
    lines="hookcli.capabilities.learn.lines:LINES",
    headline="hookcli.capabilities.learn.headline:headline",
)
