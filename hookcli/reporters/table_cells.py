"""A report as text in the cells of a table, and the lines above and below it."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hookcli.diff.origin import origin_of
from hookcli.reporters import bars, footer, largest, table_columns
from hookcli.reporters.base import PIPE, SCREEN
from hookcli.reporters.captions import Captions, is_sequence
from hookcli.reporters.decimals import aligned
from hookcli.reporters.findings import Entry, entries, worst
from hookcli.system.escaping import wrapped
from hookcli.table import SEVERITIES, Column, Report, Row, formatting
from hookcli.table.grouping import View, for_people
from hookcli.table.marks import alarm
from hookcli.table.names import is_operator
from hookcli.table.screen import fitted, leading, with_gaps
from hookcli.table.tree import Node

_COUNTED = 6  # kinds of rows that a summary counts
_FOLDED = 24  # width to which a column of words is folded in a pipe
_AROUND = 10  # lines around the rows of a table: headings, totals, a prompt
_LEAST = 6  # rows shown on a screen that is too small for them
_INDENTED = 12  # levels that are indented: deeper ones would leave little room for figures
_TYPED = 2  # lines of a screen that are not the table's: the command and the next prompt


@dataclass(frozen=True, slots=True)
class Table:
    """A report as text in cells, with the lines above and below it."""

    rows: Sequence[Row]
    columns: Sequence[Column]
    """Columns that hold information and, if the width is limited, fit."""
    cells: Sequence[Sequence[str]]
    """A line per row, a cell per column."""
    widths: Sequence[int]
    left: Sequence[bool]
    """True if a column aligns left."""
    above: str
    below: Sequence[str]
    entries: Sequence[Entry] = ()
    """Findings, in place of rows and columns."""
    bars: Sequence[Sequence[str]] = ()
    """For each column a bar per row, all of one width; nothing for a column without bars."""
    alarm: str = ""
    """The severity of the faults that the first line above is on; "" if it is on none."""
    remarks: Sequence[str] = ()
    """For each row a remark that stands below it, or ""; nothing without any."""
    then: str = ""
    """The next command, which is written after the last table."""

    @property
    def width(self) -> int:
        """The width of the table if no cell is folded."""
        return sum(width + 2 for width in self.widths) - 2

    def lines(self, width: int | None) -> int:
        """The lines that the table takes on a screen of this width, with the command and the next prompt."""
        texts = (self.above, *self.below, *filter(None, (*self.remarks, self.then)))
        headings = [len(textwrap.wrap(c.title, max(w, 1))) for c, w in zip(self.columns, self.widths, strict=True)]
        around = max(headings, default=1) + 1 + _TYPED  # 1: the rule
        return sum(wrapped(text, width).count("\n") + 1 for text in texts) + len(self.cells) + around

    @property
    def least(self) -> int:
        """The width of the table with its words folded, but no figure."""
        folded = (min(w, _FOLDED) if left else w for w, left in zip(self.widths, self.left, strict=True))
        return sum(width + 2 for width in folded) - 2


def tabulated(report: Report, view: View) -> Table:
    """Lay out the report for the view."""
    report = for_people(report)
    if (findings := entries(report, view)) is not None:
        return of_findings(report, findings, view)
    shown, first = _shown(report, view, _AROUND), largest.first_lines(report, view)
    table = _laid_out(report, shown, view, first)
    if not view.height or view.depth is not None or table.lines(view.width) <= view.height:
        return table
    # The first line, which has the verdict, would leave the screen.
    if len(table.cells) > _LEAST:
        table = _laid_out(report, shown, view, first, tight=True)
    if (more := table.lines(view.width) - view.height) > 0:
        shown = _shown(report, view, _AROUND + more)
        table = _laid_out(report, shown, view, first, tight=True)
        more = table.lines(view.width) - view.height
    if more > 0 and report.grouping in ("nested", "disjoint"):
        table = _laid_out(report, with_gaps(shown, max(len(shown.rows) - more, _LEAST)), view, first, tight=True)
    return table


def of_findings(report: Report, findings: Sequence[Entry], view: View) -> Table:
    """Lay out a report of findings, below their number and the worst of several."""
    below = Captions(report, report, report.columns, report.columns, (), view).lines()
    faults = [one for one in findings if one.severity in SEVERITIES]
    if not faults:
        return Table((), (), (), (), (), "".join(below[:1]), [*below[1:], footer.run_line(report)], findings)
    above = worst(faults) if faults[1:] and view.above else ""
    severity = min((one.severity for one in faults), key=SEVERITIES.index)
    return Table((), (), (), (), (), above, [*below, footer.run_line(report)], findings, alarm=severity)


def _shown(report: Report, view: View, around: int) -> Report:
    """The report, grouped or cut to fit a screen with so many lines around its rows, unless a depth is given."""
    lines = max(view.height - around, _LEAST) if view.height else SCREEN
    if view.depth is not None:
        return report
    if view.sort:
        return leading(report, view, lines)
    fits = with_origin(report, fitted(report, lines))
    return replace(fits, rows=fits.rows[:lines]) if view.height and is_sequence(report) else fits


def with_origin(report: Report, shown: Report) -> Report:
    """The shown rows of a comparison, with the operator that its first line names below the module that called it."""
    origin = origin_of(report.rows) if report.probe == "diff" else None
    if origin is None or not is_operator(origin.fqn) or origin.fqn in shown:
        return shown
    around = [node.fqn for node in report.tree[origin.fqn].around() if node.fqn in shown]
    places = [number for number, row in enumerate(shown.rows) if row.fqn in around[:1]]
    after = places[-1] + 1 if places else len(shown.rows)
    named = [row.having({"named": True}) for row in report.rows if row.fqn == origin.fqn]
    return replace(shown, rows=[*shown.rows[:after], *named, *shown.rows[after:]])


def _summary(report: Report, shown: Report, view: View) -> str:
    """What a sequence that is longer than the screen consists of."""
    if not view.height or not is_sequence(report) or len(shown.rows) == len(report.rows):
        return ""
    key, what = ("kind", "event") if report.grouping == "events" else ("type", "call")
    counts = Counter(str(row.get(key)) for row in report.rows).most_common()
    more = f" and {len(counts) - _COUNTED} more kinds" if len(counts) > _COUNTED else ""
    parts = ", ".join(f"{number:,} {name}" for name, number in counts[:_COUNTED])
    return f"{formatting.counted(len(report.rows), what)}: {parts}{more}"


def _laid_out(report: Report, shown: Report, view: View, first: Sequence[str], *, tight: bool = False) -> Table:
    """The table of the rows that are `shown`, below the `first` lines; `tight`: with as few lines below as possible."""
    columns = table_columns.visible(shown, view)
    names = {column.name for column in report.columns}
    in_call_order = bool(names & {"call", "calls"}) and "kind" not in names and report.grouping == "nested"
    cells = _cells(shown, columns, tree=in_call_order and not view.sort)  # which reads as a tree
    columns = table_columns.paths_after_names(columns, cells, view)
    widths = table_columns.widths_of(columns, cells, view)
    room = view.width or PIPE
    columns, remarks, left_out = table_columns.with_remarks(shown, columns, cells, widths, room, tight=tight)
    kept = table_columns.kept(shown, columns, cells, widths, view)
    places = [columns.index(column) for column in kept]
    if not cells:
        kept, places = columns, []  # a sentence below says so
    drawn = bars.drawn(shown.rows, columns, places, widths, view)
    below = Captions(report, shown, columns, kept, drawn.remarks, view, left_out, tight).lines()
    places = list(drawn.bars)
    summary = _summary(report, shown, view)
    for i in drawn.alone:
        widths[columns[i].name] = 0
        columns[i] = replace(columns[i], title="")
    align_decimals(shown, columns, cells, widths, drawn, view)
    return Table(
        shown.rows,
        [columns[i] for i in places],
        [["" if i in drawn.alone else line[i] for i in places] for line in cells],
        [widths[columns[i].name] for i in places],
        [table_columns.reads_left(shown, columns[i]) for i in places],
        "\n".join(filter(None, (*first, summary, footer.run_line(report)))),
        below,
        bars=list(drawn.bars.values()),
        remarks=remarks,
        alarm=alarm(report),
        then=footer.next_line([report]),
    )


def align_decimals(
    shown: Report,
    columns: Sequence[Column],
    cells: Sequence[list[str]],
    widths: dict[str, int],
    drawn: bars.DrawnBars,
    view: View,
) -> None:
    """Align the figures in the columns that are shown, as far as the table has the width beside its bars."""
    spare = (view.width or PIPE) + 2 - drawn.width - sum(widths[columns[place].name] + 2 for place in drawn.bars)
    for place in drawn.bars:
        if place not in drawn.alone and not table_columns.reads_left(shown, columns[place]):
            name = columns[place].name
            texts = aligned([line[place] for line in cells], widths[name] + max(spare, 0))
            width = max([widths[name], *map(len, texts)])
            spare, widths[name] = spare - width + widths[name], width
            for line, text in zip(cells, texts, strict=True):
                line[place] = text


def _cells(report: Report, columns: Sequence[Column], *, tree: bool) -> list[list[str]]:
    levels: dict[Node, int] = {}
    lines = []
    for row, before in zip(report.rows, [None, *report.rows], strict=False):
        name = formatting.cell(row, "fqn")
        if tree:  # a branch below the nearest container that is shown; the model is not a branch
            place = report.tree[row.fqn]
            owner = next((node for node in place.around() if node in levels and node.owner), None)
            levels[place] = 0
            if owner:
                levels[place] = levels[owner] + 1
                name = name[len(owner.fqn) :].removeprefix(".")
            name = "  " * min(levels[place], _INDENTED) + name
        texts = [name if column.name == "fqn" else formatting.cell(row, column) for column in columns]
        if row.get("rows_between"):
            texts = [text if column.name == "fqn" else "" for column, text in zip(columns, texts, strict=True)]
        if table_columns.continues(row, before):
            texts = ["" if column.per_call else text for column, text in zip(columns, texts, strict=True)]
        lines.append(texts)
    return lines
