"""Rows on buckets of gradients under communication hooks: of one rank, or of all ranks together; free of torch.

A row keeps figures that add up (norms, counts, extremes), so that ranks, and buckets of a hook, merge exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hookcli.capabilities.comm.layout import BUCKET, ERRORS
from hookcli.table import Report, Row, TensorStats
from hookcli.table.columns import names
from hookcli.table.discrepancy import Discrepancy
from hookcli.table.meta import without
from hookcli.table.ranks import ALIKE, common_meta, rows_by_place
from hookcli.table.stats import norm as l2_norm


def bucket_row(
    where: Mapping[str, Any],
    handed: int | None,
    before: TensorStats,
    after: TensorStats,
    errors: tuple[float, ...],
    norm: float | None = None,
) -> Row:
    """A row on the bucket that `where` names; `handed` is the number of bytes, None if it could not be counted.

    `errors` are the L2 norm of the exact mean, and the L2 and maximum norm of the difference from it; `norm` is the
    norm of the hook's result, if that is not `after`'s.
    """
    norm = after.l2 if norm is None else norm
    sent = {"bytes_after": handed, "ratio": handed / where["bytes_before"] if handed is not None else None}
    exact, error, most = errors
    kept = {"exact_l2": exact, "error_l2": error, "error_max": most, "after_l2": norm}
    return Row({**where, **sent, **before.named("before_"), **kept, **_relative(norm, *errors[:2])}, after)


def _relative(norm: float, exact: float, error: float) -> dict[str, float]:
    """The error relative to the exact mean, and the cosine of the angle between the two, from three norms."""
    discrepancy = Discrepancy(error_l2=error, a_l2=exact, b_l2=norm)
    return {"relative_l2": discrepancy.rel_l2, "cosine": discrepancy.cosine if math.isfinite(error) else math.nan}


def totals(rows: Iterable[Row]) -> dict[str, Any]:
    """The result of each hook in the last step, all its buckets taken together."""
    by_hook: dict[str, list[Row]] = {}
    for row in rows:
        by_hook.setdefault(row["hook"], []).append(row)
    last = {hook: [r for r in own if r["step"] == own[-1]["step"]] for hook, own in by_hook.items()}
    return {"hooks": {hook: _whole(own) for hook, own in last.items()}}


def _whole(rows: Sequence[Row]) -> dict[str, Any]:
    handed = [row["bytes_after"] for row in rows]
    before = sum(row["bytes_before"] for row in rows)
    after = sum(handed) if None not in handed else None
    norms = {column.name: l2_norm(row[column.name] for row in rows) for column in ERRORS}
    return {
        "step": rows[0]["step"],
        "buckets": len(rows),
        "bytes_before": before,
        "bytes_after": after,
        "ratio": after / before if after is not None else None,
        **_relative(norms["after_l2"], norms["exact_l2"], norms["error_l2"]),
    }


def merge_ranks(reports: Sequence[Report]) -> Report:
    """The reports of all ranks as one: the first rank's, with the figures of all.

    Statistics before the hook are taken over all ranks' buckets together; after it, if the ranks agree, of one.
    Errors are root mean squares over ranks. The time is the slowest rank's. Bytes are per rank; if ranks differ,
    the most, with a note. The loss is the mean over ranks, as gradients are.
    """
    parts = dict(enumerate(reports))
    rows = [_of_ranks([*by_rank.values()]) for by_rank in rows_by_place(parts).values()]
    skipped = list(dict.fromkeys(item for report in reports for item in report.skipped))
    meta = without(common_meta(parts), "rank")
    if (loss := meta.get("loss_value")) is not None:
        meta["loss_value"] = loss / len(reports)
    return replace(reports[0], rows=rows, totals=totals(rows), skipped=skipped, meta=meta)


def _of_ranks(rows: Sequence[Row]) -> Row:
    where = {key: rows[0][key] for key in names(BUCKET)} | {"seconds": max(row["seconds"] for row in rows)}
    before = TensorStats.merge(TensorStats.of(row.values, "before_") for row in rows)
    after = _agreed([row.stats for row in rows if row.stats])
    handed = [row["bytes_after"] for row in rows]
    most = max(handed) if None not in handed else None
    norms = {c.name: math.hypot(*(row[c.name] for row in rows)) / math.sqrt(len(rows)) for c in ERRORS}
    highest = max((row["error_max"] for row in rows), key=lambda error: (math.isnan(error), error))
    errors = (norms["exact_l2"], norms["error_l2"], highest)
    merged = bucket_row(where, most, before, after, errors, norms["after_l2"])
    if most is None or len(set(handed)) == 1:
        return merged
    return merged.having({"note": f"ranks hand over {min(handed):,} to {most:,} bytes"})


def _agreed(copies: Sequence[TensorStats]) -> TensorStats:
    """The statistics of one rank if all agree, else of all together."""
    import numpy as np  # which starts slower than the commands that show no ranks

    from hookcli.table.merging import parts_agree

    figures = np.array([[stats.floats()] for stats in copies])
    [agree] = parts_agree(figures, np.ones((len(copies), 1), np.bool_), ALIKE)
    return copies[0] if agree else TensorStats.merge(copies)
