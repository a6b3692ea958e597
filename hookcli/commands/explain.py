"""The command `hookcli explain`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import Annotated

import typer

from hookcli.checks.base import Check
from hookcli.checks.crash import Crash
from hookcli.checks.selection import find_check, known_checks
from hookcli.commands import COMMANDS
from hookcli.errors import UsageError, error_ids
from hookcli.system.escaping import visible_lines
from hookcli.system.stdout import require_stdout, write_report
from hookcli.system.streams import is_terminal, terminal_size
from hookcli.table.formatting import figure

EXAMPLES = ("hookcli explain", "hookcli explain HK012", "hookcli explain dead-units HK011")
_WIDEST = 100
_TITLES = 15  # width of a title


def complete_checks(incomplete: str) -> list[str]:
    """Return the check ids that begin as typed."""
    return [check.id for check in known_checks() if check.id.startswith(incomplete.upper())]


def explain(
    checks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID...", help="Ids or names of checks, or ids of errors.", autocompletion=complete_checks
        ),
    ] = None,
) -> int:
    """Explain a check: the usual causes, and what to try.

    Without an id, all checks are listed, and the errors that --format json names by an id.
    """
    stream = require_stdout()
    width = min(terminal_size(stream).columns, _WIDEST) if is_terminal(stream) else _WIDEST
    text = "\n\n".join(_explained(word, width) for word in checks) if checks else _all(width)
    write_report(visible_lines(text) + "\n")
    return 0


def _explained(word: str, width: int) -> str:
    error = error_ids().get(word.upper())
    if error:
        return f"{word.upper()} (error)\n\n{textwrap.fill(error, width)}"
    try:
        return _text(find_check(word), width)
    except UsageError as wrong:
        about = re.compile(rf"\b{re.escape(word)}", re.IGNORECASE)
        command = next((name for name, summary in COMMANDS.items() if about.search(summary)), "")
        if command and not str(wrong).endswith("?"):  # no check is about it
            wrong.args = (f"{wrong}; `hookcli {command}`: {COMMANDS[command].rstrip('.')}",)
        raise


def _all(width: int) -> str:
    """A line for each check: the id, the name, and what a finding usually means; and for each error in JSON."""
    lines = [(check.id, check.name, check.means) for check in known_checks()]
    lines += [(id_, "(error)", means) for id_, means in error_ids().items()]
    names = max(len(name) for _, name, _ in lines)
    heads = [f"{id_:7}{name:{names}}  " for id_, name, _ in lines]
    return "\n".join(
        textwrap.fill(head + means, width, subsequent_indent=" " * len(head), break_on_hyphens=False)
        for head, (*_, means) in zip(heads, lines, strict=True)
    )


def _text(check: type[Check], width: int) -> str:
    """The first paragraph of the explanation, the usual causes and advice; then the conditions, and the settings."""
    first, *conditions = (_filled(paragraph, width) for paragraph in check.explanation().split("\n\n"))
    head = f"{check.id} {check.name} ({check.severity})"
    texts = [head, first, titled(advice(check), width), *conditions, titled(settings(check), width)]
    return "\n\n".join(filter(None, texts))


def _filled(paragraph: str, width: int) -> str:
    """The paragraph in lines of this width; the items of a list are indented below their dash."""
    indents = ((line, "  " * line.startswith("- ")) for line in paragraph.split("\n"))
    return "\n".join(
        textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False) for line, indent in indents
    )


def titled(texts: Iterable[tuple[str, str]], width: int) -> str:
    """Return texts in lines of this width, each beside its title."""
    lines = [f"{title:{_TITLES}}{text}" for title, text in texts]
    indent = " " * _TITLES
    return "\n".join(textwrap.fill(e, width, subsequent_indent=indent, break_on_hyphens=False) for e in lines)


def advice(check: type[Check]) -> list[tuple[str, str]]:
    """Return the usual causes of a finding, and what to try, each with its title."""
    return [("Usually means", check.means), ("Try", check.advice)]


def settings(check: type[Check]) -> list[tuple[str, str]]:
    """Return the texts on the threshold of a check, and on how to leave it out, each with its title."""
    texts = []
    threshold = check.threshold
    if threshold:
        default = "none" if threshold.default is None else figure(threshold.default)
        texts.append(("Threshold", f"{default}: {threshold.means}"))
        option = f"--{check.name} FIGURE" if threshold.default is None else f"--threshold {check.id}=FIGURE"
        texts.append(("Change it", f"{option}, or {check.id} = FIGURE in [tool.hookcli.thresholds]"))
    if check is not Crash:  # a crash is always reported
        texts.append(("Leave it out", f"--ignore {check.id}, or ignore = ['{check.id}'] in [tool.hookcli]"))
    return texts
