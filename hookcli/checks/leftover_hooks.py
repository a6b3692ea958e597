"""HK019: hooks that were on the model before hookcli ran."""

from __future__ import annotations

from collections.abc import Iterator

from hookcli.checks.base import Check, of_kind
from hookcli.checks.measurements import ReadsInventory
from hookcli.table import Finding
from hookcli.table.formatting import listed


class HooksLeft(Check):
    """The model already has hooks that fire in forward or backward, or the process has global hooks.

    Hooks left over from a debugging session, a profiler or a copied model cost time at every step, may change values,
    and keep alive whatever they refer to. Hooks that PyTorch itself adds (weight_norm, spectral_norm, pruning) are part
    of the model and not reported, nor are hooks on state dicts, which fire only when the model is saved or loaded.
    `hookcli hooks MODEL` lists all of them.
    """

    id = "HK019"
    name = "hooks-left"
    means = "a hook that was registered and never removed"
    advice = "call the handle's remove(); `hookcli hooks MODEL` shows the file and line"
    look = "hooks"
    needs = ("inventory",)
    values = False

    def judge(self, measured: ReadsInventory) -> Iterator[Finding]:
        hooks = of_kind(measured.inventory, "hook")
        places: dict[str, list[str]] = {}
        for row in hooks:
            places.setdefault(row.fqn, []).append(f"{row['hook']} hook {row['name']}")
        for fqn, named in places.items():
            yield self.finding(fqn, f"carries {listed(named, 2)}", len(named))
