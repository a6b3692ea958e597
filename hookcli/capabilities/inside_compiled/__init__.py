"""Shows what is inside the compiled parts of models in a recorded run: `run --inside-compiled`."""

from hookcli.registry.capability import Capability, RecorderOption

CAPABILITY = Capability(
    name="inside_compiled",
    page="questions/compile.md",
    recorder="hookcli.capabilities.inside_compiled.recorder:Recorder",
    options=(
        RecorderOption(
            name="inside_compiled",
            help="See inside what torch.compile has compiled: recorded steps run a second, instrumented program.",
            default=False,
            after="ops",
            check="hookcli.capabilities.inside_compiled.checked:require_no_operators",
        ),
    ),
    recorded_if_asked=True,
    hints={"inside compiled": "--inside-compiled"},
)
