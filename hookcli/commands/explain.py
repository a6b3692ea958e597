"""The command `hookcli explain`."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from hookcli.checks.base import Check
from hookcli.checks.crash import Crash
from hookcli.checks.selection import find_check, known_checks
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
        typer.Argument(metavar="ID...", help="Ids or names of checks.", autocompletion=complete_checks),
    ] = None,
) -> int:
    """Explain a check: the usual causes, and what to try.

    Without an id, all checks are listed.
    """
    stream = require_stdout()
    width = min(terminal_size(stream).columns, _WIDEST) if is_terminal(stream) else _WIDEST
    text = "\n\n".join(_text(find_check(word), width) for word in checks) if checks else _all(width)
    write_report(visible_lines(text) + "\n")
    return 0


def _all(width: int) -> str:
    """A line for each check: the id, the name, and what a finding usually means."""
    checks = known_checks()
    names = max(len(check.name) for check in checks)
    heads = [f"{check.id:7}{check.name:{names}}  " for check in checks]
    return "\n".join(
        textwrap.fill(head + check.means, width, subsequent_indent=" " * len(head), break_on_hyphens=False)
        for head, check in zip(heads, checks, strict=True)
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
