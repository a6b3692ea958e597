"""The gradient noise scale: from what batch size on do larger batches gain little?"""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="noise-scale",
    page="questions/noise_scale.md",
    after="coord-check show",
    summary="Estimate the batch size beyond which a larger one gains little.",
    command="hookcli.capabilities.noise_scale.command",
    columns="hookcli.capabilities.noise_scale.columns:DECLARED",
    layout="hookcli.capabilities.noise_scale.layout:COLUMNS",
    on_one_rank=True,
)
