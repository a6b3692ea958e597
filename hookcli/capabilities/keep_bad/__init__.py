"""Keeps the module that returned the first value that is not finite, so that it can be reproduced."""

from hookcli.registry.capability import Capability, RecorderOption

CAPABILITY = Capability(
    name="keep_bad",
    page="questions/nan.md",
    recorder="hookcli.capabilities.keep_bad.recorder:Recorder",
    options=(
        RecorderOption(
            name="keep_bad",
            help="Keep the module of that value in DIR, and code that reproduces it.",
            metavar="DIR",
            after="first_bad match",
            folder=True,
            check="hookcli.capabilities.keep_bad.checked:require_search",
        ),
    ),
    recorded_if_asked=True,
)
