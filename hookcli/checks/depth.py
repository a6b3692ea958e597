"""HK012 to HK015: gradients and activations that shrink or grow from layer to layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hookcli.checks.base import Check, Threshold
from hookcli.checks.blocks import blocks
from hookcli.checks.measurements import ReadsActivations, ReadsWeightsAndGrads
from hookcli.table import Finding, Row
from hookcli.table.formatting import number
from hookcli.table.slope import EXPLODES, VANISHES, slope


def _slope(check: Check, measured: ReadsWeightsAndGrads, above: bool) -> Iterator[Finding]:
    """A finding if the gradients of weights near the input are beyond the threshold times those near the loss.

    It names the weight from which on they stay so. The norm of each gradient is taken relative to the norm of its
    weight, in the order of arrival: the last layer first. Relative norms do not depend on the scale of a layer;
    layer-wise learning rates correct for them (You, Gitman and Ginsburg 2017, arXiv:1708.03888, equation 6). Biases and
    normalization weights, which are small vectors, and gradients that are all zero (HK009) are left out.
    """
    norms = {r.fqn: r.stats.l2 for r in measured.inventory.rows if r["kind"] == "parameter" and r.stats}
    relative = {
        r.fqn: r.stats.l2 / norms[r.fqn]
        for r in measured.grads.rows
        if r.stats and r.stats.l2 > 0 and len(r["shape"]) >= 2 and norms.get(r.fqn, 0) > 0
    }
    if check.limit is not None and (steep := slope(relative, check.limit, above=above)):
        stay = f"from here to {steep.until} gradients stay {'above' if above else 'below'} {number(check.limit)}"
        most = f"{number(steep.utmost)} at {steep.where}"
        yield check.finding(steep.begins, f"{stay} of those near the loss: {most}", steep.figure)


class VanishingGradients(Check):
    """Gradients of the layers nearest to the input are tiny compared with those nearest to the loss.

    The figure is the median of |gradient| / |weight| over the quarter of the weights whose gradients arrive last,
    divided by the median over the quarter whose gradients arrive first. Layers differ by nature: the ratio of the two
    norms spans three orders of magnitude within a healthy AlexNet (You et al. 2017, section 4). All freshly initialised
    torchvision models lie between 0.02 and 210; six sigmoid layers lie at 5e-6, ten at 1e-8 (Glorot and Bengio 2010
    explain why).
    """

    id = "HK012"
    name = "vanishing-gradients"
    means = "saturating activations, or an initialisation that is too small, in a deep stack without shortcuts"
    advice = "use ReLU or GELU with Kaiming initialisation, norms, or shortcuts"
    follows = ("HK010", "HK011", "HK014")
    look = "grads"
    needs = ("inventory", "grads")
    threshold = Threshold(
        "relative gradient near the input, divided by that near the loss; smaller is reported", VANISHES, 0.0, 1.0
    )

    def judge(self, measured: ReadsWeightsAndGrads) -> Iterator[Finding]:
        return _slope(self, measured, above=False)


class ExplodingGradients(Check):
    """Gradients of the layers nearest to the input are huge compared with those nearest to the loss.

    The figure is the ratio of HK012, with a limit on the other side. Gradients that grow with depth make every
    optimizer step a jump: see Pascanu, Mikolov and Bengio 2013 (arXiv:1211.5063) for recurrent networks and Philipp et
    al. 2017 (arXiv:1712.05577) for others.
    """

    id = "HK013"
    name = "exploding-gradients"
    means = "weights that are too large, or a recurrence that multiplies at every step"
    advice = "scale the initialisation down, normalise, or clip the gradients"
    look = "grads"
    needs = ("inventory", "grads")
    threshold = Threshold(
        "relative gradient near the input, divided by that near the loss; larger is reported", EXPLODES, 1.0
    )

    def judge(self, measured: ReadsWeightsAndGrads) -> Iterator[Finding]:
        return _slope(self, measured, above=True)


def _beyond(check: Check, entered: Sequence[Row], above: bool) -> Iterator[Finding]:
    """A finding at the first block whose spread, divided by the first one's, is beyond the threshold."""
    assert check.limit is not None
    ratios = [(row, row["std"] / entered[0]["std"]) for row in entered[1:]]
    beyond = [(row, ratio) for row, ratio in ratios if (ratio > check.limit if above else ratio < check.limit)]
    if not beyond:
        return
    (row, first), (last, utmost) = beyond[0], (max if above else min)(beyond, key=lambda pair: pair[1])
    more = f", and {number(utmost)} times it in {last.fqn}" if utmost != first else ""
    ratio_text = f"its output's standard deviation is {number(first)} times the first block's"
    yield check.finding(row.fqn, f"{ratio_text} ({entered[0].fqn}){more}", first)


class VanishingActivations(Check):
    """The standard deviation of the blocks' outputs shrinks with depth, until inputs can't be told apart.

    The figure is the standard deviation of the first block beyond the threshold, divided by that of the first block of
    all. Blocks are the modules of the outermost levels that together are at least eight. Freshly initialised
    torchvision models stay above 5e-5 (the heads of detectors), most above 0.01.
    """

    id = "HK014"
    name = "vanishing-activations"
    means = "an initialisation that is too small for the depth, without normalization"
    advice = "keep the variance: nn.init.kaiming_normal_, or normalization layers"
    follows = ("HK010",)
    look = "activations"
    needs = ("activations",)
    threshold = Threshold(
        "standard deviation of a block's output, divided by the first block's; smaller is reported", 1e-6, 0.0, 1.0
    )

    def judge(self, measured: ReadsActivations) -> Iterator[Finding]:
        return _beyond(self, blocks(measured.activations), above=False)


class ExplodingActivations(Check):
    """The standard deviation of the blocks' outputs grows with depth.

    The figure is the standard deviation of the first block beyond the threshold, divided by that of the first block of
    all; HK014 explains what counts as a block. He et al. 2015 (arXiv:1502.01852, section 2.2) derive the growth per
    layer from the initialisation; residual branches add up if there is no normalization (Zhang, Dauphin and Ma 2019,
    arXiv:1901.09321). Freshly initialised torchvision models in training mode stay below 13.
    """

    id = "HK015"
    name = "exploding-activations"
    over_steps = "largest"
    follows = ("HK055",)
    means = "an initialisation that is too large for the depth, or residual branches without normalization"
    advice = "keep the variance, normalise, or scale the residual branches down"
    look = "activations"
    needs = ("activations",)
    threshold = Threshold(
        "standard deviation of a block's output, divided by the first block's; larger is reported", 1e4, 1.0
    )

    def judge(self, measured: ReadsActivations) -> Iterator[Finding]:
        return _beyond(self, blocks(measured.activations), above=True)
