"""The classes behind the commands: help under headings, and a start that does not wait for what it doesn't need."""

from __future__ import annotations

from typing import Any

from typer import _coercion
from typer.core import TyperCommand, TyperGroup


def _format_options(command: Any, ctx: Any, formatter: Any) -> None:
    """Options under the headings that they name (`rich_help_panel`), in the order of their declaration.

    As plain text: importing Rich's help would double the time that `--help` takes.
    """
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


class _AsItIs(_coercion.RuntimeParam):
    """Typer (0.29) converts every value, even text to text, through pydantic, whose import takes as long as all of
    `hookcli models`. This lets values through that have their type already and leaves the others to Typer."""

    def _coerce_value(self, value: Any, param: Any, ctx: Any) -> Any:
        if type(value) is self.annotation:
            return value
        return _coercion.build_runtime_param(param.type_descriptor).coerce(value, param=param, ctx=ctx)


def _spare_conversion(command: Any, ctx: Any) -> None:
    for parameter in command.get_params(ctx):  # --help among them
        descriptor = getattr(parameter, "type_descriptor", None)
        if descriptor is not None:
            parameter._runtime_param = _AsItIs(descriptor.parameter_info, descriptor.annotation)


class GroupedCommand(TyperCommand):
    """A command whose options stand under headings."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _spare_conversion(self, ctx)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _format_options(self, ctx, formatter)


class GroupedGroup(TyperGroup):
    """The group of all commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _spare_conversion(self, ctx)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)
