"""How many values are positive in what each layer returns."""

from hookcli.registry.capability import Capability, RecorderOption

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
    options=(
        RecorderOption(
            name="signs_above",
            help="Count values above X in the lines of signs [0].",
            metavar="X",
            after="match",
            check="hookcli_signs.option:require_number",
        ),
    ),
    lines="hookcli_signs.lines:LINES",
    charts="hookcli_signs.columns:CHARTS",
    headline="hookcli_signs.headline:headline",
    view="hookcli_signs:part.js",
    flag="Also the signs of what layers return (hookcli signs).",
)
