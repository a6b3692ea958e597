"""The norm of each layer's gradients in the order of the layers, for a picture of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hookcli.table import Report, Row

NEEDS = ("pass", "l2")
"""Columns that together only a report of gradients has."""
_MOST = 6  # curves; further names of parameters share one
_OTHERS = "other parameters"


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """L2 norms by the place of their layer in `layers`, which go from the input to the loss.

    A curve for the parameters of each name and type of layer, such as "Conv2d weight", or for outputs or inputs.
    `zeros` and `lost` are places of gradients that are zero, and that have a NaN or an Inf, in place of points.
    """

    layers: Sequence[str]
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    zeros: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)


def layer_norms(report: Report) -> LayerNorms:
    """The norms of a report of gradients, whose rows are numbered in order of arrival."""
    rows = sorted(report.rows, key=lambda row: row.get("index") or 0, reverse=True)
    owners = [row.fqn.rpartition(".")[0] if row.get("kind") == "parameter" else row.fqn for row in rows]
    names = Counter(map(_curve, rows))
    kept = [name for name, _ in names.most_common(_MOST if len(names) <= _MOST else _MOST - 1)]
    norms = LayerNorms([*dict.fromkeys(owners)])
    places = {layer: place for place, layer in enumerate(norms.layers)}
    for row, owner in zip(rows, owners, strict=True):
        norm, place = row.get("l2"), places[owner]
        if row.get("nan") or row.get("inf") or (norm is not None and not math.isfinite(norm)):
            norms.lost.append(place)
        elif norm == 0:
            norms.zeros.append(place)
        elif norm is not None:
            name = _curve(row)
            norms.curves.setdefault(name if name in kept else _OTHERS, []).append((place, norm))
    return norms


def _curve(row: Row) -> str:
    """The curve that a row belongs to: weights of norms are far from those of convolutions."""
    if row.get("kind") != "parameter":
        return str(row.get("kind"))
    return " ".join(filter(None, (row.get("type"), row.fqn.rpartition(".")[2])))
