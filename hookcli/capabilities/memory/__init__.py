"""Simulates the memory that a training step takes, and finds the largest batch that fits."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="memory",
    page="memory.md",
    after="shapes",
    order=2,
    summary="Show the memory that training takes: its peak, and what holds it.",
    command="hookcli.capabilities.memory.command",
    checks={"HK033": "hookcli.capabilities.memory.checks:PeakTooHigh"},
    check_options="hookcli.capabilities.memory.check_options:BudgetOptions",
    measures="hookcli.capabilities.memory.request:peak_of",
    as_checked="hookcli.capabilities.memory.next_command:as_checked",
    columns="hookcli.capabilities.memory.columns:DECLARED",
    reports=("fits",),
    shortens=True,
    pictures=("moments",),
    adds_to={"shapes": "the peak"},
    hints={"help of shapes": "For the memory of a whole training step, see `hookcli memory`."},
)
