"""The first line of a report of figures without a verdict: what is largest, what is odd, or that nothing is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter

from hookcli.reporters import footer
from hookcli.system.escaping import wrapped
from hookcli.table import Report, Row, TensorStats
from hookcli.table.formatting import counted, number, ordinal
from hookcli.table.grouping import View, deepest
from hookcli.table.marks import MEANT
from hookcli.table.names import abbreviated, in_words

_COSTS = {"params": "parameters", "macs": "MACs"}
_MOST = 2  # lines that it takes
_SHORT = 32  # columns of a name where it would take more
_MANY = 0.9  # share of zeros that is said; of a ReLU's output, half is usual
_NOT_ALL = 0.999
_FLOATS = ("float", "bfloat", "complex")


def first_lines(report: Report, view: View) -> list[str]:
    """The lines above all else: the verdict and its cause, else what is largest; empty where nothing is to be said.

    It is said of the rows that the report has; a depth or a selection is named. A run that ended
    early, a list of rows, and rows of an older hookcli have none.
    """
    partial = report.meta.get("complete") is False or report.grouping == "list" or any(r.lacking for r in report.rows)
    if (lines := footer.headlines(report)) or partial or len(report.rows) < 2:
        return lines
    text = _SENTENCES[report.probe](report) if report.probe in _SENTENCES else ""
    if text and view.depth is not None and view.depth <= deepest(report):
        text = f"at depth {view.depth}: {text}"
    elif text and report.probe != "grads" and "" not in report:
        text = f"of these rows: {text}"
    return [fitting(text, report, view)] if text else []


def fitting(text: str, report: Report, view: View) -> str:
    """The text; with long names shortened where it would take more than two lines of the view."""
    if not view.width or wrapped(text, view.width).count("\n") < _MOST:
        return text
    for fqn in sorted({row.fqn for row in report.rows if len(row.fqn) > _SHORT}, key=len, reverse=True):
        text = text.replace(fqn, abbreviated([fqn], _SHORT)[0])
    return text


def costs(report: Report) -> str:
    """The modules with most parameters and most MACs, with their shares of the model's; "" if all have as much."""
    if any(row.get("rank") is not None for row in report.rows):
        return ""
    most: dict[tuple[str, str], list[str]] = {}
    for name, words in _COSTS.items():
        by_module = parts_of(report, name)
        largest, whole = max(by_module.values(), default=0), report.totals.get(name)
        having = [fqn for fqn, value in by_module.items() if value == largest]
        if not whole or not largest or len(by_module) < 2 or 1 < len(having) == sum(map(bool, by_module.values())):
            continue
        several, each = (f" and {len(having) - 1:,} more", " each") if having[1:] else ("", "")
        verb = "have" if several else "has"
        most.setdefault((f"{having[0]}{several}", verb), []).append(f"most {words} ({largest / whole:.1%}{each})")
    texts = [(named, verb, " and ".join(figures)) for (named, verb), figures in most.items()]
    first = [f"{named} {verb} {figures}" for named, verb, figures in texts[:1]]
    return ", ".join(first + [f"{named} {figures}" for named, _, figures in texts[1:]])


def parts_of(report: Report, name: str) -> Mapping[str, int]:
    """A cost of each module, by its name: of a container, "itself", what its parts do not have.

    A container has none if a module's cost is also counted elsewhere: a tied weight, or a module that another calls.
    """
    values: dict[str, int] = defaultdict(int)
    for row in report.rows:
        if isinstance(value := row.get(name), int) and not report.tree[row.fqn].is_operator:
            values[row.fqn] = max(value, values[row.fqn]) if name == "params" else value + values[row.fqn]
    inside: dict[str, int] = defaultdict(int)
    for fqn, value in values.items():
        owner = next((place.fqn for place in report.tree[fqn].around() if place.fqn in values), None)
        if owner is not None:
            inside[owner] += value
    parts = {in_words(fqn): value for fqn, value in values.items() if fqn not in inside}
    left = {f"{in_words(fqn)} itself": values[fqn] - value for fqn, value in inside.items()}
    return parts if any(value < 0 for value in left.values()) else parts | left


def measured(report: Report, *, floats: bool = False) -> list[tuple[Row, TensorStats]]:
    """The rows with statistics of at least one element, and these; of `floats` alone: complex numbers, too."""
    return [
        (row, row.stats)
        for row in report.rows
        if row.stats and row.stats.numel and not (floats and not str(row.get("dtype") or "float").startswith(_FLOATS))
    ]


