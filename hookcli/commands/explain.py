"""The command `hookcli explain`."""

from __future__ import annotations

import re
import textwrap
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
    parts = [f"{check.id} {check.name} ({check.severity})"]
    parts += [textwrap.fill(part, width, break_on_hyphens=False) for part in check.explanation().split("\n\n")]
    lines = [f"{title:15}{text}" for title, text in entries(check)]
    indent = " " * 15
    parts.append("\n".join(textwrap.fill(e, width, subsequent_indent=indent, break_on_hyphens=False) for e in lines))
    return "\n\n".join(parts)


def entries(check: type[Check]) -> list[tuple[str, str]]:
    """Return the texts below the explanation of a check, each with its title."""
    texts = [("Usually means", check.means), ("Try", check.advice)]
    threshold = check.threshold
    if threshold:
        default = "none" if threshold.default is None else figure(threshold.default)
        texts.append(("Threshold", f"{default}: {threshold.means}"))
        option = f"--{check.name} FIGURE" if threshold.default is None else f"--threshold {check.id}=FIGURE"
        texts.append(("Change it", f"{option}, or {check.id} = FIGURE in [tool.hookcli.thresholds]"))
    if check is not Crash:  # a crash is always reported
        texts.append(("Leave it out", f"--ignore {check.id}, or ignore = ['{check.id}'] in [tool.hookcli]"))
    return texts
