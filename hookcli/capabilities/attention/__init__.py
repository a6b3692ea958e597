"""Attention, head by head: entropy, logits, sinks, and heads that are dead, collapsed or alike."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="attention",
    page="questions/attention.md",
    after="trace graph grads",
    summary="Show each head of attention: entropy, logits, sinks, dead heads.",
    command="hookcli.capabilities.attention.command",
    probe="hookcli.capabilities.attention.probe:AttentionProbe",
    checks={
        "HK045": "hookcli.capabilities.attention.checks:AttentionCollapse",
        "HK046": "hookcli.capabilities.attention.checks:AttentionLogits",
        "HK047": "hookcli.capabilities.attention.checks:HeadWithoutEffect",
    },
    columns="hookcli.capabilities.attention.columns:DECLARED",
    flag="Also the attention of each head (hookcli attention).",
)
