"""How tokens spread over a mixture of experts, and how sure its router is."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="experts",
    page="questions/experts.md",
    after="trace graph grads",
    summary="Show how tokens spread over a mixture of experts.",
    command="hookcli.capabilities.experts.command",
    probe="hookcli.capabilities.experts.probe:ExpertsProbe",
    checks={
        "HK048": "hookcli.capabilities.experts.checks:DeadExpert",
        "HK049": "hookcli.capabilities.experts.checks:RouterCollapse",
        "HK050": "hookcli.capabilities.experts.checks:DroppedTokens",
    },
    columns="hookcli.capabilities.experts.columns:DECLARED",
    flag="Also the load of each expert (hookcli experts).",
)
