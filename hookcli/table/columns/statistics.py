"""Columns of the statistics of tensors, and of what tensors are: shape and dtype."""

import math
from dataclasses import replace
from typing import Any

from hookcli.table.column import Bar, Column, Kind, Merge, Shown
from hookcli.table.histogram import FORMATS

_COUNT: dict[str, Any] = {"unit": "elements", "required": True, "merge": Merge.SUM}
_FAULTS: dict[str, Any] = {**_COUNT, "kind": Kind.FAULTS, "shown": Shown.MARK, "of_parts": True}
_FIGURE: dict[str, Any] = {"kind": Kind.FIGURE, "required": True, "shown": Shown.ALWAYS}
_ZEROS: dict[str, Any] = {**_COUNT, "kind": Kind.ELEMENTS, "shown": Shown.ALWAYS, "bar": Bar.SHARE}
_TICKS: dict[str, Any] = {**_FIGURE, "bar": Bar.PAGE}


def _of_output(column: Column) -> Column:
    """The statistic as one of a module's output, which it is in a record."""
    return replace(column, about="output", full=f"{column.title} {'in' if column.unit else 'of'} the output")


_NUMEL = Column(
    "numel", "Elements", kind=Kind.COUNT, shown=Shown.ALWAYS, charted=False, drop=16, aside=("report",), **_COUNT
)
_NORMS = ("inputs", "activations", "steps")
_EXTREMES = ("inputs", "gradients", "parameters", "steps")


def _as_far(n: int) -> float:  # named, as reports are pickled with their columns
    """The mean of n elements moves by their rms at most."""
    return 1.0


def _by_bessel(n: int) -> float:
    """The standard deviation of n elements moves by at most this times their rms."""
    return math.sqrt(n / (n - 1)) if n > 1 else 1.0


_STATISTICS = (
    Column("mean", "Mean", moves=_as_far, drop=42, aside=("gradients",), **_TICKS),
    Column("std", "Std", moves=_by_bessel, drop=40, **_TICKS),
    Column("min", "Min", merge=Merge.LEAST, drop=37, aside=("activations", *_EXTREMES), **_TICKS),
    Column("max", "Max", merge=Merge.MOST, drop=39, aside=_EXTREMES, **_TICKS),
    Column("l2", "L2", merge=Merge.NORM, moves=math.sqrt, bar=Bar.LOG, drop=23, aside=_NORMS, **_FIGURE),
    Column("zeros", "Zeros", drop=30, aside=("gradients",), **_ZEROS),
    Column("nan", "NaN", **_FAULTS),
    Column("inf", "Inf", **_FAULTS),
)


STATS_COLUMNS = (_NUMEL, *map(_of_output, _STATISTICS))
"""The statistics of `TensorStats`, in its order. `mean` and `std` are merged together (`stats.TensorStats.merge`)."""
QUANTILES = {"p1": 0.01, "p50": 0.5, "p99": 0.99}
QUARTILES = {"p25": 0.25, "p75": 0.75}
"""Quantiles that only the pages of records draw."""
OF_QUANTILES = ("zeros", "min", "max")
"""Statistics that quantiles need beside the histogram."""
OUTSIDE = {f"outside_{form.name}": form for form in FORMATS}
_DROPS = {"p1": 72, "p50": 76, "p99": 74}
_DROPS |= {"outside_float16": 73, "outside_bfloat16": 70, "outside_float8_e4m3": 75, "outside_float8_e5m2": 71}
_HISTOGRAM = (
    *(
        Column(key, f"{share:.0%}" if share != 0.5 else "Median", kind=Kind.FIGURE, drop=_DROPS[key])
        for key, share in QUANTILES.items()
    ),
    *(
        Column(key, f"Outside {form.title}", "elements", kind=Kind.ELEMENTS, drop=_DROPS[key])
        for key, form in OUTSIDE.items()
    ),
)
_DRAWN = ("report", "inputs", "activations", "gradients", "parameters")
"""Views of a page that draw histograms, with their quantiles."""
HIST_COLUMNS = tuple(replace(_of_output(column), aside=_DRAWN) for column in _HISTOGRAM)
"""Columns of statistics that have histograms."""
_QUARTILES = (Column(key, f"{share:.0%}", kind=Kind.FIGURE, aside=("steps",)) for key, share in QUARTILES.items())
QUARTILE_COLUMNS = tuple(map(_of_output, _QUARTILES))


def _second(column: Column, prefix: str, title: str, drop: int) -> Column:
    """A statistic of the second of two tensors that a row has: only its norm is shown unless asked for."""
    kind = Kind.FIGURE if column.kind == Kind.FIGURE else Kind.COUNT
    shown, drops = (Shown.FILLED, drop) if column.name == "l2" else (Shown.PAGE, None)
    bar = Bar.PAGE if column.name == "l2" else Bar.NONE
    return Column(f"{prefix}_{column.name}", title, column.unit, kind, shown=shown, bar=bar, drop=drops)


OUT_COLUMNS = tuple(_second(column, "out", f"Out {column.title}", 44) for column in STATS_COLUMNS)
BEFORE_COLUMNS = tuple(_second(column, "before", f"{column.title} before", 22) for column in STATS_COLUMNS)

STATISTICS = (
    *STATS_COLUMNS,
    *HIST_COLUMNS,
    *QUARTILE_COLUMNS,
    *OUT_COLUMNS,
    *BEFORE_COLUMNS,
    Column("shape", "Shape", kind=Kind.SHAPE, alike=True, drop=29),
    Column("input_shape", "Input", kind=Kind.SHAPE, per_call=True, alike=True, drop=21, aside=("modules",)),
    Column("output_shape", "Output", kind=Kind.SHAPE, alike=True),
    Column("dtype", "Dtype", kind=Kind.TEXT, usual="float32", alike=True, drop=15),
    Column("requires_grad", "Requires grad", kind=Kind.FLAG, aside=("parameters",)),
    Column("spectral_norm", "Spectral norm", kind=Kind.FIGURE, merge=Merge.MOST, lowest_of="effective_rank"),
    Column("stable_rank", "Stable rank", kind=Kind.FIGURE, merge=Merge.LEAST, lowest_of="effective_rank"),
    # Keys of rows that no report declares as columns
    *(Column(name, name.capitalize(), kind=Kind.SHAPES, required=True) for name in ("shapes", "input_shapes")),
    Column("output_shapes", "Outputs", kind=Kind.SHAPES, required=True),
    Column("grad_shape", "Gradient", kind=Kind.SHAPE),
    Column("hist", "Histogram", kind=Kind.HISTOGRAM, required=True),
)
