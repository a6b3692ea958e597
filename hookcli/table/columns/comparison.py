"""Columns of comparisons: the figure that differs, both values, and the distance of two tensors."""

from dataclasses import replace
from typing import Any

from hookcli.table.column import Bar, Column, Kind, Merge, Shown
from hookcli.table.columns.training import TRAINING

_WORST: dict[str, Any] = {"merge": Merge.WORST, "judged": True}
_SIDES = {
    "loss": ("Loss", None),
    "param_grad": ("Gradient", None),
    "ratio": ("|dw|/|w|", 5),
    "seconds": ("Step time", 3),
}
WHOLE_MODELS = tuple(
    replace(
        column,
        name=f"{side}_{name}",
        title=f"{title} {side.upper()}",
        merge=Merge.SAME,
        bar=Bar.NONE,
        about="",
        full="",
        of_parts=False,
        drop=drop and drop + (side == "b"),
        pair=name if drop else "",
    )
    for name, (title, drop) in _SIDES.items()
    for column in TRAINING
    if column.name == name
    for side in "ab"
)
"""Figures of the whole models of both sides of a comparison."""
_DISTANCE: dict[str, Any] = {"kind": Kind.FIGURE, "about": "distance"}
DISTANCES = (
    Column("max_abs", "Max abs", judged=True, full="Largest difference", **_DISTANCE),
    Column("mean_abs", "Mean abs", drop=61, aside=("diff",), full="Mean difference", **_DISTANCE),
    Column("error_l2", "Error L2", **_DISTANCE),
    Column("rel_l2", "Rel l2", judged=True, full="Relative l2", **_DISTANCE),
    Column("cosine", "Cosine", kind=Kind.COSINE, drop=63, aside=("diff",), about="distance"),
)
"""The distance of two tensors (`discrepancy.Discrepancy`)."""
COMPARISON = (
    Column("figure", "Figure", kind=Kind.TEXT, **_WORST),
    Column("a", "A", drop=56, pair="sides", **_WORST),
    Column("b", "B", drop=57, pair="sides", **_WORST),
    Column(
        "times",
        "Excess",
        kind=Kind.FIGURE,
        drop=62,
        explanation="Excess: the error divided by its tolerance; above 1 it counts as a difference.",
        **_WORST,
    ),
    Column("run", "Run", kind=Kind.TEXT),
    Column("unlike", "Differs from A", kind=Kind.TEXT, shown=Shown.ASKED),
    Column("differs", "Differs", kind=Kind.TEXT, shown=Shown.ASKED, **_WORST),
    Column("beyond", "Beyond", shown=Shown.ASKED, **_WORST),
    Column("count", "Beyond", judged=True),
    *DISTANCES,
    Column(
        "growth",
        "Growth",
        drop=64,
        full="Growth since the input",
        explanation="Growth: a module's relative error divided by its input's; "
        "where it is far above 1, the error begins.",
        **_DISTANCE,
    ),
    Column("a_error", "Error A", merge=Merge.MOST, **_DISTANCE),
    Column(
        "b_error",
        "Error B",
        merge=Merge.MOST,
        explanation="Error A, Error B: the relative l2 distance of each side from a run in float64.",
        **_DISTANCE,
    ),
    Column(
        "own",
        "Own",
        merge=Merge.MOST,
        full="Own error",
        explanation="Own: the relative l2 error of a module of B that receives what A's received.",
        **_DISTANCE,
    ),
    Column(
        "inherited",
        "Inherited",
        merge=Merge.MOST,
        explanation="Inherited: the largest relative l2 error of what it received in the ordinary run.",
        **_DISTANCE,
    ),
    Column("change_rank", "Rank of change"),
    Column("rank_share", "Its share", kind=Kind.SHARE),
    Column("loss_a", "Loss A", kind=Kind.LOSS),
    Column("loss_b", "Loss B", kind=Kind.LOSS),
    *WHOLE_MODELS,
)
