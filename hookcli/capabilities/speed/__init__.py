"""Says where the time of a run goes that need not: to waiting for data, or for one slow rank."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="speed",
    page="questions/speed.md",
    checks={
        "HK064": "hookcli.capabilities.speed.checks:WaitsForData",
        "HK065": "hookcli.capabilities.speed.checks:SlowRank",
    },
    recorder="hookcli.capabilities.speed.recorder:Recorder",
    lines="hookcli.capabilities.speed.lines:LINES",
    headline="hookcli.capabilities.speed.headline:headline",
    headline_place=1,
)
