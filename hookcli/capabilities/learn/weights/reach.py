"""By how much the loss of a training could fall in a step, what that follows from, and what holds it up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from hookcli.record.file.record_lines import RecordedStep
from hookcli.table import Row
from hookcli.table.formatting import number
from hookcli.table.slope import VANISHES, slope
from hookcli.table.stats import norm

_BOUNDS = {"Tanh": (0.0, 1.0), "Softsign": (0.0, 1.0), "Hardtanh": (0.0, 1.0), "Sigmoid": (0.5, 0.5)}
"""The middle between the bounds of an activation, and half of their distance."""
_SATURATED, _MANY = 0.95, 64  # root mean square around the middle, in units of half the distance; values
_SHRINK = ("SGD", "AdamW")  # whose weight decay takes the share lr * weight_decay of the weights in each step


def reach(step: RecordedStep) -> dict[str, float]:
    """By how much the loss could fall in a step to first order, and what it follows from; empty if not measured."""
    groups = step.rows("optimizer")
    pairs = [(row.get("unclipped_grad") or row.get("param_grad"), row.get("update")) for row in groups]
    if not pairs or any(None in pair for pair in pairs):
        return {}
    unclipped, update = (norm(figures) for figures in zip(*pairs, strict=True))
    taken = [row.get("param_grad") for row in groups]
    gradient = None if None in taken else norm(taken)
    known = {
        "reach": unclipped * update,
        "gradient": gradient,
        "unclipped": unclipped,
        "rate": groups[0].get("lr"),
        "decay": decay(groups),
        "ratio": moved(step),
    }
    return {name: x for name, x in known.items() if isinstance(x, float) and math.isfinite(x)}


def moved(step: RecordedStep) -> float:
    """By which share of its size a step moves the weight of a layer, in the median; biases may begin with zeros.

    A weight that begins near zero counts as one that PyTorch initializes: uniform within 1 / sqrt(inputs).
    """
    layers = [row for row in step.rows("updates") if len(row.get("shape") or ()) > 1]
    known = [row for row in layers if row.get("weight") and row.get("update") is not None]
    shares = [row["update"] / max(row["weight"], math.sqrt(row["shape"][0] / 3)) for row in known]
    return median(shares) if shares else 0.0


def saturated(step: RecordedStep) -> str:
    """Words on the first Tanh or Sigmoid whose outputs are nearly all at its bounds; "" if none is."""
    for row in step.rows("activations"):
        center, half = _BOUNDS.get(row.get("type", ""), (0.0, 0.0))
        stats = row.stats
        if not half or stats is None or stats.numel < _MANY or stats.finite < stats.numel:
            continue
        size = math.sqrt(stats.rms**2 - 2 * center * stats.mean + center**2) / half
        if size >= _SATURATED:
            bounds = f"{center - half:g} and {center + half:g}"
            return f"{row.fqn} ({row['type']}) is saturated: nearly all that it returns is at its bounds, {bounds}"
    return ""


def vanished(step: RecordedStep) -> str:
    """Words on gradients that vanish on their way to the input, by the figures and the limit of HK012; else ""."""
    weights = {row.fqn: row.get("weight") for row in step.rows("updates") if len(row.get("shape") or ()) > 1}
    norms = {row.fqn: row.stats.l2 for row in reversed(step.parameter_grads()) if row.stats}
    relative = {name: x / weights[name] for name, x in norms.items() if x and weights.get(name)}
    steep = slope(relative, VANISHES, above=False)
    if steep is None:
        return ""
    share = f"{number(steep.utmost)} times those near the loss"
    return f"gradients vanish on their way to the input: that of {steep.where}, relative to the weight, is {share}"


def decay(groups: Sequence[Row]) -> float:
    """The largest share of the weights that weight decay takes in a step, of the optimizers of which that is known."""
    decayed = [row for row in groups if row.get("optimizer") in _SHRINK]
    return max(((row.get("lr") or 0.0) * (row.get("weight_decay") or 0.0) for row in decayed), default=0.0)
