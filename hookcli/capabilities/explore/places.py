"""The reports of a model at one moment, joined by module, and the texts that a screen shows of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Group
from rich.table import Table
from rich.text import Text

from hookcli.registry.capability import capabilities
from hookcli.reporters.bars import curve
from hookcli.system.escaping import visible
from hookcli.table import SEVERITIES, Column, Finding, Reason, Report, Row, Shown, formatting
from hookcli.table.columns import DECLARED, IDENTITY, columns_named, names
from hookcli.table.columns.recorded import RECORDED
from hookcli.table.marks import faults, mark
from hookcli.table.merged_rows import merged
from hookcli.table.names import in_words, relative
from hookcli.table.tree import Node, Tree

_HEADS = {"shapes": "", "run": "", "inputs": "in", "activations": "act", "grads output": "grad"}
"""The words before the names of figures, as in a page's search, by probe and kind of gradients."""
_OF_PARAMETERS = {"parameters": "", "weights": "", "grads parameter": " grad"}  # another word
_DRAWN = [one.name for one in capabilities() if one.view]
_FURTHER = {"run": RECORDED}
_OWN = columns_named("fqn", "type", "calls", "source", fqn="Module")
_INNER = [c.name for c in DECLARED.values() if c.identity and c.shown == Shown.FILLED and not c.charted]  # head, expert
_ELSEWHERE = {*IDENTITY, *names(_OWN), "attributes", "forward"}
_TITLE, _FIGURE = 16, 13  # columns


@dataclass
class Subject:
    """A model: its reports at each of its `steps`, figures of a module over them, and lines with places in `steps`."""

    title: str
    reports: Callable[[int], Sequence[Report]]
    steps: Sequence[int] = (0,)
    losses: Mapping[int, float] = field(default_factory=dict)
    history: Callable[[str], Sequence[Report]] = lambda fqn: ()
    lines: Mapping[Finding, int | None] = field(default_factory=dict)


@dataclass(eq=False)
class Place:
    """A module, or an operator in it; "" is the model itself. Its `rows` are merged over calls, by their heads."""

    fqn: str
    type: str = ""
    rows: dict[str, Row] = field(default_factory=dict)
    parent: Place | None = None
    parts: list[Place] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    faulty: bool = False
    words: str = ""

    def chain(self) -> list[Place]:
        return [*(self.parent.chain() if self.parent else ()), self]


