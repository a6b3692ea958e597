"""HK048 to HK050: experts of a mixture that no token reaches, a router that has one choice, and dropped tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from hookcli.capabilities.experts.routing import NO_ROUTER, layers_of, least_tokens
from hookcli.checks.base import Check, Threshold
from hookcli.checks.measurements import ReadsProbes
from hookcli.table import Finding, Row, Skipped
from hookcli.table.formatting import listed, percent

_FAR = 5.0  # standard deviations; beyond it lies one value of 3.5 million
_FIXED = 50.0  # beyond what tokens do to scores: a bias, or a mask
_RARE = 0.01  # of the probability that each expert has in an even choice; routers that are not trained have 0.02


class _Routing(Check):
    needs = ("experts",)
    asked_by = "--experts"
    look = "experts"

    def judge(self, measured: ReadsProbes) -> Iterator[Finding | Skipped]:
        rows = measured.probes["experts"].rows
        if not rows:
            yield Skipped("", NO_ROUTER)
        for layer, experts in layers_of(rows):
            if (tokens := layer["tokens"]) < (least := least_tokens(layer)):
                yield Skipped(layer.fqn, f"experts: {tokens:,} tokens are too few to judge: {least:,} are enough")
            elif layer["top_k"] < layer["experts"]:
                yield from self._found(layer, experts)

    @abstractmethod
    def _found(self, layer: Row, experts: list[Row]) -> Iterator[Finding]:
        """The finding in a layer that had enough tokens and a choice, if there is one."""


class DeadExpert(_Routing):
    """No token of the run chose an expert of a mixture-of-experts layer, and none was near to choosing it.

    It gets no gradient, and stays as it is (Shazeer et al. 2017, arXiv:1701.06538, section 4). A balanced router that
    chooses k of E experts leaves one without any of n tokens with probability (1 - k/E)^n; the layer is judged only if
    that is below 1e-6.

    A router that is not trained yet has favourites, too. So the expert's scores must also be far below the last one
    chosen. Their distance, the `shortfall`, is 5 standard deviations or more, and the expert's mean probability is
    below a hundredth of 1/E. Or the shortfall is 50 or more, as by a bias, or infinite, as by a mask. Padding counts as
    tokens.
    """

    id = "HK048"
    name = "dead-expert"
    means = "a router without a loss, or a bias, that balances it, too high a learning rate, or a wrong bias"
    advice = "balance it (auxiliary loss, bias by load); initialise its rows anew"

    def _found(self, layer: Row, experts: list[Row]) -> Iterator[Finding]:
        far = [row for row in experts if not row["tokens"] and row["shortfall"] >= _FAR]
        rare = _RARE / layer["experts"]
        dead = [r["expert"] for r in far if r["router_probability"] < rare or r["shortfall"] >= _FIXED]
        if dead:
            text = f"{len(dead)} of {layer['experts']} experts got none of {layer['tokens']:,} tokens: {listed(dead)}"
            yield self.finding(layer.fqn, text, float(len(dead)))


class RouterCollapse(_Routing):
    """Nearly all tokens choose the same expert, and the router is sure of it.

    The imbalance reinforces itself (Shazeer et al. 2017, arXiv:1701.06538). The figure is the busiest expert's share of
    the tokens. The check judges routers that take at most half of the experts, with a mean entropy below half of log E.
    """

    id = "HK049"
    name = "router-collapse"
    means = "a router without a loss, or a bias, that balances it, or a learning rate that is too high"
    advice = "balance it (auxiliary loss, bias by load), or add noise to scores"
    threshold = Threshold("share of tokens that choose the same expert", 0.9, 0.0, 1.0)

    def _found(self, layer: Row, experts: list[Row]) -> Iterator[Finding]:
        busiest = max(experts, key=lambda row: int(row["tokens"]))
        share, entropy = busiest["tokens"] / layer["tokens"], layer["router_entropy_share"]
        if share >= (self.limit or 0.0) and entropy < 0.5 and 2 * layer["top_k"] <= layer["experts"]:
            text = f"{percent(share)} of {layer['tokens']:,} tokens chose expert {busiest['expert']}"
            yield self.finding(layer.fqn, f"{text}; the entropy is {percent(entropy)} of an even choice's", share)


class DroppedTokens(_Routing):
    """Experts that are full drop tokens that choose them; these pass the layer unchanged.

    The figure is the share of choices that no expert computed, as its capacity was reached (Fedus et al. 2022,
    arXiv:2101.03961, section 2.2). Sparse models tolerate 10 to 15 % of drops (Zoph et al. 2022, arXiv:2202.08906).
    It is judged where the router returns a mask of the tokens and experts, without those that were dropped.
    """

    id = "HK050"
    name = "dropped-tokens"
    means = "a capacity that is too small, or a router that is out of balance"
    advice = "raise the capacity factor, or balance the router"
    threshold = Threshold("share of choices that no expert computed", 0.15, 0.0, 1.0)

    def _found(self, layer: Row, experts: list[Row]) -> Iterator[Finding]:
        share = layer.get("dropped_share")
        if share is not None and share > (self.limit or 0.0):
            text = f"{percent(share)} of {layer['tokens'] * layer['top_k']:,} choices were dropped"
            yield self.finding(layer.fqn, text, share)
