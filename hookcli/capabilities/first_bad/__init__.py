"""Finds where the first NaN or infinity of a run begins: `run --first-bad stop`."""

from hookcli.registry.capability import Capability, RecorderOption

CAPABILITY = Capability(
    name="first_bad",
    page="questions/nan.md",
    recorder="hookcli.capabilities.first_bad.recorder:Recorder",
    options=(
        RecorderOption(
            name="first_bad",
            help="Search every step for the first NaN or Inf; report it, or stop there with exit code 1. Each step "
            "then costs what a recorded one costs (docs/performance.md).",
            words=("report", "stop"),
            searches="stop",
            after="match",
            first=True,
            example="hookcli run --first-bad stop -m my_package.train",
        ),
    ),
    recorded_if_asked=True,
)
