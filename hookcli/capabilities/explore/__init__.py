"""A model, a record or a saved report on a screen, for the keyboard. Free of torch; only `app` imports Textual."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="explore",
    page="questions/explore.md",
    after="report",
    summary="Explore a model, a record or a saved report in the terminal.",
    command="hookcli.capabilities.explore.command",
    on_one_rank=True,
    hints=dict.fromkeys(("help of show", "help of report"), "To browse the same with the keyboard: `hookcli explore`."),
)
