"""The lines below a table: totals, notes, what was not measured, and what of the table is hidden."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len

from hookcli.registry.capability import capabilities
from hookcli.reporters import footer, table_columns
from hookcli.system.escaping import wrapped
from hookcli.table import Column, Report, formatting
from hookcli.table.columns import find_column
from hookcli.table.columns.comparison import COMPARISON
from hookcli.table.grouping import View, deepest

_NAMED = 10  # hidden columns that are named
_MOST = 2  # lines on a screen
_SHORTENED = (
    *("shapes", "inputs", "activations", "grads", "diff"),
    *(name for one in capabilities() if one.shortens for name in (one.name, *one.reports)),
)
"""Probes whose commands have --depth, which shows the lines in full."""
_COMPARED = {column.name for column in COMPARISON}
_ENDS = re.compile(r" · | \(|; ")  # of a part that says something by itself
_BREAKS = re.compile(r" \+ |, |: ")


@dataclass(frozen=True)
class Captions:
    """The lines below a table of the `shown` rows and the `kept` columns.

    `on_bars` are lines on bars. `remarks` on rows had no room below these, and are counted with the notes. `tight`:
    room is short, so that the lines of a record's step are shortened, too.
    """

    report: Report
    shown: Report
    columns: Sequence[Column]
    kept: Sequence[Column]
    on_bars: Sequence[str]
    view: View
    remarks: Sequence[str] = ()
    tight: bool = False

    @property
    def hidden(self) -> list[Column]:
        """The columns without room."""
        return [column for column in self.columns if column not in self.kept]

    def lines(self) -> list[str]:
        """The lines. On a screen they are two at most: the totals, and counts of all else, unless a depth is given."""
        report, view = self.report, self.view
        totals = footer.totals_below(report, sorts=bool(view.sort), python=view.python)
        notes = [*footer.remarks(report), *table_columns.notes(report, self.columns), *self._explained()]
        skipped = f"not measured: {footer.skipped_line(report, python=view.python)}" if report.skipped else ""
        parts = "; ".join(filter(None, (_grouped(report, self.shown, view), _hidden(self.hidden, view.python))))
        whole = [*filter(None, (*totals, *notes, skipped, parts, *self.on_bars))]
        shortened = report.probe in _SHORTENED or (self.tight and report.probe == "run")
        # Static pages have a height alone.
        if not (view.width and view.height) or view.depth is not None or not shortened:
            return whole
        if not self.remarks and _height(whole, view.width) <= _MOST:
            return whole
        return self._in_short(totals, notes, view.width)

    def _in_short(self, totals: Sequence[str], notes: Sequence[str], width: int) -> list[str]:
        """Two lines: always the parts of the peak; what grew is left out where the table is too narrow."""
        uncut = self.report.totals.get("held") or (not self.tight and self.report.totals.get("grew"))
        short = footer.short_totals(self.report, totals)
        first = _cut(short, width, str(uncut or ""))
        several = [text for text in totals if text.count("\n")]
        notes = [*notes, *(several or [short] * (first != short))]
        if not first and notes and cell_len(notes[0]) <= width:
            first, *notes = notes
        counts = self._counted(len(notes) + len(self.remarks))
        # The counts in a line that ends with the ways to see all; where it is too long, with fewer ways, then counts.
        depth, choose = (
            ('table(depth="all")', "table(columns=...)") if self.view.python else ("--depth all", "--columns")
        )
        for kept in range(len(counts), 0, -1):
            text = ", ".join(counts[:kept])
            columns = f", {choose}" if " column" in text else ""
            shows = f"{depth} shows all{columns}"
            for ending in (f"{shows}{' chooses' * bool(columns)}", shows, f"{depth}{columns}", depth):
                if _height([f"{text} ({ending})"], width) <= _MOST - bool(first):
                    return [*filter(None, (first, f"{text} ({ending})"))]
        return [*filter(None, (first, ", ".join(counts)))]

    def _counted(self, notes: int) -> list[str]:
        """Numbers of what the lines would say, the one that may be left out last."""
        report, shown = self.report, self.shown
        rows, number = len(report.rows), _rows_in(shown)
        some = f"{number} of {rows:,} rows at depth {_depth_of(shown)} of {deepest(report)}"
        if number < len(shown.rows):
            some = f"{number} of {rows:,} rows"
        if is_sequence(report) or report.grouping == "steps":
            some = f"{'the first ' * is_sequence(report)}{number} of {rows:,} rows"
        if any(row.get("folded") for row in shown.rows):
            some = f"{number} of {rows:,} rows, repeated blocks are one"
        counts = ((len(self.hidden), "column"), (notes, "note"))
        left_out = " and ".join(formatting.counted(count, what) for count, what in counts if count)
        return [
            *([rising(shown, self.view, rows, some)] if number < rows else []),
            *([f"{len(report.skipped):,} not measured"] if report.skipped else []),
            *([f"{left_out} hidden"] if left_out else []),
            *(text[:1].lower() + text[1:] for text in self.on_bars),
        ]

    def _explained(self) -> list[str]:
        """Sentences on columns; on the columns of a comparison if it has differences."""
        shown, compares = self.shown, self.shown.probe == "diff"
        asked = [c for c in self.columns if c.explanation and (compares or c.name not in _COMPARED)]
        filled = [c for c in asked if c not in self.hidden and any(row.get(c.name) for row in shown.rows)]
        sentences = [column.explanation for column in sorted(filled, key=lambda column: column.drop or 0)]
        return [" ".join(sentences)] if sentences else []


def rising(shown: Report, view: View, rows: int, otherwise: str) -> str:
    """The number of rows that are shown, and the option for the largest, if these have the smallest figures."""
    if view.sort is None or view.sort.startswith("-") or not view.height:
        return otherwise
    name = find_column("--sort", view.sort, shown.columns).name
    if not any(isinstance(row.get(name), int | float) for row in shown.rows):
        return otherwise
    flag = f"sort='-{name}'" if view.python else f"--sort -{name}"
    return f"the {len(shown.rows):,} smallest of {rows:,} rows; {flag}: the largest"


def _height(lines: Sequence[str], width: int | None) -> int:
    return sum(wrapped(line, width).count("\n") + 1 for line in lines)


def _cut(text: str, width: int | None, uncut: str = "") -> str:
    """The text, or as many of its parts as fit one line, but at least up to the end of `uncut`.

    "…" stands for the rest of a list whose first part alone is too long.
    """
    if width is None or cell_len(text) <= width:
        return text
    least = text.find(uncut) + len(uncut) if uncut in text else 0
    ends = [match.start() for match in _ENDS.finditer(text) if cell_len(text[: match.start()]) <= width]
    if least or ends:
        return text[: max([least, *ends])]
    breaks = [match.start() for match in _BREAKS.finditer(text) if cell_len(text[: match.start()]) + 2 <= width]
    return f"{text[: breaks[-1]]} …" if breaks else text


def is_sequence(report: Report) -> bool:
    """True for events and calls in order, of which a screen shows the first."""
    return report.grouping == "events" or report.has_column("inputs")


def _depth_of(shown: Report) -> int:
    """The depth of the table, without an operator that is shown since the first line names it."""
    return deepest(replace(shown, rows=[row for row in shown.rows if not row.get("named")]))


def _rows_in(shown: Report) -> int:
    """The number of rows, without those that stand for rows left out."""
    return sum(not row.get("rows_between") for row in shown.rows)


def _grouped(report: Report, shown: Report, view: View) -> str:
    """Say how many rows are grouped or hidden, and which option or argument shows all."""
    number = _rows_in(shown)
    rows, left_out = len(report.rows), len(report.rows) - number
    if not left_out:
        return ""
    if is_sequence(report) and view.height and view.depth is None:
        return f"the first {len(shown.rows)} of {rows:,} rows (--depth all shows all)"
    level, how = _depth_of(shown), 'table(depth="all")' if view.python else "--depth all"
    if number < len(shown.rows):
        return f"{number} of {rows:,} rows ({how} shows all)"
    blocks = [shown.tree[row.fqn] for row in shown.rows if row.get("folded")]
    if view.sort:
        folds = "repeated blocks added up; " * bool(blocks)
        some = rising(shown, view, rows, f"{len(shown.rows)} of {rows} rows")
        return f"{folds}{some} ({how} shows all)"
    if blocks:  # the depth at which the outermost have a row each
        depth = next((n for n in range(1, deepest(shown) + 1) for place in blocks if place.at(n).repeats > 1), 1)
        how = f"table(depth={depth})" if view.python else f"--depth {depth}"
        return (
            f"{len(shown.rows)} of {rows:,} rows; repeated blocks are one, with the figures of all ({how} shows each)"
        )
    text = {
        "events": f"{left_out} of {rows} rows hidden, deeper than {level}",
        "steps": f"{left_out} of {rows} rows hidden, of other steps",
    }.get(report.grouping, f"{len(shown.rows)} of {rows:,} rows, grouped at depth {level} of {deepest(report)}")
    return f"{text} ({how} shows all)"


def _hidden(columns: Sequence[Column], python: bool) -> str:
    """Name the columns that do not fit, and the option or argument that chooses columns."""
    if not columns:
        return ""
    names = [c.name for c in columns[:_NAMED]] + ([f"{len(columns) - _NAMED} more"] if columns[_NAMED:] else [])
    how = "table(columns=...)" if python else "--columns"
    return f"{formatting.counted(len(columns), 'column')} hidden ({', '.join(names)}); choose with {how}"
