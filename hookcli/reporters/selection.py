"""Chooses a reporter by name, by a file's suffix, and by the columns of the reports."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

from hookcli import registry
from hookcli.errors import HookcliError, UsageError, unknown
from hookcli.reporters.base import Exporter, Reporter
from hookcli.table import Column


def declared(reporter: object, attribute: str) -> Any:
    """Return an attribute of a reporter or its class; the interface's default if it has none."""
    default = getattr(Reporter, attribute) if hasattr(Reporter, attribute) else getattr(Exporter, attribute)
    return getattr(reporter, attribute, default)


def exports(reporter: Any) -> bool:
    """Return whether a reporter, or its class, writes a file or folder by itself."""
    return hasattr(reporter, "export")


def live() -> list[str]:
    """Return the names of the formats that others can read while they are written."""
    return [name for name, reporter in _loaded() if declared(reporter, "live")]


def by_name(name: str) -> Any:
    """Return the reporter's class. Raises UsageError for an unknown name, PluginError if it does not load."""
    if name not in registry.names("reporters"):
        raise UsageError(unknown("--format", name, registry.names("reporters")))
    return registry.load("reporters", name)


def by_suffix(suffix: str) -> str | None:
    """Return the name of the reporter for files with this suffix, a built-in one first."""
    return next((name for name, reporter in _loaded() if suffix in declared(reporter, "suffixes")), None)


def suffixes() -> list[str]:
    """Return the suffixes of all formats."""
    return [suffix for _, reporter in _loaded() for suffix in declared(reporter, "suffixes")]


def missing(reporter: Any, columns: Collection[Column]) -> list[str]:
    """Return the columns that a reporter requires and a report lacks; of several sets, the one that lacks least."""
    names = {column.name for column in columns}
    return min(([name for name in needs if name not in names] for needs in needed(reporter)), key=len)


def needed(reporter: Any) -> tuple[tuple[str, ...], ...]:
    """Return the sets of columns of which a reporter requires one; the empty set if it shows all reports."""
    return declared(reporter, "needs_one") or (declared(reporter, "needs"),)


def commands(reporter: Any) -> tuple[str, ...]:
    """Return the commands whose reports a reporter shows; none if it shows the reports of all commands."""
    return declared(reporter, "commands") or tuple(filter(None, [declared(reporter, "command")]))


def suited(columns: Collection[Column]) -> list[str]:
    """Return the names of reporters that can show a report with these columns."""
    return [name for name, reporter in _loaded() if not missing(reporter, columns)]


def offered(command: str) -> list[str]:
    """Return the names of built-in reporters for a command's help. `show` shows the reports of all commands."""
    names = {name: [text.split()[1] for text in commands(reporter)] for name, reporter in _loaded(built_in=True)}
    return [name for name, shown in names.items() if not shown or command in ("show", *shown)]


def _loaded(built_in: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the names and classes of reporters that load; with `built_in`, only hookcli's own."""
    for plugin in registry.plugins("reporters"):
        if plugin.built_in or not (built_in or plugin.shadowed):
            with suppress(HookcliError):
                yield plugin.name, plugin.load()
