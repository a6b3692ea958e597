"""The line above a record on what rounding costs."""

from __future__ import annotations

from hookcli.capabilities.formats.lines import Rounding
from hookcli.record.file.reading import Record
from hookcli.record.file.views.headlines import Aside


def headline(record: Record) -> list[str]:
    """Net, step 40: mxfp4 keeps only 6.6 dB of ...; for each model the last step, where something loses too much."""
    last = {line.model: line for line in record.of(Rounding)}
    return [Aside(f"{model}, step {line.step}: {line.verdict}") for model, line in last.items() if line.loses]
