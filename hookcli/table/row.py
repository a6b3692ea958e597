"""`Row`: one row of a report; and the row of a layer, parameter or operator by its name."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hookcli.errors import UnknownRowError, nearest
from hookcli.table.columns import IDENTITY
from hookcli.table.columns.statistics import OF_QUANTILES, QUANTILES, QUARTILES
from hookcli.table.histogram import Histogram
from hookcli.table.names import is_within
from hookcli.table.stats import COUNTS, FIGURES, HIST_KEYS, STATS_KEYS, TensorStats


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a report: `values` by column name, and statistics if the probe measures them.

    `lacking` names the statistics that were not saved with it; such figures are NaN, such counts None.
    """

    values: Mapping[str, Any]
    stats: TensorStats | None = None
    lacking: Collection[str] = ()

    @property
    def fqn(self) -> str:
        """The fully qualified name of the module or parameter; "" is the model itself."""
        return str(self.values.get("fqn", ""))

    def having(self, values: Mapping[str, Any]) -> Row:
        """The row with these values too, or in its own place."""
        return Row({**self.values, **values}, self.stats, self.lacking)

    def flat(self) -> dict[str, Any]:
        """All values in one mapping, as machine formats write them."""
        if self.stats is None:
            return dict(self.values)
        hist = {"hist": self.stats.hist.to_dict()} if self.stats.hist is not None else {}
        stats = self.stats.named()
        for key in self.lacking:
            del stats[key]
        return {**self.values, **stats, **hist}

    def __getitem__(self, key: str) -> Any:
        if self.stats and key in STATS_KEYS:
            return None if key in self.lacking and key in COUNTS else getattr(self.stats, key)
        if self.stats and (key in HIST_KEYS or key in QUARTILES):
            computable = not (key in QUANTILES or key in QUARTILES) or not set(OF_QUANTILES).intersection(self.lacking)
            return self.stats.of_histogram(key) if computable else None
        return self.values[key]

    def get(self, key: str, default: Any = None) -> Any:
        """The value or statistic of this name, or the default."""
        try:
            return self[key]
        except KeyError:
            return default

    @classmethod
    def from_flat(cls, values: Mapping[str, Any], statistics: Collection[str] = STATS_KEYS) -> Row:
        """The inverse of `flat`, in a report that has these `statistics`; its row lacks the others."""
        stats = {k: values[k] for k in STATS_KEYS if k in values}
        if len(stats) < max(len(statistics), 2) or "numel" not in stats:  # no figures, or of unknown sizes
            return cls(dict(values))
        lacking = tuple(k for k in STATS_KEYS if k not in stats) if len(stats) < len(STATS_KEYS) else ()
        if lacking:
            stats = dict.fromkeys(FIGURES, math.nan) | stats
        hist = Histogram.from_dict(values["hist"]) if "hist" in values else None
        derived = {"hist", *HIST_KEYS} if hist else {"hist"}  # of the histogram, which `__getitem__` computes again
        rest = {k: v for k, v in values.items() if k not in stats and k not in derived}
        return cls(rest, TensorStats(**stats, hist=hist), lacking)


_MODEL = "(model)"  # how tables write the name of the model itself
_KEYS = (*IDENTITY, "rank")


def row_of(rows: Sequence[Row], fqn: str, wanted: Mapping[str, Any], missing: Mapping[str, str]) -> Row:
    """The one row of this name that has the `wanted` values; "" or "(model)" is the model itself.

    Raises UnknownRowError. If there is none, the message has the reason why it is `missing`, or the nearest names; if
    there are several, the values that tell them apart.
    """
    named = [row for row in rows if row.fqn == ("" if fqn == _MODEL else fqn)]
    if not named:
        absent = f"{fqn!r} was not measured: {missing[fqn]}" if fqn in missing else _no_row(rows, fqn)
        raise UnknownRowError(absent)
    fitting = [row for row in named if all(row.get(key) == value for key, value in wanted.items())]
    if len(fitting) == 1:
        return fitting[0]
    asked = " with " + ", ".join(f"{key}={value!r}" for key, value in wanted.items()) if wanted else ""
    number = f"{len(fitting)} rows" if fitting else "no row"
    raise UnknownRowError(f"{number} of {fqn!r}{asked}; {_choice(fitting or named, fqn)}")


def _no_row(rows: Sequence[Row], fqn: str) -> str:
    names = [*dict.fromkeys(row.fqn for row in rows if row.fqn)]
    near = [name for name in names if name.endswith((f".{fqn}", f":{fqn}")) or is_within(name, fqn)] if fqn else []
    near = near[:3] or nearest(fqn, names)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(names[:3]) or 'none'}"
    return f"no row of {fqn!r}; {hint}"


def _choice(rows: Sequence[Row], fqn: str) -> str:
    """choose one, as in report.row('relu', call=0); there are call=0 | call=1"""
    keys = [key for key in _KEYS if len({repr(row.get(key)) for row in rows}) > 1]
    keys = keys or [key for key in _KEYS[1:] if rows[0].get(key) is not None]
    choices = [*dict.fromkeys(", ".join(f"{key}={row.get(key)!r}" for key in keys) for row in rows)]
    if not keys:  # events, such as `trace` lists
        return f"all of them: [row for row in report.rows if row.fqn == {fqn!r}]"
    return f"choose one, as in report.row({fqn!r}, {choices[0]}); there are {' | '.join(choices[:6])}"
