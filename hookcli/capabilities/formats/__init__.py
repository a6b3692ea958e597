"""The error of rounding weights, inputs and gradients to number formats of 16, 8 and 4 bits."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="formats",
    page="questions/formats.md",
    after="sweep spectrum trace grads",
    summary="Show what FP8, FP4 and integers cost each weight and activation.",
    command="hookcli.capabilities.formats.command",
    probe="hookcli.capabilities.formats.probe:FormatsProbe",
    layout="hookcli.capabilities.formats.layout:COLUMNS",
    reports=("channels", "effect"),
)
