"""The classes behind the commands: hookcli's own help, and a start that does not wait for what it doesn't need."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise, zip_longest
from typing import Any

from typer import TyperException
from typer.core import TyperCommand

from hookcli.commands.help_pages import Details, command_page, first_screen, usual_page
from hookcli.errors import UsageError, nearest
from hookcli.hooks.option_values import AMP, COMPILE, OPS
from hookcli.system.files import exists
from hookcli.system.stdout import write_report

TYPED = "hookcli.typed"
"""Key of the arguments as typed in a command's context: Typer loses the order among different options."""


def typed_names(ctx: Any) -> set[str]:
    """The names of the parameters that were given on the command line."""
    return {name for name in ctx.params if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"}


class _AsItIs:
    """Typer (0.29) converts every value, even text to text, through pydantic, whose import takes as long as all of
    `hookcli models`. This lets values through that have their type already, texts of a list too, and leaves the others
    to Typer."""

    def __init__(self, annotation: object) -> None:
        self._annotation = annotation

    def coerce(self, value: Any, param: Any, ctx: object) -> object:
        """The value as the parameter's type; None if not given, and an empty tuple for a repeatable option."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if type(value) is self._annotation:
            return value
        if self._annotation == list[str] and all(type(item) is str for item in value):
            return list(value)
        param._runtime_param = None  # Typer makes its own anew
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _show_help(ctx: Any, parameter: object, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        write_report(f"{ctx.get_help()}\n")
        ctx.exit()


_BARE = {"--ops": OPS, "--compile": COMPILE, "--amp": AMP}
"""Options whose value may be left out, with the values to choose from, the first of which is meant then."""


OPTIONAL_NUMBER = "[N]"
"""The metavar of an option whose value, a number, may be left out: 0 is meant then."""


def with_values(args: Sequence[str], numbers: Collection[str] = ()) -> list[str]:
    """The arguments, with a value for each option that stands without one: Typer has no such options.

    `numbers`: the options whose value is an optional number.

    Raises UsageError for one with an empty value, which would read as if the option had not been given.
    """
    words: list[str] = []
    for word, following in zip_longest(args, args[1:]):
        words.append(word)
        if "--" in words:
            continue
        if word.endswith("=") and word[:-1] in _BARE:
            raise UsageError(f"{word}: a value is missing; give {word[:-1]} alone, or {word}{_BARE[word[:-1]][0]}")
        if word in _BARE and not _is_value(following, _BARE[word]):
            words.append(_BARE[word][0])
        if word in numbers and not (following or "").isdigit():
            words.append("0")
    return words


def _is_value(word: str | None, values: Sequence[str]) -> bool:
    """True for one of these values, and for a word that names, or resembles, no model, file or folder: it is meant as
    a value, perhaps of a plugin, and as one gets the message of an unknown value.
    """
    if word in values:
        return True
    if not word or not word.replace("-", "").isidentifier() or word.startswith("-") or exists(word):
        return False
    from hookcli.sources.catalog import entries

    models = [*entries()]
    return bool(models) and word not in models and not nearest(word, models)


class Helpful:
    """Help as hookcli writes it, and a start without Typer's conversion of values."""

    def get_help_option(self, ctx: object) -> Any:
        """The --help option, which writes as reports are written: Typer's fails where stdout is full."""
        whole: Any = super()
        option = whole.get_help_option(ctx)
        if option is not None:
            option.callback = _show_help
            option.help = "Show help: -h in short, --help more, --help all."
        return option

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, and keep them as typed for the command."""
        ctx.meta[TYPED] = tuple(args)
        whole: Any = super()
        parameters = whole.get_params(ctx)
        for parameter in parameters:  # no effect if a later Typer works differently; --help is among them
            if hasattr(parameter, "_runtime_param") and hasattr(parameter, "type_descriptor"):
                parameter._runtime_param = _AsItIs(parameter.type_descriptor.annotation)
        try:
            numbers = [name for one in parameters if one.metavar == OPTIONAL_NUMBER for name in one.opts]
            rest: list[str] = whole.parse_args(ctx, with_values(args, numbers) if ctx.allow_interspersed_args else args)
        except TyperException as error:
            vars(error)["ctx"] = getattr(error, "ctx", None) or ctx  # some of Typer's errors don't say whose they are
            raise
        return rest


def asks_for_all(typed: Sequence[str]) -> bool:
    """True where these words of a command line ask for all of its help."""
    return ("--help", "all") in pairwise(typed)


class HelpfulCommand(Helpful, TyperCommand):
    """A command whose help shows its most used options with -h, more with --help, and all with --help all."""

    details = Details()

    def get_help(self, ctx: Any) -> str:
        """Return the help, as long as it is asked for."""
        typed = ctx.meta.get(TYPED, ())
        if asks_for_all(typed):
            return command_page(self, ctx, self.details)
        page = first_screen if "-h" in typed and "--help" not in typed else usual_page
        return page(self, ctx, self.details)
