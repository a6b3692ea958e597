"""Hooks that are on the model before anyone looks."""

from __future__ import annotations

from collections.abc import Iterator

from hookcli.checks.base import Check, Measurements
from hookcli.report import Finding


class HooksLeft(Check):
    """The model already carries hooks that fire in forward or backward, or the process has global ones.

    Hooks that a debugging session, a profiler or a copied model left cost time at every step, may change what flows,
    and keep what they close over alive. What torch itself puts on (weight_norm, spectral_norm, pruning) is part of the
    model and not meant, nor are hooks on state dicts, which fire when it is saved. `hookcli hooks MODEL` lists all.
    """

    id = "HK019"
    name = "hooks-left"
    means = "a hook that was registered and never removed"
    advice = (
        "keep the handle and call its remove(), or use it as a context manager; `hookcli hooks` shows the file and line"
    )
    needs = ("inventory",)
    values = False

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        assert measured.inventory is not None
        hooks = [row for row in measured.inventory.rows if row["kind"] == "hook"]
        places: dict[str, list[str]] = {}
        for row in hooks:
            places.setdefault(row.fqn, []).append(f"{row['hook']} hook {row['name']}")
        for fqn, named in places.items():
            more = f" and {len(named) - 2} more" if named[2:] else ""
            yield self.finding(fqn, f"carries {', '.join(named[:2])}{more}", len(named))
