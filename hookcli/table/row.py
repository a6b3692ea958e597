"""`Row`: one row of a report."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from hookcli.table.columns.statistics import OF_QUANTILES, QUANTILES, QUARTILES
from hookcli.table.histogram import Histogram
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
        rest = {k: v for k, v in values.items() if k not in stats and k != "hist"}
        return cls(rest, TensorStats(**stats, hist=hist), lacking)
