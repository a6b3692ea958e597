"""The flow of tensors forward through a model, as a list, and as a picture of its architecture."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="flow",
    page="commands.md",
    after="shapes",
    order=1,
    summary="Show how tensors flow forward; draw the architecture.",
    command="hookcli.capabilities.flow.command",
    probe="hookcli.capabilities.flow.probe:FlowProbe",
    columns="hookcli.capabilities.flow.columns:DECLARED",
    drawing="hookcli.capabilities.flow.drawing:draw",
    drawn=("id", "inputs"),
    view="hookcli.capabilities.flow.page:picture.js",
    library="dagre",
    shortens=True,
    hints={f"command {word}": "flow {}" for word in ("draw", "plot", "visualize", "viz", "architecture")},
)
