"""Fires where a condition on the figures of a step holds: `run --rule 'spike: grad_norm > 5 * median(50)'`."""

from hookcli.registry.capability import Capability, RecorderOption

CAPABILITY = Capability(
    name="rules",
    page="run.md",
    recorder="hookcli.capabilities.rules.recorder:Recorder",
    recorded_if_asked=True,
    options=(
        RecorderOption(
            name="rules",
            typed="rule",
            help="A condition on steps, as in 'spike: grad_norm > 5 * median(50)'.",
            metavar="RULE",
            default=(),
            after="first_bad match",
            check="hookcli.capabilities.rules.language:check_rules",
        ),
        RecorderOption(
            name="then",
            help="Where a rule fires: report, dump, stop, exec:CMD [report].",
            metavar="A,B,...",
            after="rule",
            read="hookcli.capabilities.rules.actions:located",
            check="hookcli.capabilities.rules.actions:check_then",
        ),
    ),
    lines="hookcli.capabilities.rules.lines:LINES",
    headline="hookcli.capabilities.rules.lines:summaries",
    headline_place=-2,
    fault="hookcli.capabilities.rules.lines:fault",
)
