"""The first value that is not finite: where it came up, and what came before."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hookcli.probes.base import StatsProbe
from hookcli.record.file.record import Bad
from hookcli.record.observe.plan import Plan
from hookcli.report import Report, Row
from hookcli.tensors.stats import Pending, resolve

if TYPE_CHECKING:
    from hookcli.record.observe.window import OpenWindow

_BEFORE = 5  # rows that are shown before the bad one
Seen = list[tuple[dict[str, Any], Pending]]


class StopProgram(SystemExit):
    """Ends the program at its first bad value, as it was asked to: it passes through the program's own `finally`."""


class Search:
    """Looks through what windows see, in the order in which it came up."""

    def __init__(self, plan: Plan) -> None:
        self.on = plan.first_bad is not None
        self._found = False
        self._stop = plan.first_bad == "stop"

    def look(self, window: OpenWindow) -> Bad | None:
        """The first bad value among what the window saw since it was last asked. On an accelerator this waits."""
        if not self.on:
            return None
        found = self._in_losses(window) or self._in_rows(window)
        if found is not None:
            self.on, self._found = False, True
        return found

    def stop_if_asked(self) -> None:
        """Raises StopProgram, once, where the program is to be ended and this is a place where that can be.

        In the main thread alone: in another it would end that thread, and the program would go on.
        """
        if self._found and self._stop and threading.current_thread() is threading.main_thread():
            self._stop = False
            raise StopProgram(1)

    def _in_rows(self, window: OpenWindow) -> Bad | None:
        """Modules are seen as they return, so that the innermost of those that hold the same value comes first."""
        for what, probe, seen, new in window.unsearched():
            stats = resolve([pending for _, pending in seen[-new - _BEFORE :]])
            rows = [Row(values, s) for (values, _), s in zip(seen[-new - _BEFORE :], stats, strict=True)]
            for number, row in enumerate(rows[-new:], len(rows) - new):
                if row["nan"] or row["inf"]:
                    before = rows[max(0, number - _BEFORE) : number + 1]
                    columns = StatsProbe.columns if what == "output" else probe.columns
                    report = Report(probe.name, window.watched.tally.model, columns, before, grouping="list")
                    bad = self._bad(window, window.name(row.fqn), what, row["nan"], row["inf"], [report])
                    return replace(bad, cause=_cause(window, row.fqn)) if what == "output" else bad
        return None

    def _in_losses(self, window: OpenWindow) -> Bad | None:
        for value in window.losses.new():
            if not math.isfinite(value):
                return self._bad(window, "", "loss", int(math.isnan(value)), int(math.isinf(value)), [])
        return None

    def _bad(self, window: OpenWindow, fqn: str, what: str, nan: int, inf: int, reports: list[Report]) -> Bad:
        return Bad(window.watched.tally.model, window.phase, window.step, fqn, what, nan, inf, reports)


def _cause(window: OpenWindow, fqn: str) -> str:
    """What was not finite before a module returned such values: its own parameters, or what the model was given."""
    for name, parameter in window.model.get_submodule(fqn).named_parameters(recurse=False):
        if not parameter.isfinite().all():
            return f"its {name} is not finite"
    return "the model's input is not finite" if window.input_is_bad() else ""
