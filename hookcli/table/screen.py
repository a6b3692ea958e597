"""Fits a report to the rows of a screen: deeper rows are grouped, and repeated blocks folded. Free of torch."""

from __future__ import annotations

import math
from dataclasses import replace

from hookcli.table import Merge, Report, Row
from hookcli.table.columns import find_column
from hookcli.table.folding import folded
from hookcli.table.grouping import View, apply_view, deepest, group_rows, has_names
from hookcli.table.marks import mark
from hookcli.table.stats import STATS_KEYS


def fitted(report: Report, lines: int) -> Report:
    """The report, grouped to at most `lines` rows where possible; repeated blocks are folded if more depth fits so.

    Operators of the modules shown come before deeper modules, if they fit.
    """
    if any(report.tree[row.fqn].is_operator for row in report.rows):
        whole = _fitted(report, lines, operators=True)
        if len(whole.rows) <= lines:
            return whole
    return _fitted(report, lines)


def _fitted(report: Report, lines: int, *, operators: bool = False) -> Report:
    depth = fitting_depth(report, lines, operators=operators)
    if math.isinf(depth) or report.grouping not in ("nested", "disjoint"):
        return group_rows(report, depth, operators=operators)
    blocks = folded(report)
    deeper = range(deepest(blocks), int(depth), -1) if blocks is not report else ()
    shallower = (group_rows(blocks, each, operators=operators) for each in deeper)
    fits = next((rows for rows in shallower if len(rows.rows) <= lines), None)
    if fits or len((unfolded := group_rows(report, depth, operators=operators)).rows) <= lines:
        return fits or unfolded
    return group_rows(blocks, depth, operators=operators)  # the fewest rows


def with_gaps(report: Report, lines: int) -> Report:
    """The report without rows of its middle, so that it fits: those with marks stay, then the first and the last.

    Where a column says that its lowest values stay, half of the rest is for these. One row stands in place of each
    stretch that is left out, with the number of its `rows_between`. A list without names of modules stays whole.
    """
    if not has_names(report):
        return report
    rows, stays = report.rows, {n for n, row in enumerate(report.rows) if mark(row)}
    ends = [n for pair in zip(range(len(rows)), reversed(range(len(rows))), strict=True) for n in pair]
    order = [*sorted(stays)[: lines // 2], *lowest(report)[: lines // 2], *ends]
    for number in range(lines, 0, -1):
        kept = sorted([*dict.fromkeys(order)][:number])
        after = [*kept[1:], len(rows)]
        gaps = [kept[0], *(then - n - 1 for n, then in zip(kept, after, strict=True))]
        if number + sum(map(bool, gaps)) <= lines:
            fits = [[_gap(gaps[0])], *([rows[n], _gap(gap)] for n, gap in zip(kept, gaps[1:], strict=True))]
            return replace(report, rows=[row for part in fits for row in part if row.get("rows_between") != 0])
    return report


def lowest(report: Report) -> list[int]:
    """The numbers of the rows with the lowest values in a column that keeps these, the lowest first."""
    name = next((column.name for column in report.known_columns() if column.lowest_stay), "")
    values = {number: row[name] for number, row in enumerate(report.rows) if row.get(name) is not None}
    return sorted(values, key=lambda number: values[number])


def _gap(number: int) -> Row:
    return Row({"fqn": f"… {number:,} more …", "rows_between": number})


def leading(report: Report, view: View, lines: int) -> Report:
    """The sorted report, cut to these rows if the view has a height; repeated blocks fold if their figures add up."""
    if len(report.rows) <= lines:
        return report
    column = find_column("--sort", view.sort.removeprefix("-"), report.columns) if view.sort else None
    if column and column.merge in (Merge.SUM, Merge.ONCE) and column.name not in STATS_KEYS:
        in_order = sorted(report.rows, key=lambda row: row.get("index") or 0)  # only neighbours are folded
        blocks = folded(replace(report, rows=in_order))
        groups = group_rows(blocks, deepest(blocks))
        marked = [row.having({"is_block": True}) if row.get("folded") else row for row in groups.rows]
        report = apply_view(replace(groups, rows=marked), replace(view, columns=()))
    return replace(report, rows=report.rows[:lines]) if view.height else report


def fitting_depth(report: Report, lines: int, *, operators: bool = False) -> float:
    """The greatest depth with at most `lines` rows, or the least that tells parts apart; math.inf if all fit."""
    if report.grouping == "steps":
        return 1
    details = any(column.detail for column in report.columns)
    if (len(report.rows) <= lines and not details) or not has_names(report):
        return math.inf
    deep, places = deepest(report), {report.tree[row.fqn] for row in report.rows}
    places = {place for place in places if place.level}
    # a lone child of the model has a row that would say nothing new
    branching = next((n for n in range(1, deep + 1) if len({place.at(n) for place in places}) > 1), 1)
    depths = range(deep, branching, -1)
    fits = (depth for depth in depths if len(group_rows(report, depth, operators=operators).rows) <= lines)
    return next(fits, branching)