def magnitudes(report: Report) -> str:
    """The largest magnitude of floats outside of masks, where it first is, and what is said of all rows."""
    every = [(row, stats) for row, stats in measured(report, floats=True) if stats.finite and stats.max >= stats.min]
    sizes = [(row, max(abs(stats.min), abs(stats.max))) for row, stats in every if not stats.filled]
    if len(sizes) < 2 or not any(size for _, size in sizes):
        return state(report)
    first, largest = highest(sizes, report)
    masks = " outside of masks" if len(sizes) < len(every) else ""
    return f"largest magnitude{masks} {number(largest)}, in {named(first)}{state(report, '; ')}"


def highest(figures: Sequence[tuple[Row, float]], report: Report) -> tuple[Row, float]:
    """The first row of the run with the highest of these figures, inside the modules that hand it on; and the figure.

    The rows of the report may be sorted.
    """
    most = max(figure for _, figure in figures)
    rows = sorted((row for row, figure in figures if figure == most), key=lambda row: row.get("index") or 0)
    outer = {place.fqn for row in rows for place in report.tree[row.fqn].around()}
    return next((row for row in rows if row.fqn not in outer), rows[0]), most


def norms(report: Report) -> str:
    """The smallest and the largest norm of a gradient, where they are, and what is said of all rows.

    They are of parameters, or of what else there is without any.
    """
    every = sorted(((stats.l2, row) for row, stats in measured(report) if stats.l2 > 0), key=itemgetter(0))
    every = [(l2, row) for l2, row in every if row.get("kind") == "parameter"] or every
    if len(every) < 2:
        return state(report)
    kinds = {"row" if row.get("merged", 1) > 1 else str(row.get("kind", "row")) for _, row in every}
    several = len({row.fqn for _, row in every}) if kinds == {"parameter"} else len(every)  # of ranks, once
    of = counted(several, kinds.pop() if len(kinds) == 1 else "row")
    (low, smallest), (high, largest) = every[0], every[-1]
    span = f"{number(low)} ({named(smallest)}) to {number(high)} ({named(largest)}), ratio {number(high / low)}"
    return f"gradient norms of {of}: {span}{state(report, '; ')}"


def state(report: Report, lead: str = "") -> str:
    """Say after `lead` which rows have values that are not finite, and which are zero; "" without rows."""
    rows = measured(report)
    lost = [(row, stats) for row, stats in rows if stats.nan + stats.inf]
    what = "infinite where meant" if all(is_meant(row, stats) for row, stats in lost) else "NaN or Inf"
    finite = f"{what} in {listed([row for row, _ in lost])}" if lost else "all finite"
    return lead + ", ".join(filter(None, (finite, of_zeros(report)))) if rows else ""


def of_zeros(report: Report) -> str:
    """Say which rows of floats are all zero, or which has most zeros if nearly all are; or that no row is all zero."""
    zeros = [(row, stats.zeros / stats.numel) for row, stats in measured(report, floats=True)]
    most = max((share for _, share in zeros), default=0.0)
    if most == 1:
        return f"all zero in {listed([row for row, share in zeros if share == most])}"
    if most > _MANY:
        return f"{min(most, _NOT_ALL):.1%} zero in {named(highest(zeros, report)[0])}"
    return "" if any(stats.zeros == stats.numel for _, stats in measured(report)) else "none all zero"


def is_meant(row: Row, stats: TensorStats) -> bool:
    """True for infinities that mask scores."""
    return not stats.nan and (row.get("scores") in MEANT or stats.masks)


def listed(rows: Sequence[Row]) -> str:
    """The first of these rows, and the number of others: relu and 2 more."""
    names = [*dict.fromkeys(map(named, rows))]
    return names[0] + (f" and {len(names) - 1:,} more" if names[1:] else "")


def named(row: Row) -> str:
    """A row's name in a sentence, with its path in the output, its call after the first, and its rank if it has one."""
    path, call, rank = (row.get(name) for name in ("path", "call", "rank"))
    parts = [
        f"{ordinal(call + 1)} call of" if call else "",
        in_words(row.fqn),
        path,
        "" if rank is None else f"on rank {rank}",
    ]
    return " ".join(filter(None, parts))


_SENTENCES: Mapping[str, Callable[[Report], str]] = {
    "shapes": costs,
    "activations": magnitudes,
    "inputs": magnitudes,
    "grads": norms,
}
