"""How many values are positive in what each layer returns."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="signs",
    page="https://example.org/signs",
    after="experts",
    summary="Show how many values of each layer are positive.",
    command="hookcli_signs.command",
    probe="hookcli_signs.probe:SignsProbe",
    checks={"SIGNS": "hookcli_signs.checks:OneSided"},
    columns="hookcli_signs.columns:DECLARED",
    recorder="hookcli_signs.recorder:Recorder",
    lines="hookcli_signs.lines:LINES",
    headline="hookcli_signs.headline:headline",
    flag="Also the signs of what layers return (hookcli signs).",
)
