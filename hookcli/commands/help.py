"""Plain help texts, with options under headings. Importing Rich's help would double the time that `--help` takes."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

_WIDTH = 100


def _format_options(command: Any, ctx: Any, formatter: Any) -> None:
    """Options under the headings that they name (`rich_help_panel`), in the order of their declaration."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            default = "Arguments" if parameter.param_type_name == "argument" else "Options"
            heading = getattr(parameter, "rich_help_panel", None) or default
            sections.setdefault(heading, []).append(record)
    for heading in sorted(sections, key=lambda name: {"Arguments": 0, "Options": 2}.get(name, 1)):
        with formatter.section(heading):
            formatter.write_dl(sections[heading], col_max=34)


class GroupedCommand(TyperCommand):
    """A command whose options stand under headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _format_options(self, ctx, formatter)


class GroupedGroup(TyperGroup):
    """The group of all commands."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)
