"""Says where the time of a run goes that need not, and how much work it does per second."""

from hookcli.registry.capability import Capability, RecorderOption

CAPABILITY = Capability(
    name="speed",
    page="questions/speed.md",
    checks={
        "HK064": "hookcli.capabilities.speed.checks:WaitsForData",
        "HK065": "hookcli.capabilities.speed.checks:SlowRank",
    },
    recorder="hookcli.capabilities.speed.recorder:Recorder",
    columns="hookcli.capabilities.speed.columns:DECLARED",
    options=(
        RecorderOption(
            name="throughput",
            help="Also samples, tokens and operations per second, and the share of the device's peak (MFU).",
            default=False,
        ),
        RecorderOption(
            name="peak_flops",
            help="The device's peak for --throughput, in operations per second [published, or measured on the CPU].",
            metavar="989T",
            after="throughput",
            read="hookcli.capabilities.speed.peaks:parsed_peak",
        ),
    ),
    charts="hookcli.capabilities.speed.columns:CHARTS",
    lines="hookcli.capabilities.speed.lines:LINES",
    headline="hookcli.capabilities.speed.checks:headline",
    headline_place=1,
)
