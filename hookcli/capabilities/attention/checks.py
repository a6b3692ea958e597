"""HK045 to HK047: attention whose weights collapse, whose logits are large, and heads without an effect."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace

from hookcli.capabilities.attention import heads
from hookcli.checks.base import Check, Threshold
from hookcli.checks.measurements import ReadsProbes
from hookcli.table import INFO, Finding, Row, Skipped
from hookcli.table.formatting import number


class _Attention(Check):
    needs = ("attention",)
    asked_by = "--attention"
    look = "attention"

    def judge(self, measured: ReadsProbes) -> Iterator[Finding | Skipped]:
        rows = measured.probes["attention"].rows
        if not rows:
            yield Skipped("", heads.NO_ATTENTION)
        for fqn, layer in heads.layers_of(rows):
            if (queries := layer[0]["queries"]) < heads.ENOUGH:
                yield Skipped(fqn, f"attention: {queries} queries are too few to judge: {heads.ENOUGH} are enough")
            else:
                yield from self._found(fqn, layer, self.limit or 0.0)

    @abstractmethod
    def _found(self, fqn: str, layer: list[Row], limit: float) -> Iterator[Finding]:
        """The findings in the heads of one call of attention."""


class AttentionCollapse(_Attention):
    """A head gives all its weight to one key for each query, or all heads of a layer have the same weights.

    The first is entropy collapse: the softmax passes no gradient on to queries and keys, and training becomes unstable
    (Zhai et al. 2023, arXiv:2303.06296). The figure is the mean entropy in nats; at 0.01 the largest weight is 99.8 %.
    A head that attends only to the first token (idle, HK047), or to a fixed offset from more than half of the queries,
    such as the token before, is not a collapse.

    Heads count as equal if the cosine of their attention weights, after subtracting uniform attention, exceeds 0.99;
    uniform heads, as of fresh models, are skipped. The check judges attention with at least 8 queries that may see two
    keys or more; padding does not count.
    """

    id = "HK045"
    name = "attention-collapse"
    means = "logits that grew (a learning rate that was too high, no warm-up), or heads that were initialised alike"
    advice = "normalise queries and keys (QK-norm), or lower the learning rate"
    follows = ("HK046",)
    threshold = Threshold("mean entropy of a head, in nats; less is reported", heads.COLLAPSED, 0.0)

    def _found(self, fqn: str, layer: list[Row], limit: float) -> Iterator[Finding]:
        if collapsed := [row for row in layer if heads.is_collapsed(row, limit)]:
            least = min(float(row["entropy"]) for row in collapsed)
            text = f"{heads.numbered(collapsed, layer)} all weight on one key"
            yield self.finding(fqn, f"{text}; the entropy is down to {number(least)} nats", least)
        cosine = min(row.get("similarity") or 0.0 for row in layer)
        if layer[1:] and cosine > heads.ALIKE and not all(map(heads.rests, layer)):
            text = f"all {len(layer)} heads have the same weights (cosine {cosine:.4f} or more)"
            yield replace(self.finding(fqn, text, cosine), threshold=heads.ALIKE)


class AttentionLogits(_Attention):
    """A logit of attention, an input of its softmax, is very large.

    Logits that grow in training precede its divergence: weights become one-hot (Dehghani et al. 2023,
    arXiv:2302.05442; Wortsman et al. 2023, arXiv:2309.14322). Before Kimi K2 (2025, arXiv:2507.20534) they passed 1000,
    the default here; its optimizer clips heads at 100. `hookcli run --attention` records how they grow.
    """

    id = "HK046"
    name = "attention-logits"
    over_steps = "largest"
    means = "queries and keys whose norms grow: a learning rate that is too high, or no normalization of them"
    advice = "normalise queries and keys (QK-norm), or cap or clip the logits"
    threshold = Threshold("largest logit", heads.LARGE, 0.0)

    def _found(self, fqn: str, layer: list[Row], limit: float) -> Iterator[Finding]:
        if large := [row for row in layer if row["max_logit"] > limit]:
            most = max(large, key=lambda row: float(row["max_logit"]))
            text = f"the largest logit is {number(most['max_logit'])}, of head {most['head']}"
            yield self.finding(fqn, f"{text} ({len(large)} of {len(layer)} are beyond)", most["max_logit"])


class HeadWithoutEffect(_Attention):
    """A head returns nothing, or looks at the first token alone.

    The figure is the rms of the head's output, relative to the mean of its layer's heads, a measure by which inactive
    heads are found whatever their weights look like (Sandoval-Segura et al. 2025, arXiv:2504.03889). Below 2^-10, the
    default, half precision loses it where the output projection adds the heads up. A head that gives the first token
    99.9 % of its weight adds the same to every token. More than 90 % is common in trained language models: such heads
    rest on an attention sink (Xiao et al. 2023, arXiv:2309.17453), which is said and is not a fault.
    """

    id = "HK047"
    name = "head-without-effect"
    means = "values that died or were pruned, or a head that training has left on the first token"
    advice = "prune it, or initialise it anew, with less weight decay on values"
    threshold = Threshold("output of a head, relative to its layer's mean; less is reported", heads.DEAD, 0.0)

    def judge(self, measured: ReadsProbes) -> Iterator[Finding | Skipped]:
        yield from super().judge(measured)
        rows = measured.probes["attention"].rows
        if resting := [row for row in rows if heads.rests(row) and row["first_share"] <= heads.WHOLE_SINK]:
            yield Finding(self.id, INFO, "", heads.heads_text(resting, rows, heads.RESTING, ("rests", "rest")))

    def _found(self, fqn: str, layer: list[Row], limit: float) -> Iterator[Finding]:
        if dead := [row for row in layer if heads.is_dead(row, limit)]:
            least = min(float(row["output_share"]) for row in dead)
            yield self.finding(fqn, f"{heads.numbered(dead, layer)} no output", least)
        if whole := [row for row in layer if row["first_share"] > heads.WHOLE_SINK]:
            share = max(float(row["first_share"]) for row in whole)
            text = f"{heads.numbered(whole, layer)} all weight on the first token"
            yield replace(self.finding(fqn, text, share), threshold=heads.WHOLE_SINK)
