"""The table for eyes: fits a terminal of 80 columns, uses a wider one, and groups deep models to fit a screen."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hookcli.report import Column, Report, Row, formatting
from hookcli.report.grouping import View, deepest, depth_of, fitting_depth, fold, for_people
from hookcli.reporters import footer, table_columns
from hookcli.reporters.base import SCREEN

# A file or pipe has no width to keep to.
_UNBOUNDED = 10_000
_NAMED = 10  # columns that are named where there is no room for them
_AROUND = 10  # lines around the rows of a table: headings, totals, a prompt


class TableReporter:
    """A Rich table per report, with totals and a line about the run."""

    suffixes = (".txt",)

    def render(self, reports: Sequence[Report], view: View) -> str:
        reports = [formatting.printable(report) for report in reports]
        text = io.StringIO()
        console = Console(
            file=text,
            width=view.width or _UNBOUNDED,
            force_terminal=view.color,
            color_system="auto" if view.color else None,
            highlight=False,
            legacy_windows=False,
        )
        for number, report in enumerate(reports):
            if several := len(reports) > 1:
                above = ("\n" if number else "") + footer.run_line(report)
                console.print(Text(above, style="bold"), soft_wrap=True)
            _print(console, report, view, headed=several)
        return "".join(line.rstrip() + "\n" for line in text.getvalue().splitlines())


def _print(console: Console, report: Report, view: View, *, headed: bool) -> None:
    shown = report = for_people(report)
    if view.depth is None and not view.sort:
        shown = fold(report, fitting_depth(report, max(view.height - _AROUND, 12) if view.height else SCREEN))
    columns = table_columns.visible(shown, view)
    cells = _cells(shown, columns, tree=_in_call_order(report) and not view.sort)
    rich = view.width is not None or view.color
    headings = [max(map(len, c.title.split() or [""])) if rich else len(c.title) for c in columns]
    widths = {
        c.name: max([heading, *(line[i].cell_len for line in cells)])
        for i, (c, heading) in enumerate(zip(columns, headings, strict=True))
    }
    kept = columns if view.columns else table_columns.fitted(columns, widths, view.width)
    if not cells and report.totals.get("checks"):
        kept = columns  # all is well, which the totals say
    elif rich:
        _print_rich(console, cells, columns, kept, widths, shown)
    else:
        _print_plain(console, cells, columns, widths, shown)
    below = _footer(report, shown, columns, [c for c in columns if c not in kept])
    for note in below if not headed else [line for line in below if line != footer.run_line(report)]:
        console.print(Text(note), style="dim", soft_wrap=view.width is None)


def _print_plain(
    console: Console, cells: list[list[Text]], columns: Sequence[Column], widths: dict[str, int], shown: Report
) -> None:
    """What Rich makes of it where there is nothing to fit and nothing to colour, in a tenth of the time."""
    left = [table_columns.reads_left(shown, column.name) for column in columns]
    lines = [[Text(column.title) for column in columns], *cells]
    padded = [
        "  ".join(
            text.plain + pad if leftwards else pad + text.plain
            for text, column, leftwards in zip(line, columns, left, strict=True)
            for pad in [" " * (widths[column.name] - text.cell_len)]
        )
        for line in lines
    ]
    rule = "─" * (sum(widths[column.name] for column in columns) + 2 * (len(columns) - 1))
    console.file.write("\n".join([padded[0], rule, *padded[1:], ""]))


def _print_rich(
    console: Console,
    cells: list[list[Text]],
    columns: Sequence[Column],
    kept: Sequence[Column],
    widths: dict[str, int],
    shown: Report,
) -> None:
    """A heading of several words may take several lines, a figure never does."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    for column in kept:
        left = table_columns.reads_left(shown, column.name)
        width = None if left else widths[column.name]
        table.add_column(column.title, justify="left" if left else "right", overflow="fold", width=width)
    for line in cells:
        table.add_row(*(text for text, column in zip(line, columns, strict=True) if column in kept))
    console.print(table)


def _in_call_order(report: Report) -> bool:
    """Whether rows come as modules were entered, containers first, so that they read as a tree."""
    names = {column.name for column in report.columns}
    return bool(names & {"call", "calls"}) and "kind" not in names and report.grouping == "nested"


def _cells(report: Report, columns: Sequence[Column], *, tree: bool) -> list[list[Text]]:
    before: Row | None = None
    levels: dict[str, int] = {}
    lines = []
    for row in report.rows:
        continued = table_columns.continues(row, before)
        name = _branch(row, levels) if tree else formatting.cell(row, "fqn")
        lines.append([_cell(row, column.name, name, continued) for column in columns])
        before = row
    return lines


def _branch(row: Row, levels: dict[str, int]) -> str:
    """The name of a row as a branch below the nearest of its containers that is shown; notes its own level."""
    owner = row.fqn
    while owner and (owner := owner.rpartition(".")[0]) not in levels:
        pass
    levels[row.fqn] = levels[owner] + 1 if owner else 0
    name = formatting.cell(row, "fqn")
    return "  " * levels[row.fqn] + (name[len(owner) + 1 :] if owner else name)


def _cell(row: Row, column: str, name: str, continued: bool) -> Text:
    if continued and column in ("fqn", "type", "input_shape", "params", "macs"):
        return Text("")
    if column == "fqn":
        return Text(name)
    text = formatting.cell(row, column)
    return Text(text, style=_warning(row) if column == "mark" else _style(row, column, text))


def _warning(row: Row) -> str:
    """A mark is a warning, unless it tells of what was asked for."""
    asked = row.get("edited") and formatting.mark(row) == f"edited: {row['edited']}"
    return "cyan" if asked or str(row.get("note", "")).startswith("edited") else "bold red"


def _style(row: Row, name: str, text: str) -> str:
    """Dim what is small or absent, and colour how bad a finding is."""
    value = row.get(name)
    if name == "severity":
        return {"error": "bold red", "warning": "yellow", "info": "cyan"}.get(text, "")
    if text in ("-", "0") or value in (0, None):
        return "dim"
    small = name in formatting.FIGURES and isinstance(value, float) and math.isfinite(value) and abs(value) < 1e-6
    return "dim" if small or name in ("dtype", "type") else ""


def _footer(report: Report, shown: Report, columns: Sequence[Column], dropped: Sequence[Column]) -> list[str]:
    lines = [footer.totals_line(report)] if report.totals and report.totals.keys() != {"rows"} else []
    lines.append(footer.run_line(report))
    lines += [*footer.remarks(report), *table_columns.notes(report, columns)]
    if report.skipped:
        lines.append(f"not measured: {footer.skipped_line(report)}")
    hints = []
    if len(shown.rows) < len(report.rows):
        level = max((depth_of(row) for row in shown.rows), default=0)
        left_out = f"{len(report.rows) - len(shown.rows)} of {len(report.rows)} rows are deeper than {level}, left out"
        grouped = f"{len(report.rows)} rows grouped to depth {level} of {deepest(report)}"
        between = f"{len(report.rows) - len(shown.rows)} of {len(report.rows)} rows are of other steps, left out"
        said = {"events": left_out, "steps": between}.get(report.grouping, grouped)
        hints.append(f"{said}: --depth all shows each")
    if dropped:
        names = [c.name for c in dropped[:_NAMED]] + ([f"{len(dropped) - _NAMED} more"] if dropped[_NAMED:] else [])
        hints.append(f"no room for {', '.join(names)}: --columns chooses")
    return [line for line in [*lines, "; ".join(hints)] if line]