class Joined:
    """The reports of a model: `places` by name, `columns` by head, those that are `searched`, and `findings`."""

    def __init__(self, reports: Sequence[Report] = (), lines: Iterable[Finding] = ()) -> None:
        self.columns = {head: dict[str, Column]() for head in _HEADS.values()}
        self.searched = {*_HEADS.values(), *(report.probe for report in reports)} - {"settings"}
        self._tree, rows = Tree(), self._rows(reports)
        self.columns[""] |= {column.name: column for column in _OWN}
        self.places = {fqn: self._place(fqn, heads) for fqn, heads in rows.items()}
        for place in self.places.values():
            place.parent = self._nearest(self._tree[place.fqn].around())
            if place.parent:
                place.parent.parts.append(place)
        self.verdicts = [*dict.fromkeys(str(text) for one in reports if (text := one.totals.get("verdict")))]
        self.findings, self.ended = (
            [*lines, *_findings(reports, self._tree)],
            all(x.meta.get("complete", True) for x in reports),
        )
        for finding in reversed(self.findings):
            self.near(finding.fqn).remarks.insert(0, finding_text(finding))
            for place in self.near(finding.fqn).chain():
                place.faulty |= finding.severity in SEVERITIES
        for item in dict.fromkeys(item for report in reports for item in report.skipped):
            self.near(item.fqn).remarks.append(visible(f"not measured: {in_words(item.fqn)}: {item.reason}"))

    def near(self, fqn: str) -> Place:
        """The place of this name, else the nearest one around it."""
        return self._nearest(self._tree[fqn].chain()) or Place("")

    def _nearest(self, nodes: Iterable[Node]) -> Place | None:
        return next(filter(None, (self.places.get(node.fqn) for node in nodes)), None)

    def _rows(self, reports: Sequence[Report]) -> dict[str, dict[str, list[Row]]]:
        """The rows of reports by the name of their module, and by their head."""
        rows: dict[str, dict[str, list[Row]]] = {}
        aside = ("check", *_DRAWN) if reports[1:] else ("check",)
        for report in reports:
            if report.probe in aside:
                continue
            columns = {column.name: column for column in (*report.columns, *_FURTHER.get(report.probe, ()))}
            details = [column.name for column in columns.values() if column.detail]
            for row in sorted(report.rows, key=lambda x: (report.grouping == "list" and x.get("index")) or 0):
                fqn, heads = _where(report.probe, row, details)
                for head in heads:
                    self.columns.setdefault(head, {}).update(columns)
                    rows.setdefault(fqn, {}).setdefault(head, []).append(row)
        for item in (item for report in reports for item in report.skipped if item.kind == Reason.NEVER_CALLED):
            rows.setdefault(item.fqn, {}).setdefault("", [Row({"type": "never called"})])
        return rows

    def _place(self, fqn: str, heads: Mapping[str, Sequence[Row]]) -> Place:
        rows = {head: merged(own, self._tree[fqn], (), self.columns[head].values()) for head, own in heads.items()}
        source = next((row["source"] for head, row in rows.items() if head != "settings" and row.get("source")), None)
        first = rows.get("", Row({}))
        kind = visible(next((str(row["type"]) for row in (first, *rows.values()) if row.get("type")), ""))
        calls = len({row["call"] for row in heads.get("", ()) if "call" in row.values}) or None
        values = {**first.values, "fqn": fqn, "type": kind, "calls": calls, "source": source}
        return Place(fqn, kind, rows | {"": replace(first, values=values)})


def _where(probe: str, row: Row, details: Sequence[str]) -> tuple[str, list[str]]:
    """The module that a row is of, and the heads of its figures: with the number of a head or expert, and without."""
    key = f"{probe} {row.get('kind')}" if probe == "grads" else probe
    fqn = row.fqn.rpartition(".")[0] if key in _OF_PARAMETERS else row.fqn
    head = relative(row.fqn, fqn) + _OF_PARAMETERS[key] if fqn != row.fqn else _HEADS.get(key, key)
    inner = " ".join(f"{name} {row[name]}" for name in _INNER if row.get(name) is not None)
    alone = not inner or any(row.get(name) is not None for name in details)
    return fqn, [f"{head} {inner}".strip(), *([] if alone else [head])]


def finding_text(finding: Finding) -> str:
    """A finding on one line: HK010 warning relu: 52 of 64 units are dead."""
    where = f"{in_words(finding.fqn)}: " if finding.severity else ""  # the first lines on a run name their own
    return visible(" ".join(filter(None, (finding.check, finding.severity, f"{where}{finding.message}"))))


def _findings(reports: Sequence[Report], tree: Tree) -> list[Finding]:
    """Findings of checks, and faults of rows that no check reports; the worst first, and inner places before outer."""
    findings = [*{(one.check, one.fqn, one.message): one for report in reports for one in report.findings}.values()]
    known = {one.fqn for one in findings}
    marked = {one.fqn: one for report in reports for one in faults(report) if one and one.fqn not in known}
    findings += [Finding(one.check, one.severity, one.fqn, one.words) for one in marked.values()]
    outer = {(one.severity, name) for one in findings for name in (node.fqn for node in tree[one.fqn].around())}
    rank = {severity: number for number, severity in enumerate(SEVERITIES)}
    return sorted(findings, key=lambda one: (rank.get(one.severity, 9), (one.severity, one.fqn) in outer))


