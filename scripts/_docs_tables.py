"""Tables in pages of the documentation that come from elsewhere, each between two comments that name its source.

<!-- table: hookcli plugins --hooks -->               the kinds of hooks, from `hookcli.hooks.kinds`
<!-- table: hookcli check --list -->                  the checks, from their classes
<!-- table: performance.md: Start -->                 a table that `scripts/bench --markdown` has written
<!-- table: scripts/mutate -->                        the shares of mutants killed that `scripts/mutate` has kept
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex

from _docs_blocks import ROOT

_TABLE = re.compile(r"^<!-- table: ([^\n]*) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)


def with_tables(page: str) -> str:
    """Return the page with the tables that its comments name."""
    return _TABLE.sub(lambda found: f"<!-- table: {found[1]} -->\n\n{_table(found[1])}\n<!-- end -->", page)


def _table(source: str) -> str:
    if source.startswith("performance.md: "):
        return _measured(source.removeprefix("performance.md: "))
    if source == "scripts/mutate":
        return _mutants()
    return _printed(shlex.split(source)[1:])


def _measured(title: str) -> str:
    performance = (ROOT / "docs" / "performance.md").read_text()
    found = re.search(rf"^\*\*{re.escape(title)}\*\* \(.*\)\n\n(?:\|.*\n)+", performance, re.MULTILINE)
    if not found:
        raise ValueError(f"performance.md has no table {title!r}")
    return found[0]


def _mutants() -> str:
    shares = json.loads((ROOT / "scripts" / "mutants.json").read_text())
    lines = [
        "| Date | Seed | Mutants | Equivalent | Killed | Share | Least |",
        "| :--- | ---: | ---: | ---: | ---: | ---: | :--- |",
    ]
    for one in shares:
        killed, judged = (sum(count[at] for count in one["folders"].values()) for at in (0, 1))
        folder, (least, of) = min(one["folders"].items(), key=lambda item: item[1][0] / item[1][1])
        cells = (
            one["date"],
            one["seed"],
            judged + one["equivalent"],
            one["equivalent"],
            killed,
            f"{killed / judged:.0%}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} | `{folder}`: {least} of {of} |")
    return "".join(f"{line}\n" for line in lines)


def _printed(arguments: list[str]) -> str:
    from hookcli.cli import main

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        main([*arguments, "--format", "markdown", "--quiet"])
    return "".join(line for line in printed.getvalue().splitlines(keepends=True) if line.startswith("|"))
