"""The interfaces of reporters: those that make text, and those that write a file or folder by themselves."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from hookcli.errors import UsageError
from hookcli.registry.capability import capabilities
from hookcli.table import Report
from hookcli.table.grouping import View

# About a screen; used if the output has no height.
SCREEN = 40
PIPE = 160
"""Columns of a table in a pipe or file, where COLUMNS does not say otherwise."""


def drawing(kind: str) -> tuple[str, ...]:
    """The commands of capabilities whose reports can be drawn as this kind of picture."""
    return tuple(f"hookcli {one.name}" for one in capabilities() if kind in one.pictures)


class _Format(Protocol):
    """The attributes that reporters and exporters share, each with its default."""

    suffixes: ClassVar[tuple[str, ...]] = ()
    """File suffixes that select this format."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Columns that a report must have. A format that requires any gets every row, whatever the depth."""
    needs_one: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Sets of columns of which a report must have one, for formats of several kinds of reports."""
    command: ClassVar[str] = ""
    """The command whose reports have these columns, named in help and messages; "" for all commands."""
    commands: ClassVar[tuple[str, ...]] = ()
    """The commands for `needs_one`."""
    then: ClassVar[str] = ""
    """Remark on how to open the output; `{path}` stands for it."""


class Reporter(_Format, Protocol):
    """Turns reports into text. A reporter of another distribution needs only `render`; each attribute has a default."""

    for_people: ClassVar[bool] = False
    """True if the output includes totals and remarks in words; commands then don't repeat them on stderr."""
    with_figures: ClassVar[bool] = False
    """True if `hookcli check` gives it, beside the findings, the reports that the checks read."""

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Return the reports as text. They are sorted and filtered already.

        `view.depth` None leaves the depth to the reporter: formats for people group rows to fit a screen.
        """


class Exporter(_Format, Protocol):
    """Writes reports for other programs. It has `export` in place of `render`; each attribute has a default.

    A record gives it every recorded step, in two reports: "step" has the figures of the whole model, "run" a row per
    module. Their rows have a `step`, a `phase` and, without gradients, a `forward`. Other reports come as a Reporter
    gets them.
    """

    target: ClassVar[Literal["file", "folder", "new folder"]] = "file"
    """The kind of the output. A file is replaced; a new folder must be empty or not exist; a folder is added to."""
    live: ClassVar[bool] = False
    """True if other programs can read the output while reports still come."""

    def export(self, reports: Iterable[Report], view: View, path: Path) -> None:
        """Write the reports, which are sorted and filtered already, as they come. Raises OSError.

        There may be too many to keep. An exporter that is `live` also lets others see them at once.
        """


def require(name: str, module: str, extra: str = "", **environment: str) -> None:
    """Raise UsageError, with the command that installs it, if the module that a format needs can't be imported.

    `extra`: an extra of the package hookcli; by default the one that this format's capability names, or its name.
    It is imported with these environment variables, which are then as before: `hookcli run` hands them to a program.
    """
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        why = "is not installed" if isinstance(error, ModuleNotFoundError) else f"can't be imported ({error})"
        own = next((one.extra for one in capabilities() if one.name == name), "")
        raise UsageError(f"--format {name}: {package} {why}; pip install 'hookcli[{extra or own or name}]'") from error
    finally:
        for key in os.environ.keys() - before.keys():
            del os.environ[key]
        os.environ.update(before)
