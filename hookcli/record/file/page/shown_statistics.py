"""The statistics of modules that a record's page shows over steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hookcli.table import HIST_COLUMNS, Row
from hookcli.table.columns.costs import TIMES


@dataclass(frozen=True, slots=True)
class Statistic:
    """A statistic of a module in a step: the figure `name` of a row of `overview`.

    `about` says what it measures ("output", "gradient", "parameters", "time"), and so which non-finite elements concern
    it. `over` is the rule by which the figure of a folded container comes from its parts: "own" (the container's own),
    "norm" (root of the sum of squares), "ratio" (update over weight) or "sum".
    """

    name: str
    title: str
    about: str
    over: str = "own"
    unit: str | None = None

    def to_dict(self) -> dict[str, str | None]:
        """The statistic as a JSON object."""
        return {"name": self.name, "title": self.title, "about": self.about, "over": self.over, "unit": self.unit}


FIGURES = (
    Statistic("std", "Std of the output", "output"),
    Statistic("mean", "Mean of the output", "output"),
    Statistic("min", "Min of the output", "output"),
    Statistic("max", "Max of the output", "output"),
    Statistic("l2", "L2 of the output", "output"),
    Statistic("zeros", "Zeros in the output", "output", unit="share"),
    Statistic("output_grad", "L2 of the output's gradient", "gradient"),
    Statistic("param_grad", "L2 of the parameters' gradients", "gradient", "norm"),
    Statistic("weight", "L2 of the weights", "parameters", "norm"),
    Statistic("update", "L2 of the update", "parameters", "norm"),
    Statistic("ratio", "|dw|/|w|", "parameters", "ratio"),
    *(Statistic(column.name, column.title, "time", unit=column.unit) for column in TIMES),
    *(
        Statistic(column.name, f"{column.title} of the output", "output", unit="share" if column.unit else None)
        for column in HIST_COLUMNS
    ),
)
COUNTS = (
    Statistic("nan", "NaN in the output", "output", "sum", "elements"),
    Statistic("inf", "Inf in the output", "output", "sum", "elements"),
    Statistic("grad_nan", "NaN in gradients", "gradient", "sum", "elements"),
    Statistic("grad_inf", "Inf in gradients", "gradient", "sum", "elements"),
)


def figures(rows: Iterable[Row]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The figures of rows (row, statistic), in the order of FIGURES; and which of them there are."""
    found = [[_figure(row, each) for each in FIGURES] for row in rows]
    known = [[value is not None for value in values] for values in found]
    size = (len(found), len(FIGURES))
    return np.array(found, np.float64).reshape(size), np.array(known, np.bool_).reshape(size)


def counts(rows: Iterable[Row]) -> NDArray[np.float64]:
    """The counts of rows (row, statistic), in the order of COUNTS; NaN for those that are unknown."""
    return np.array([[row.get(each.name) for each in COUNTS] for row in rows], np.float64).reshape(-1, len(COUNTS))


def _figure(row: Row, statistic: Statistic) -> float | None:
    value: float | None = row.get(statistic.name)
    if statistic.unit != "share" or value is None:
        return value
    numel = row.get("numel")
    return value / numel if numel else None
