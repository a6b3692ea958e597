"""The ranks of what modules return, of weights and of their updates, from their singular values."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="spectrum",
    page="questions/rank.md",
    after="trace graph grads",
    summary="Show the ranks of outputs and weights: their singular values.",
    command="hookcli.capabilities.spectrum.command",
    probe="hookcli.capabilities.spectrum.probe:SpectrumProbe",
    checks={"HK051": "hookcli.capabilities.spectrum.checks:RankCollapse"},
    columns="hookcli.capabilities.spectrum.columns:DECLARED",
    flag="Also the ranks of outputs, weights and updates (hookcli spectrum).",
)
