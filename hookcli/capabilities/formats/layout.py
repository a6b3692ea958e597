"""The number formats, and the columns of their report: help lists them without importing torch."""

from collections.abc import Sequence
from typing import Any

from hookcli.errors import UsageError, unknown
from hookcli.hooks.option_values import NUMBER_FORMATS
from hookcli.table.column import Column, Kind, Merge, Shown
from hookcli.table.columns import columns_named

USUAL = {
    "float16": 73.6,
    "bfloat16": 55.6,
    "float8_e4m3fn": 31.5,
    "float8_e4m3fn_row": 31.5,
    "float8_e5m2": 25.6,
    "float8_e5m2_row": 25.6,
    "mxfp8": 30.6,
    "int8": 41.2,
    "nvfp4": 20.4,
    "mxfp4": 18.8,
    "int4": 18.6,
}
"""The formats, and the signal-to-noise ratio in dB of 4,096 rows of 4,096 normally distributed values in each."""
FORMATS = NUMBER_FORMATS
DEFAULT = ("float16", "bfloat16", "float8_e4m3fn", "mxfp8", "int8", "nvfp4", "mxfp4", "int4")
OF = WEIGHTS, ACTIVATIONS, GRADIENTS = "weights", "activations", "gradients"  # another word
COARSE = ("int8", "nvfp4", "mxfp4", "int4")
"""Formats in which a large value makes all that share its scale coarser, and not only those far below it."""
_STAY = ("bfloat16", "float16", "mxfp8", "float8_e4m3fn", "int8", "int4", "nvfp4", "mxfp4")  # the last stays longest
_SHARE: dict[str, Any] = {"kind": Kind.SHARE, "merge": Merge.MOST}
_FIGURES: dict[str, tuple[str, dict[str, Any]]] = {
    "sqnr": ("", {"kind": Kind.FIGURE, "merge": Merge.LEAST}),
    "underflow": ("underflow", _SHARE),
    "saturated": ("saturated", _SHARE),
    "block_error": ("worst block", _SHARE),
    "others": ("other channels", {"kind": Kind.FIGURE, "merge": Merge.LEAST}),
    "outlier_cost": ("outlier costs", {"kind": Kind.FIGURE, "merge": Merge.MOST, "compared": False}),
}
"""The figures of a tensor in each format, by the first part of their columns' names: the signal-to-noise ratio in dB,
shares of nonzero values, the largest relative error of a block; and in coarse formats the ratio of all channels but
outliers, the one with the largest value or those far above the median, and what they lose by sharing scales with it."""

OF_COARSE = ("others", "outlier_cost")


def formats_named(text: str) -> Sequence[str]:
    """The formats of "mxfp8,nvfp4" or "all". Raises UsageError for an unknown one."""
    names = [word.strip() for word in text.split(",") if word.strip()]
    for name in names or [text]:
        if name not in (*FORMATS, "all"):
            raise UsageError(unknown("--formats", name, (*FORMATS, "all")), option="formats")
    return [name for name in FORMATS if name in names or "all" in names]


def columns_of(formats: Sequence[str]) -> tuple[Column, ...]:
    """The columns of a report on these formats; of one alone, a table shows all of its figures.

    `spare`: the decibels above the limit, in the format in which a tensor is nearest to it.
    """
    alone = len(formats) == 1
    details: dict[str, Any] = {"shown": Shown.FILLED if alone else Shown.ASKED}
    figures = []
    for key, (title, rules) in _FIGURES.items():
        for name in COARSE if key in OF_COARSE else FORMATS:
            if name not in formats:
                continue
            words = name.replace("fn", "").replace("_", " ")
            drop = 60 + (_STAY.index(name) if name in _STAY else -1)
            shown = details if title else {}
            heading = title.capitalize() if alone and title else f"{words} {title}".strip()
            figures.append(Column(f"{key}_{name}", heading, drop=drop, **rules, **shown))
    counts: dict[str, Any] = {"kind": Kind.COUNT, "charted": False, "compared": False}
    outlier = Column("outlier", "Outlier channel", drop=59, **counts, **details)
    spare = Column(
        "spare", "To spare", kind=Kind.FIGURE, merge=Merge.LEAST, shown=Shown.ASKED, compared=False, lowest_stay=True
    )
    outliers = Column("outliers", "Outliers", shown=Shown.ASKED, **counts)
    counted: dict[str, Any] = {"kind": Kind.COUNT, "merge": Merge.SUM, "shown": Shown.SET}
    nonfinite = Column("nonfinite_values", "NaN or Inf", **counted)
    beyond = Column("beyond_float32", "Beyond float32", **counted)
    places = columns_named("fqn", "kind", "type", "calls", "index", "path", "shape", "dtype")
    return (*places, *figures, spare, outlier, outliers, nonfinite, beyond)


COLUMNS = columns_of(FORMATS)
_COUNT: dict[str, Any] = {"kind": Kind.COUNT, "charted": False}
CHANNELS = (
    Column("channel", "Channel", **_COUNT),
    Column("channels", "Channels", **_COUNT),
    Column("outlier_inputs", "Outlier in", **_COUNT),
    Column("inputs_seen", "Inputs", **_COUNT),
    Column("outlier_share", "Share", kind=Kind.SHARE),
    Column("times_median", "Times median", kind=Kind.FIGURE),
    Column("row_share", "Of rows", kind=Kind.SHARE, drop=20),
    Column("peak", "Peak", kind=Kind.FIGURE),
    *columns_named("fqn", "type", "path", "index", fqn="Largest in"),
)
"""The columns of a report on channels: a row for each that stands out in some layer's input."""


def effect_columns(formats: Sequence[str]) -> tuple[Column, ...]:
    """The columns of a report on what rounding each layer does to the output, in these formats."""
    changes, tops = [], []
    for name in formats:
        words = name.replace("fn", "").replace("_", " ")
        drop = 60 + (_STAY.index(name) if name in _STAY else -1)
        changes.append(Column(f"change_{name}", words, kind=Kind.FIGURE, drop=drop))
        top = f"{words} same top" if formats[1:] else "Same top"
        tops.append(Column(f"top_{name}", top, kind=Kind.SHARE, shown=Shown.ASKED if formats[1:] else Shown.FILLED))
    return (*columns_named("order", "fqn", "type", order="Rank"), *changes, *tops, *columns_named("index"))


EFFECT = effect_columns(FORMATS)