def headline(subject: Subject, joined: Joined, at: int, width: int) -> Text:
    """The verdict, and of a record the step, and the losses of all recorded steps with this one marked."""
    bad = [one for one in joined.findings if one.severity in SEVERITIES]
    ended = "" if joined.ended else "the run did not end; "
    number = f"{formatting.counted(len(bad), 'fault')} in {formatting.counted(len(joined.places), 'module')}"
    faults = [f"{ended}{number}", *map(finding_text, bad[:1])] if bad or ended or not joined.verdicts else []
    verdict = finding_text(joined.findings[0]) if subject.lines else "; ".join([*joined.verdicts, *faults])
    text = Text(visible(verdict) if joined.places else f"{ended}nothing was measured, or it can no longer be read")
    if subject.steps[1:]:
        loss = formatting.loss(subject.losses.get(subject.steps[at]))
        text.append(f"\nstep {subject.steps[at]:,} of {subject.steps[-1]:,}, loss {loss}\n")
        text.append(drawn := curve([subject.losses.get(each) for each in subject.steps], width))
        here = len(text) - len(drawn) + at * len(drawn) // len(subject.steps)
        text.stylize("reverse", here, here + 1)
    return text


def figures(place: Place, joined: Joined, histories: Sequence[Report], width: int) -> Group:
    """All that was measured of a place, with as many tensors side by side as fit; then its figures over steps."""
    parts: list[Text | Table] = [Text.assemble((visible(place.fqn) or "(model)", "bold"), " ", (place.type, "dim"))]
    parts += [Text(text, "dim" if text.startswith("not measured") else "red") for text in place.remarks]
    cells = {head: _cells(place.rows[head], known) for head, known in joined.columns.items() if head in place.rows}
    tensors = [head for head in cells if head and cells[head]]
    if histories:
        cells["over time"] = _curves(histories[-1], max(width - 2 * _TITLE - _FIGURE, 8))
    lines = {head: cells[head] for head in tensors if head.rpartition(" ")[2].isdigit()}
    titles = [*dict.fromkeys(title for line in lines.values() for title in line)]
    cells |= {title: {head: line.get(title, "") for head, line in lines.items()} for title in titles}
    number = max((width - _TITLE) // _FIGURE, 1)
    blocks = [[head for head in tensors if head not in lines], titles]
    rows = [block[n : n + number] for block in blocks for n in range(0, len(block), number)]
    parts += [_table(heads, cells) for heads in ([""], *rows, ["over time"])]
    if source := place.rows.get("", Row({})).get("source"):
        parts.append(Text(f"at {visible(source)}"))
    return Group(*parts)


def _table(heads: Sequence[str], cells: Mapping[str, Mapping[str, str]]) -> Table:
    """The figures under these heads side by side, a line for each name."""
    table = Table.grid("", *heads, padding=(0, 1, 0, 0))
    for name in dict.fromkeys(["", *(name for head in heads for name in cells.get(head, ()))]):
        row = [cells.get(head, {}).get(name, "") if name else visible(head) for head in heads if head in cells]
        table.add_row(name, *row, style="" if name else "bold")
    return table


def _cells(row: Row, columns: Mapping[str, Column]) -> dict[str, str]:
    """The figures of a row by their titles, without those that it lacks."""
    cells: dict[str, str] = {}
    for column in (column for name, column in columns.items() if name not in _ELSEWHERE):
        value, rare = row.get(column.name), column.shown in (Shown.SET, Shown.MARK)
        if isinstance(value, Mapping):
            cells |= {visible(name): visible(formatting.plain(item)) for name, item in value.items()}
        elif (column.charted or column.shown != Shown.ASKED) and not (rare and value in ("", 0, column.usual)):
            text = str(value) if isinstance(value, bool) else formatting.cell(row, column)
            cells[visible(column.title or column.name)] = visible(text)
    cells["Remark"] = visible(mark(row))
    return {name: text for name, text in cells.items() if text not in ("", "-")}


def _curves(report: Report, width: int) -> dict[str, str]:
    """The curve of each figure over the steps, and its last value, by its title."""
    rows = {column: [row.get(column.name) for row in report.rows] for column in report.columns if column.charted}
    last = {column: formatting.cell(report.rows[-1], column) for column, values in rows.items() if any(values)}
    return {visible(column.title): f"{curve(rows[column], width)} {last[column]}" for column in last}
