"""The autograd graph of a run, node by node, from hooks on the nodes in Python or in C++."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="graph",
    page="commands.md",
    after="grads",
    summary="Show the autograd graph, node by node, as backward runs it.",
    command="hookcli.capabilities.graph.command",
    probe="hookcli.capabilities.graph.probe:GraphProbe",
    columns="hookcli.capabilities.graph.columns:DECLARED",
    drawing="hookcli.capabilities.graph.drawing:draw",
    drawn=("id", "next"),
    hooks={
        **dict.fromkeys(("node_creation", "node_pre", "node", "node, of a parameter"), "graph"),
        **dict.fromkeys(("C++ node, before", "C++ node, after", "C++ engine"), "graph --native"),
        **dict.fromkeys(("C++ tensor", "C++ capture"), "graph --native --call grad"),
    },
    complete=True,
    shortens=True,
)
