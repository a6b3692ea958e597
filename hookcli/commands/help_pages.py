"""Help pages: the commands in groups by question, and the arguments, options and examples of a command."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from hookcli.commands import COMMANDS, QUESTIONS
from hookcli.registry.capability import capabilities
from hookcli.system.stdout import report_stream
from hookcli.system.streams import takes_color, terminal_size

if TYPE_CHECKING:
    from hookcli.table import Column

_WIDEST = 100
_NARROWEST = 40
_USUAL = 80  # columns at which help is made to fit a screen
_SCREEN = 23  # lines of a small terminal, without its prompt
_LONG_SCREEN = 40  # lines of the list of commands
_MOST = 25  # options that --help shows
_LISTED = 12  # columns that the first screen lists
_LISTED_IN_BRIEF = 2  # where that makes it fit a screen
_FORMATS = 6  # and formats
_NAMES = 24  # columns for names at most; the text of a longer name begins below it
_HEADING, _NAME, _METAVAR = "1;32", "1;36", "36"  # bold green, bold cyan, cyan
_COMMON = (
    *("input", "device", "match", "depth", "format", "output", "sort", "columns", "batch_size"),
    "weights",  # another word
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
    """Names of the parameters that `-h` shows as far as they fit a screen, the most used first; "": the command's own
    and the most common ones."""
    seldom: Collection[str] = ()
    """Names of the parameters that `--help` leaves to `--help all` if it has too many."""
    example: Callable[[Sequence[str]], str] | None = None
    """Makes a command that runs, for messages, of the words that were typed."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Options that the command has in another place, and what to type."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """Options of other tools, and the command's for the same."""


class Page:
    """Text of a help page, in colour on a terminal."""

    def __init__(self, width: int = 0) -> None:
        stream = report_stream()
        self._color = takes_color(stream)
        self._width = width or max(min(terminal_size(stream).columns, _WIDEST), _NARROWEST)
        self._blocks: list[str] = []

    def text(self, between: str = "\n\n") -> str:
        """Return the page, its blocks separated by empty lines."""
        return between.join(self._blocks)

    def paragraph(self, text: str) -> None:
        """Add a paragraph, filled to the width."""
        self._blocks.append("\n".join(self._filled(" ".join(text.split()), self._width)))

    def usage(self, path: str, rest: str) -> None:
        """Add the usage line."""
        self._blocks.append(f"{self._styled('Usage:', _HEADING)} {self._styled(path, _NAME)} {rest}")

    def lines(self, heading: str, lines: Iterable[str]) -> None:
        """Add lines as they are below a heading."""
        self._blocks.append("\n".join([self._styled(heading, _HEADING), *(f"  {line}" for line in lines)]))

    def entries(self, heading: str, entries: Sequence[Entry], widest: int = 0, *, one_line: bool = False) -> None:
        """Add names with their texts beside them, below a heading if there is one.

        `widest` aligns the texts of several blocks; `one_line` cuts each text after one line, but on a narrow page.
        """
        widths = [len(f"{names} {metavar}".rstrip()) for names, metavar, _ in entries]
        column = max([widest, *(width for width in widths if width <= _NAMES)])
        lines = [self._styled(heading, _HEADING)] if heading else []
        for (names, metavar, text), width in zip(entries, widths, strict=True):
            name = self._styled(names, _NAME) + (f" {self._styled(metavar, _METAVAR)}" if metavar else "")
            room = self._width - column - 4
            cut = one_line and self._width >= _USUAL
            filled = [first_clauses(text, room)] if cut else self._filled(text, room) or [""]
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


def first_clauses(text: str, width: int) -> str:
    """Return the clauses of an option's text, separated by semicolons, that fit the width; of one too long, its words.

    "..." stands for the end of a list only: a clause that is a sentence fits a line of the first screen.
    """
    clauses = text.split("; ")
    for number in range(len(clauses), 0, -1):
        if len(short := "; ".join(clauses[:number])) <= width:
            return short
    return shortened_to(clauses[0], width)


def shortened_to(text: str, width: int) -> str:
    """Return the words of a text that fit the width, with "..." for the others.

    It ends behind a comma or semicolon, if that takes no more than a third of it.
    """
    short = textwrap.shorten(text, max(width, 20), placeholder=" ...", break_on_hyphens=False)
    end = max(map(short.rfind, (", ", "; ")))
    return f"{short[: end + 1]} ..." if short.endswith(" ...") and 3 * end > 2 * len(short) else short


