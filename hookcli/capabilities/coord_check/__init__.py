"""Trains a model at several widths for a few steps: do its outputs, and their changes, grow with the width?"""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="coord-check",
    page="questions/width.md",
    after="show",
    summary="Check whether a learning rate transfers to larger widths.",
    command="hookcli.capabilities.coord_check.command",
    columns="hookcli.capabilities.coord_check.columns:DECLARED",
    layout="hookcli.capabilities.coord_check.layout:COLUMNS",
    reports=("coord-points", "coord-rates"),
    on_one_rank=True,
)
