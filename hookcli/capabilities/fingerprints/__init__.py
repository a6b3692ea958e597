"""Says what two runs of a program do not share first, bit by bit, and what a resumed run has not restored."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="fingerprints",
    page="questions/resume.md",
    recorder="hookcli.capabilities.fingerprints.recorder:Recorder",
    lines="hookcli.capabilities.fingerprints.lines:LINES",
    parting="hookcli.capabilities.fingerprints.parting:parting",
)
