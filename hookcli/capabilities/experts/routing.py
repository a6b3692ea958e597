"""Sentences and limits on reports of layers of experts. Free of torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hookcli.table.formatting import counted, listed, percent
from hookcli.table.names import in_words
from hookcli.table.row import Row

_CHANCE = 1e-6  # below which a balanced router does not leave an expert without a token by chance
NO_ROUTER = (
    "No router was seen: no topk, argmax or max over E scores beside E modules in a list, or weights of size E x M x N"
)


def least_tokens(layer: Row) -> int:
    """The number of tokens from which on a balanced router leaves no expert without one by chance: (1 - k/E)^n."""
    free = 1 - layer["top_k"] / layer["experts"]
    return math.ceil(math.log(_CHANCE) / math.log(free)) if free else 1


def layers_of(rows: Sequence[Row]) -> list[tuple[Row, list[Row]]]:
    """Each layer's own row, with the rows of its experts."""
    layers: dict[str, tuple[Row, list[Row]]] = {row.fqn: (row, []) for row in rows if row.get("expert") is None}
    for row in rows:
        if row.get("expert") is not None:
            layers[row.fqn][1].append(row)
    return [*layers.values()]


def verdict(rows: Sequence[Row]) -> str:
    """How tokens spread over experts: the experts without a token, else the busiest; and what was dropped."""
    if not rows:
        return NO_ROUTER
    layers = layers_of(rows)
    text = _spread(layers)
    if broken := [in_words(layer.fqn) for layer, _ in layers if math.isnan(layer["router_entropy"])]:
        text = f"NaN among the scores of {listed(broken, 3)}. {text}"
    share, fqn = max((layer.get("dropped_share") or 0.0, layer.fqn) for layer, _ in layers)
    return text + (f"; {percent(share)} of the choices in {in_words(fqn)} were dropped" if share else "")


def _spread(layers: Sequence[tuple[Row, Sequence[Row]]]) -> str:
    """The experts without a token, else the busiest, of layers with their experts."""
    dead = {layer.fqn: [r["expert"] for r in experts if not r["tokens"]] for layer, experts in layers}
    if places := [f"{in_words(fqn)}: {listed(numbers)}" for fqn, numbers in dead.items() if numbers]:
        every = counted(sum(layer["experts"] for layer, _ in layers), "expert")
        text = f"{sum(map(len, dead.values()))} of {every} got no token: {listed(places, 3, '; ')}"
        if few := [layer for layer, _ in layers if dead[layer.fqn] and layer["tokens"] < least_tokens(layer)]:
            text += f" ({few[0]['tokens']:,} tokens are too few to tell: {least_tokens(few[0]):,} are enough)"
        return text
    layer, experts = max(layers, key=lambda one: float(one[0]["load"]))
    most = f"expert {max(experts, key=lambda row: int(row['tokens']))['expert']} of {in_words(layer.fqn)}"
    return f"Every expert got tokens; {most} got the most, {layer['load']:.2g} times the mean"
