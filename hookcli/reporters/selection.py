"""Choosing a reporter: by name, by the suffix of a file, and by the columns of the reports that it is to show."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

from hookcli import registry
from hookcli.errors import HookcliError, UsageError, unknown
from hookcli.report import Column
from hookcli.reporters.base import Reporter


def declared(reporter: Any, attribute: str) -> Any:
    """What a reporter, or its class, says of itself; where it says nothing, the interface's default."""
    return getattr(reporter, attribute, getattr(Reporter, attribute))


def by_name(name: str) -> Any:
    """The class of the reporter. Raises UsageError for an unknown name, PluginError where it does not load."""
    if name not in registry.names("reporters"):
        raise UsageError(unknown("--format", name, registry.names("reporters")))
    return registry.load("reporters", name)


def by_suffix(suffix: str) -> str | None:
    """The name of the reporter whose files have this suffix; hookcli's own come before those of others."""
    return next((name for name, reporter in _loaded() if suffix in declared(reporter, "suffixes")), None)


def suffixes() -> list[str]:
    """The suffixes of all formats."""
    return [suffix for _, reporter in _loaded() for suffix in declared(reporter, "suffixes")]


def missing(reporter: Any, columns: Collection[Column]) -> list[str]:
    """The columns that a reporter needs and a report lacks."""
    names = {column.name for column in columns}
    return [name for name in declared(reporter, "needs") if name not in names]


def suited(columns: Collection[Column]) -> list[str]:
    """The names of the reporters that can show a report with these columns."""
    return [name for name, reporter in _loaded() if not missing(reporter, columns)]


def offered(command: str) -> list[str]:
    """The names of hookcli's reporters for a command's help. `show` shows the reports of all commands."""
    found = [(name, f"{declared(reporter, 'command')} ") for name, reporter in _loaded(own=True)]
    return [name for name, its in found if its == " " or command == "show" or its.startswith(f"hookcli {command} ")]


def _loaded(own: bool = False) -> Iterator[tuple[str, Any]]:
    """The reporters that load, one after the other, with their names; `own`: hookcli's only."""
    for plugin in registry.plugins("reporters"):
        if plugin.built_in or not (own or plugin.shadowed):
            with suppress(HookcliError):
                yield plugin.name, plugin.load()