def first_page() -> str:
    """Return what `hookcli` alone prints: one screen of 24 rows, with the questions and a command for each task."""
    page = Page()
    page.paragraph("See what happens inside a PyTorch model or an unmodified training script.")
    lines: list[str] = []
    foreign = foreign_commands()
    for question, names in QUESTIONS.items():
        if len(", ".join(names)) > _USUAL - 6:
            names = tuple(name for name in names if name not in foreign)
        lines += [question, f"    {shortened_to(', '.join(names), _USUAL - 6)}"]
    page.lines("Questions, and the commands that answer them:", lines)
    page.lines("Start with:", _STARTS)
    page.paragraph("All commands: hookcli --help; options of one: hookcli shapes -h")
    return page.text()


def foreign_commands() -> set[str]:
    """The commands that capabilities of other distributions add."""
    return {one.name for one in capabilities() if one.distribution != "hookcli"}


_STARTS = (
    "hookcli shapes resnet50",
    "hookcli check net.py:Net --input 8x1x28x28",
    "hookcli run train.py",
)


def commands_page(about: str, *, whole: bool = False) -> str:
    """Return the help of hookcli itself: with `whole` a line for each command. Imports no command.

    Otherwise it fits a screen of 40 lines at 80 columns: where the commands are too many, those of other distributions
    are only named, then those of the last question, then the last ones of the longest lists.
    """
    listed = {question: list(names) for question, names in QUESTIONS.items()}
    named: dict[str, list[str]] = {question: [] for question in listed}

    def is_long() -> bool:
        return not whole and _commands(about, listed, named, Page(_USUAL)).count("\n") >= _LONG_SCREEN

    if is_long():
        foreign = foreign_commands()
        for question, names in listed.items():
            named[question] = [name for name in names if name in foreign]
            listed[question] = [name for name in names if name not in foreign]
    while is_long():
        question = [*listed][-1]
        if len(listed[question]) < 2:
            question = max(listed, key=lambda question: len(listed[question]))
        if len(listed[question]) < 2:
            break
        for _ in range(1 if named[question] else 2):  # a line that names one alone saves none
            named[question].append(listed[question].pop())
    return _commands(about, listed, named, Page())


def _commands(about: str, listed: Mapping[str, Sequence[str]], named: Mapping[str, Collection[str]], page: Page) -> str:
    page.paragraph(about)
    page.usage("hookcli", "COMMAND [OPTIONS] (-h: in short, --help: more, --help all)")
    widest = max(map(len, (*COMMANDS, _FURTHER)))
    for question, names in listed.items():
        page.entries(question, [(name, "", COMMANDS[name].rstrip(".")) for name in names], widest, one_line=True)
        if further := [name for name in QUESTIONS[question] if name in named[question]]:
            page.entries("", [(_FURTHER, "", ", ".join(further))], widest)
    more = ", --help all" if any(named.values()) else ""
    page.paragraph(f"Options: --version, --install-completion, --show-completion{more}")
    return page.text(between="\n")


_FURTHER = "Further:"


@dataclass(frozen=True)
class Extent:
    """How much of a command's help a page shows."""

    options: Collection[str]
    """The names of the parameters."""
    columns: float = math.inf
    """The number of columns that the text of --columns lists, and formats that --format lists."""
    formats: float = math.inf
    examples: int | None = None
    one_line: bool = False
    """True to cut the text of each option after one line."""
    whole: bool = True
    """True for all paragraphs, and options in sections."""


def by_use(options: Sequence[Any], details: Details) -> tuple[list[str], list[str]]:
    """Return the names of the options that `-h` shows, and all names; both the most used first."""
    from hookcli.commands.options import SHARED

    names = [one.name for one in options]
    often = [name for name in names if name not in details.seldom]
    own = [name for name in often if name not in SHARED]
    first = ["help", *(details.first.split() or [*own, *_COMMON])]
    every = dict.fromkeys([*first, *own, *_COMMON, *often, *names])
    return [name for name in first if name in names], [name for name in every if name in names]


def shown_options(command: Any, ctx: Any) -> list[Any]:
    """Return the options of a command that are not hidden, as they were declared."""
    return [one for one in command.get_params(ctx) if one.param_type_name != "argument" and not one.hidden]


