"""Marks: what is wrong with a row, or was done to it, in words. Free of torch."""

from __future__ import annotations

import math

from hookcli.table import Row

_IN_GRADIENTS = {"grad_nan": "NaN", "grad_inf": "Inf"}


def mark(row: Row) -> str:
    """The mark of a row with a fault, in words, so that it can be read without colour."""
    words = [f"edited: {row.get('edited')}"] if row.get("edited") else []
    words += [str(row[key]) for key in ("change", "reset") if row.get(key)]
    if row.get("beyond"):  # differences without a figure are named
        words.append("beyond" if row.get("times") not in (None, math.inf) else str(row.get("differs")))
    note = str(row.get("note") or "")
    words += [note.removeprefix("beyond ") if row.get("beyond") else note] if note else []
    if row.stats:
        total = row.stats.numel
        words += [f"{row.stats.nan:,} NaN"] if row.stats.nan else []
        words += [f"{row.stats.inf:,} Inf"] if row.stats.inf else []
        words += ["all zero"] if total and row.stats.zeros == total else []
        words += ["empty"] if not total else []
    words += [f"{row[name]:,} {what} in gradients" for name, what in _IN_GRADIENTS.items() if row.get(name)]
    return ", ".join(words)
