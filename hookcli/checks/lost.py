"""Checks of other distributions that fail: each is left out, and what stands for it says why it can't judge."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from hookcli import registry
from hookcli.checks.base import Check
from hookcli.errors import PluginError
from hookcli.registry.pieces import Guard
from hookcli.table import Finding, Skipped


class LostCheck(Check):
    """Stands for a check that failed as it was loaded or made. It judges nothing."""

    needs = ()
    values = False
    advice = "update or uninstall its distribution"
    reason: ClassVar[str]
    """Why the check failed."""

    def judge(self, measured: Any) -> Iterable[Finding | Skipped]:
        return []

    def too_little(self, measured: Any) -> str:
        return self.reason


def lost(name: str, reason: str) -> type[LostCheck]:
    """The class of a check that stands for the one with this id, which failed for this reason."""
    facts = {"id": name, "name": name.lower(), "reason": reason, "means": f"it can't judge: {reason}"}
    return type("LostCheck", (LostCheck,), {"__doc__": LostCheck.__doc__, **facts})


def guard_of(check: Check | type[Check]) -> Guard:
    """A block that runs a check's code: an error in another distribution's ends it alone."""
    plugin = registry.external(check)
    return Guard(f"check {check.id} (from {plugin.distribution})" if plugin else check.id, own=plugin is None)


def load_check(name: str) -> type[Check]:
    """The check with this id; a LostCheck if another distribution's does not load, or has another id.

    Raises PluginError if there is no such check, or several.
    """
    plugin = registry.find("checks", name)
    with Guard(f"check {name}", own=plugin.built_in) as guard:
        check: type[Check] = plugin.load()  # type: ignore[assignment]
        if check.id != name:
            raise PluginError(f"{plugin} has the id {check.id!r}: name the entry point after the id")
        return check
    return lost(name, guard.why)


def make_check(kind: type[Check], limit: float | None = None) -> Check:
    """The check, ready to judge, with this threshold or its default; a LostCheck if another distribution's fails."""
    with guard_of(kind) as guard:
        return kind(limit)
    return lost(kind.id, f"it failed: {guard.why}")()
