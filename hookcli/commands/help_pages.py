"""Help pages: the commands in groups by question, and the arguments, options and examples of a command."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from hookcli.commands import COMMANDS, QUESTIONS
from hookcli.system.stdout import report_stream
from hookcli.system.streams import takes_color, terminal_size

if TYPE_CHECKING:
    from hookcli.table import Column

_WIDEST = 100
_NARROWEST = 40
_FIRST_SCREEN = 30  # lines of help after -h, at 80 columns
_LISTED = 12  # columns that the first screen lists
_LISTED_IN_BRIEF = 2  # where that makes it fit a screen
_SCREEN = 24  # lines of a small terminal
_FORMATS = 6  # and formats
_NAMES = 24  # columns for names at most; the text of a longer name begins below it
_HEADING, _NAME, _METAVAR = "1;32", "1;36", "36"  # bold green, bold cyan, cyan
_COMMON = frozenset(
    (
        *("input", "batch_size", "device", "depth", "match", "columns", "sort", "format", "output", "help"),
        "weights",  # another word
    )
)

Entry = tuple[str, str, str]
"""The names of an option (or a command), its metavar, and its text."""


@dataclass(frozen=True)
class Details:
    """Parts of a command's help besides its options."""

    examples: Sequence[str] = ()
    columns: Sequence[Column] = ()
    """The columns that --columns and --sort take; empty if they depend on what is shown."""
    first: str = ""
    """Names of the parameters that `-h` shows; "": the command's own and the most common ones."""
    example: Callable[[Sequence[str]], str] | None = None
    """Makes a command that runs, for messages, of the words that were typed."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Options that the command has in another place, and what to type."""


