"""HK051: outputs of nearly one direction."""

from __future__ import annotations

from collections.abc import Iterator

from hookcli.capabilities.spectrum.rank_collapse import ALIKE, collapsed, in_short
from hookcli.checks.base import Check, Threshold
from hookcli.checks.measurements import ReadsProbes
from hookcli.table import Finding


class RankCollapse(Check):
    """A module makes all tokens alike, and none after it tells them apart again.

    The figure is the effective rank of its output (Roy and Vetterli 2007), as a matrix of tokens by features: 1 means
    that all rows are multiples of one. It is reported if the input has an effective rank of 3 or more, with at least 8
    tokens and 8 features, and no later output reaches 3 again, as the sum with a shortcut would. The tokens of each
    item may also collapse while the items of the batch stay apart: it is reported if the tokens lie within 1 % of their
    size from the item's mean, after 20 % or more in the input. Attention without shortcuts loses rank doubly
    exponentially with depth (Dong, Cordonnier and Loukas 2021, arXiv:2103.03404); so do deep stacks of layers at their
    usual initialisation without norms and shortcuts.
    """

    id = "HK051"
    name = "rank-collapse"
    means = "attention, or a mean over tokens, without a shortcut around it; or features that died but for one"
    advice = "look at its shortcut, the norm before it, and attention's mask"
    needs = ("spectrum",)
    asked_by = "--spectrum"
    look = "spectrum"
    threshold = Threshold("effective rank of an output; smaller is reported", ALIKE, 1.0)

    def judge(self, measured: ReadsProbes) -> Iterator[Finding]:
        for row in collapsed(measured.probes["spectrum"].rows, self.limit or ALIKE):
            yield self.finding(row.fqn, in_short(row, self.limit or ALIKE), row["effective_rank"])
