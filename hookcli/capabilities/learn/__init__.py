"""Says why a training does not learn: gradients never cleared, the same batch, a loss at the level of guessing."""

from hookcli.registry.capability import Capability, RecorderOption

_CHECKS, _OF_LOSSES = "hookcli.capabilities.learn.judging.checks", "hookcli.capabilities.learn.judging.loss_checks"

CAPABILITY = Capability(
    name="learn",
    page="questions/learn.md",
    checks={
        "HK056": f"{_CHECKS}:GradientsNotCleared",
        "HK057": f"{_OF_LOSSES}:NoBetterThanGuessing",
        "HK058": f"{_CHECKS}:SameBatch",
        "HK059": f"{_CHECKS}:FrozenBlock",
        "HK060": f"{_CHECKS}:GraphsKept",
        "HK061": f"{_CHECKS}:OutputAlike",
        "HK062": f"{_OF_LOSSES}:LossRises",
        "HK063": f"{_OF_LOSSES}:OneLabel",
        "HK066": "hookcli.capabilities.learn.judging.misused_loss:MisusedLoss",
        "HK067": f"{_CHECKS}:FrozenStatistics",
        "HK068": f"{_CHECKS}:UnitsAlike",
    },
    recorder="hookcli.capabilities.learn.recorder:Recorder",
    options=(
        RecorderOption(
            name="trial",
            help="Run a model that learns nothing a few more times on one batch, to find out why.",
            default=False,
            seldom=True,
        ),
    ),
    lines="hookcli.capabilities.learn.lines:LINES",
    headline="hookcli.capabilities.learn.judging.headline:headline",
    headline_place=-1,
)