def first_screen(command: Any, ctx: Any, details: Details) -> str:
    """Return the most used options of a command, as far as they and the prompt fit a screen of 24 lines at 80 columns.

    What takes the room is left out in turn: the second example, most columns that --columns lists, the further lines
    of each text, and the options that are used least.
    """
    names, _ = by_use(shown_options(command, ctx), details)
    brief = partial(Extent, formats=_FORMATS, whole=False)
    extents = [
        brief(names, columns, examples=examples, one_line=one_line)
        for columns, one_line in ((_LISTED, False), (_LISTED_IN_BRIEF, False), (_LISTED_IN_BRIEF, True))
        for examples in (2, 1)
    ]
    fewer = (names[:number] for number in range(len(names) - 1, 0, -1))
    extents += [brief(some, _LISTED_IN_BRIEF, examples=1, one_line=True) for some in fewer]
    extent = extents[0]
    for narrower in extents[1:]:
        if written(command, ctx, details, extent, Page(_USUAL)).text().count("\n") < _SCREEN:
            break
        extent = narrower
    return written(command, ctx, details, extent, Page()).text()


def usual_page(command: Any, ctx: Any, details: Details) -> str:
    """Return the help of a command with at most 25 options, and the number of the others."""
    _, names = by_use(shown_options(command, ctx), details)
    page = written(command, ctx, details, Extent(names[:_MOST]), Page())
    if (others := len(names) - _MOST) > 0:
        page.paragraph(f"{others} more option{'s' if others > 1 else ''}: {ctx.command_path} --help all")
    return page.text()


def command_page(command: Any, ctx: Any, details: Details, page: Page | None = None) -> str:
    """Return the help of a command with all options, written on `page`."""
    names = [one.name for one in shown_options(command, ctx)]
    return written(command, ctx, details, Extent(names), page or Page()).text()


def written(command: Any, ctx: Any, details: Details, extent: Extent, page: Page) -> Page:
    """Return the page with the help of a command."""
    text = partial(_text, command=command.name, details=details, extent=extent)
    parameters = command.get_params(ctx)
    options = [one for one in shown_options(command, ctx) if one.name in extent.options]
    for paragraph in (command.help or "").split("\n\n")[: None if extent.whole else 1]:
        page.paragraph(paragraph)
    page.usage(ctx.command_path, usage(ctx))
    if arguments := _arguments(parameters):
        names = [(argument_name(one), "", text(one)) for one in arguments]
        page.entries("Arguments:", names, one_line=extent.one_line)
    sections: dict[str, list[Any]] = {}
    for one in options:  # under the headings that they name, in the order of declaration
        heading = getattr(one, "rich_help_panel", None) if extent.whole else None
        sections.setdefault(heading or "Options", []).append(one)
    for heading, some in sorted(sections.items(), key=lambda section: section[0] == "Options"):
        page.entries(f"{heading}:", [_entry(one, text(one)) for one in some], one_line=extent.one_line)
    left_out = [one for one in shown_options(command, ctx) if one not in options]
    page.lines("Examples:", examples_without(left_out, details)[: extent.examples])
    return page


def examples_without(options: Sequence[Any], details: Details) -> Sequence[str]:
    """Return the examples that have none of these options, which a page leaves out; all if each has one."""
    names = {name for one in options for name in one.opts}
    known = [text for text in details.examples if not names.intersection(text.replace("=", " ").split())]
    return known or details.examples


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


def _text(parameter: Any, command: str, details: Details, extent: Extent) -> str:
    text = (parameter.help or "").rstrip(".")
    if parameter.name == "format":
        from hookcli.reporters.selection import offered  # which loads the reporters: not before help is asked for

        text = _listed(offered(command), extent.formats)
    if parameter.name == "columns" and details.columns:
        names = [column.name for column in details.columns]
        text += f": {_listed(names, extent.columns)}"
    default = parameter.default
    shows_default = parameter.show_default and type(default) in (int, float, str)
    return f"{text} [{default}]" if shows_default else text


def _listed(names: Sequence[str], limit: float) -> str:
    kept = [name for number, name in enumerate(names) if number < limit]
    return ", ".join([*kept, *(["..."] if len(kept) < len(names) else [])])
