"""Takes out each module, head or expert in turn, and ranks them by the change of the output, a loss or a logit."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="sweep",
    page="questions/cause.md",
    after="trace graph grads",
    question="What causes its results, and did a change alter them?",
    summary="Zero each module in turn, and rank them by what that changes.",
    command="hookcli.capabilities.sweep.command",
    columns="hookcli.capabilities.sweep.columns:DECLARED",
    shortens=True,
    compares=True,
)