class Page:
    """Text of a help page, in colour on a terminal."""

    def __init__(self) -> None:
        stream = report_stream()
        self._color = takes_color(stream)
        self._width = max(min(terminal_size(stream).columns, _WIDEST), _NARROWEST)
        self._blocks: list[str] = []

    def text(self, between: str = "\n\n") -> str:
        """Return the page, its blocks separated by empty lines."""
        return between.join(self._blocks)

    @property
    def height(self) -> int:
        """The number of lines so far."""
        return self.text().count("\n") + 1

    def paragraph(self, text: str) -> None:
        """Add a paragraph, filled to the width."""
        self._blocks.append("\n".join(self._filled(" ".join(text.split()), self._width)))

    def usage(self, path: str, rest: str) -> None:
        """Add the usage line."""
        self._blocks.append(f"{self._styled('Usage:', _HEADING)} {self._styled(path, _NAME)} {rest}")

    def lines(self, heading: str, lines: Iterable[str]) -> None:
        """Add lines as they are below a heading."""
        self._blocks.append("\n".join([self._styled(heading, _HEADING), *(f"  {line}" for line in lines)]))

    def entries(self, heading: str, entries: Sequence[Entry], widest: int = 0) -> None:
        """Add names with their texts beside them below a heading; `widest` aligns the texts of several blocks."""
        widths = [len(f"{names} {metavar}".rstrip()) for names, metavar, _ in entries]
        column = max([widest, *(width for width in widths if width <= _NAMES)])
        lines = [self._styled(heading, _HEADING)]
        for (names, metavar, text), width in zip(entries, widths, strict=True):
            name = self._styled(names, _NAME) + (f" {self._styled(metavar, _METAVAR)}" if metavar else "")
            filled = self._filled(text, self._width - column - 4) or [""]
            if width > column:
                lines.append(f"  {name}")
            else:
                lines.append(f"  {name}{' ' * (column - width)}  {filled.pop(0)}".rstrip())
            lines += [" " * (column + 4) + line for line in filled]
        self._blocks.append("\n".join(lines))

    def _filled(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, max(width, 20), break_on_hyphens=False, break_long_words=False)

    def _styled(self, text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self._color else text


def first_page() -> str:
    """Return what `hookcli` alone prints: one screen of 24 rows, with the questions and a command for each task."""
    page = Page()
    page.paragraph("See what happens inside a PyTorch model or an unmodified training script.")
    answers = ((question, f"    {', '.join(names)}") for question, names in QUESTIONS.items())
    page.lines("Questions, and the commands that answer them:", chain.from_iterable(answers))
    page.lines("Start with:", _STARTS)
    page.paragraph("All commands: hookcli --help; options of one: hookcli shapes -h")
    return page.text()


_STARTS = (
    "hookcli shapes resnet50",
    "hookcli check net.py:Net --input 8x1x28x28",
    "hookcli run train.py",
)


def commands_page(about: str) -> str:
    """Return the help of hookcli itself, which fits a screen of 40 lines. Imports no command."""
    page = Page()
    page.paragraph(about)
    page.usage("hookcli", "COMMAND [OPTIONS] (-h: its most used options, --help: all)")
    widest = max(map(len, COMMANDS))
    for question, names in QUESTIONS.items():
        page.entries(question, [(name, "", COMMANDS[name].rstrip(".")) for name in names], widest)
    page.paragraph("Options: --version, --install-completion, --show-completion")
    return page.text(between="\n")


def first_screen(command: Any, ctx: Any, details: Details) -> str:
    """Return the most used options of a command: in brief if these fit a screen of 24 lines only then."""
    pages = [command_page(command, ctx, details, whole=False, listed=n) for n in (_LISTED, _LISTED_IN_BRIEF)]
    return next((page for page in pages if page.count("\n") < _SCREEN), pages[0])


def command_page(
    command: Any, ctx: Any, details: Details, *, whole: bool, page: Page | None = None, listed: int = _LISTED
) -> str:
    """Return the help of a command, written on `page`: with `whole` all of it, else its most used options.

    Of the columns that it has, these options name the first `listed` ones.
    """
    page = page or Page()
    brief = listed < _LISTED
    text = partial(_text, command=command.name, details=details, whole=whole, listed=listed)
    parameters = command.get_params(ctx)
    options = [one for one in parameters if one.param_type_name != "argument" and not one.hidden]
    paragraphs = (command.help or "").split("\n\n")
    if whole:
        sections = _sections(options)
    else:
        paragraphs, sections = paragraphs[:1], [("Options", _first(options, details))]
    for paragraph in paragraphs:
        page.paragraph(paragraph)
    page.usage(ctx.command_path, usage(ctx))
    if arguments := _arguments(parameters):
        page.entries("Arguments:", [(argument_name(one), "", text(one)) for one in arguments])
    for heading, some in sections:
        page.entries(f"{heading}:", [_entry(one, text(one)) for one in some])
    page.lines("Examples:", details.examples if whole else fitting_examples(page, details.examples, brief=brief))
    if not (whole or brief):
        page.paragraph(f"All options: {ctx.command_path} --help")
    return page.text()


def fitting_examples(page: Page, examples: Sequence[str], *, brief: bool) -> Sequence[str]:
    """Two of the examples if they fit on the first screen, else one."""
    below, screen = (4, _SCREEN) if brief else (6, _FIRST_SCREEN)
    return examples[: 2 if page.height + below <= screen else 1]


def _sections(options: Sequence[Any]) -> list[tuple[str, list[object]]]:
    """Return the options under the headings that they name (`rich_help_panel`), in the order of declaration."""
    sections: dict[str, list[object]] = {}
    for one in options:
        sections.setdefault(getattr(one, "rich_help_panel", None) or "Options", []).append(one)
    return sorted(sections.items(), key=lambda section: section[0] == "Options")


def _first(options: Sequence[Any], details: Details) -> list[Any]:
    from hookcli.commands.options import SHARED

    chosen = {*details.first.split(), "help"} if details.first else _COMMON
    return [one for one in options if one.name in chosen or not (details.first or one.name in SHARED)]


def usage(ctx: Any) -> str:
    """Return the words after a command's path in its usage line."""
    words = ["[OPTIONS]"]
    for argument in _arguments(ctx.command.get_params(ctx)):
        name = argument_name(argument)
        optional = f"[{name[:-3]}]..." if name.endswith("...") else f"[{name}]"
        words.append(name if argument.required else optional)
    return " ".join(words)


def _arguments(parameters: Iterable[Any]) -> list[Any]:
    return [one for one in parameters if one.param_type_name == "argument" and not one.hidden]


def argument_name(argument: Any) -> str:
    """Return an argument's name, without the brackets that Typer adds."""
    name = (argument.metavar or argument.name.upper()).strip("[].")
    return f"{name}..." if argument.nargs != 1 else name


def _entry(option: Any, text: str) -> Entry:
    # A switch that is on by default is shown by the name that turns it off, which is what its text is about.
    opts = option.secondary_opts if option.is_flag and option.default is True else option.opts
    if option.is_flag and option.default is None:
        opts = [*opts, *option.secondary_opts]
    short = [name for name in opts if not name.startswith("--")]
    long = [name for name in opts if name.startswith("--")]
    names = ", ".join([*short, *long]) if short else "    " + ", ".join(long)
    return names, "" if option.is_flag else option.metavar or "", text


def _text(parameter: Any, command: str, details: Details, *, whole: bool, listed: int) -> str:
    text = (parameter.help or "").rstrip(".")
    if parameter.name == "format":
        from hookcli.reporters.selection import offered  # which loads the reporters: not before help is asked for

        text = _listed(offered(command), math.inf if whole else _FORMATS)
    if parameter.name == "columns" and details.columns:
        names = [column.name for column in details.columns]
        text += f": {_listed(names, math.inf if whole else listed)}"
    default = parameter.default
    shows_default = parameter.show_default and type(default) in (int, float, str)
    return f"{text} [{default}]" if shows_default else text


def _listed(names: Sequence[str], limit: float) -> str:
    kept = [name for number, name in enumerate(names) if number < limit]
    return ", ".join([*kept, *(["..."] if len(kept) < len(names) else [])])
