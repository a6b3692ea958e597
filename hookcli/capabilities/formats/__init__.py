"""The error of rounding weights, inputs and gradients to number formats of 16, 8 and 4 bits."""

from hookcli.registry.capability import Capability, RecorderOption

CAPABILITY = Capability(
    name="formats",
    page="questions/formats.md",
    after="sweep spectrum trace grads",
    summary="Show what FP8, FP4 and integers cost each weight and activation.",
    command="hookcli.capabilities.formats.command",
    probe="hookcli.capabilities.formats.probe:FormatsProbe",
    layout="hookcli.capabilities.formats.layout:COLUMNS",
    reports=("channels", "effect"),
    recorder="hookcli.capabilities.formats.recorder:Recorder",
    options=(
        RecorderOption(
            name="formats",
            help="Also what rounding costs weights, inputs and gradients, in formats: mxfp8, nvfp4, all ...",
            metavar="A,B",
            after="hist",
            read="hookcli.capabilities.formats.layout:formats_named",
        ),
    ),
    recorded_if_asked=True,
    lines="hookcli.capabilities.formats.lines:LINES",
    headline="hookcli.capabilities.formats.headline:headline",
    headline_place=2,
    hints={"command quantize": "formats {}"},
)
