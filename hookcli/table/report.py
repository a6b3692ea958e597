"""The report of a run: plain, frozen numbers without tensors or torch, which can be saved as strict JSON.

A `Report` is all that reporters, checks and diffs ever see, so each of them works on a saved file as on a fresh run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self, overload

from hookcli.system.escaping import visible
from hookcli.table import columns
from hookcli.table.column import TEXT_KINDS, Column
from hookcli.table.columns import layouts
from hookcli.table.meta import Meta
from hookcli.table.printed import PrintedTable, data_frame
from hookcli.table.row import Row, row_of
from hookcli.table.stats import HIST_KEYS, STATS_KEYS
from hookcli.table.strict_json import relaxed, strict
from hookcli.table.tree import Tree

SCHEMA = 1
SEVERITIES = ("error", "warning")  # of findings that can make a check fail, the worst first
INFO = "info"  # of those that never do


class Reason(StrEnum):
    """Reasons why something was not measured that code must distinguish."""

    NEVER_CALLED = "never_called"
    """The module was not called during the run."""
    NOT_JUDGED = "not_judged"
    """The check did not run, or its measurements are missing."""
    TIED = "tied"
    """The parameter is the same tensor as another one, which was measured."""
    SUMMED = "summed"
    """Ranks hold summands of the parameter's gradient, from which its norm can't be computed."""
    NO_GRADIENT = "no_gradient"
    """The parameter requires a gradient, and backward did not reach it."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that was not measured, and why. An absent row is never mistaken for a zero.

    `reason` is for people, `kind` for code. `path` names one of several tensors, as in a row.
    """

    fqn: str
    reason: str
    path: str = ""
    kind: Reason = Reason.OTHER

    def to_dict(self) -> dict[str, str]:
        """The JSON object, without a path or a kind that says nothing."""
        path = {"path": self.path} if self.path else {}
        kind = {"kind": str(self.kind)} if self.kind != Reason.OTHER else {}
        return {"fqn": self.fqn, "reason": self.reason, **path, **kind}

    @classmethod
    def from_dict(cls, data: Mapping[str, str]) -> Skipped:
        """The inverse of `to_dict`."""
        return cls(data["fqn"], data["reason"], data.get("path", ""), Reason(data.get("kind", Reason.OTHER)))


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault that a check found: the check's id, the severity, the place, the figure and the threshold that it
    crossed.

    `hint` names the usual cause and what to try, `remedy` only what to try, `cause` the finding that this one follows
    from ("HK010 relu"). `file` and `line` are where the model's own code for this place begins, if known.
    """

    check: str
    severity: str
    fqn: str
    message: str
    value: float | None = None
    threshold: float | None = None
    hint: str = ""
    file: str | None = None
    line: int | None = None
    remedy: str = ""
    cause: str = ""

    @property
    def name(self) -> str:
        """The finding in a word or two, for others that follow from it: HK010 relu."""
        return f"{self.check} {self.fqn}".rstrip()

    def fails(self, severity: str) -> bool:
        """True if the finding is at least as bad as this severity (--fail-on)."""
        return self.severity in SEVERITIES[: SEVERITIES.index(severity) + 1]


@dataclass(frozen=True)
class Report:
    """One probe's view of one run."""

    probe: str
    model: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    meta: Meta = field(default_factory=Meta)
    totals: Mapping[str, Any] = field(default_factory=dict)
    skipped: Sequence[Skipped] = ()
    findings: Sequence[Finding] = ()
    grouping: str = "nested"
    """Meaning of a container's row: "nested" includes its parts; "disjoint" is the container alone; "events": rows are
    events in order, not places; "moments": rows are moments of a timeline; "steps": rows repeat from step to step;
    "list": every row is shown at any depth."""
    statistics: Collection[str] = STATS_KEYS
    """The statistics that its rows have, if they have any. A report that an older hookcli saved may lack some; they
    have no value in its rows, and are absent wherever it is written."""
    tree: Tree = field(default_factory=Tree, repr=False, compare=False)
    """The places of its rows. A report that is made from another one, by `replace`, has the same tree."""

    def __post_init__(self) -> None:
        """Give each column the rules that its name and unit suggest, and the tree the containers of this run."""
        containers = self.meta.get("containers", ())
        if not isinstance(containers, (list, tuple)) or not all(isinstance(one, str) for one in containers):
            containers = ()  # a file's, which its validation refuses
        if self.tree.containers != {*containers}:
            object.__setattr__(self, "tree", Tree(containers))
        resolved = [*map(columns.resolved, self.columns)]
        if any(new is not old for new, old in zip(resolved, self.columns, strict=True)):
            object.__setattr__(self, "columns", tuple(resolved))

    def row(self, fqn: str, **values: Any) -> Row:
        """The row of a layer, parameter or operator; `values` choose one of several: `report.row("relu", call=1)`.

        "" is the model itself. Raises UnknownRowError, a KeyError, with the nearest names, or with what to choose from.
        """
        return row_of(self.rows, fqn, values, {item.fqn: item.reason for item in self.skipped})

    @overload
    def __getitem__(self, key: str) -> Row: ...
    @overload
    def __getitem__(self, key: int) -> Self: ...
    def __getitem__(self, key: str | int) -> Row | Self:
        """`report["layer1.0"]` is `report.row("layer1.0")`; see `__iter__` for numbers."""
        return self.row(key) if isinstance(key, str) else [self][key]

    def __iter__(self) -> Iterator[Self]:
        """The report alone, so that `(report,) = capture(...)` and `capture(...)[0]` work with one probe, too."""
        yield self

    def __contains__(self, fqn: str) -> bool:
        """True if there is a row of this name."""
        return any(row.fqn == fqn for row in self.rows)

    def column(self, name: str) -> Column:
        """The column of this name: the report's, or what hookcli knows of a key of its rows."""
        return next((column for column in self.columns if column.name == name), None) or columns.declared(name)

    def has_column(self, name: str) -> bool:
        """True if it has a column of this name."""
        return any(column.name == name for column in self.columns)

    def known_columns(self) -> Iterable[Column]:
        """Every column that its rows may have: those that hookcli declares, and its own of the same or other names."""
        return (columns.DECLARED | {column.name: column for column in self.columns}).values()

    def flat(self, row: Row) -> dict[str, Any]:
        """All values of a row of this report in one mapping, as machine formats write them."""
        values = row.flat()
        lacking = () if self.statistics is STATS_KEYS else (key for key in STATS_KEYS if key not in self.statistics)
        for key in lacking:
            values.pop(key, None)
        return values

    def __repr__(self) -> str:
        """One line: the probe, the model, and how much the report holds."""
        counts = [(len(self.rows), "row"), (len(self.findings), "finding"), (len(self.skipped), "item")]
        contents = [f"{number:,} {what}{'s' * (number != 1)}" for number, what in counts if number or what == "row"]
        text = f"<Report {self.probe} of {self.model}: {', '.join(contents)}"
        return visible(text) + (" not measured>" if self.skipped else ">")

    def __str__(self) -> str:
        """The table of the command line: as wide as the terminal, or as it needs where stdout is none."""
        return str(self.table())

    def _repr_html_(self) -> str:
        """The table as a page in a frame, which notebooks show."""
        return self.table()._repr_html_()

    def table(
        self, *, depth: int | str | None = None, columns: str | Sequence[str] = (), sort: str | None = None
    ) -> PrintedTable:
        """Return the table to print, or to show in a notebook: `print(report.table(depth=2, columns=["fqn", "macs"]))`.

        `depth` is a number from 1 or "all", None for as much as fits a screen. `columns` are names or headings, of
        which `sort` may be one; `-macs` puts the largest first. Raises UsageError for others.
        """
        return PrintedTable(self, depth=depth, columns=columns, sort=sort)

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with every row, in the report's columns and then those that only some rows have.

        Shapes and lists are tuples. Integers and flags with missing values have pandas' nullable dtypes. Raises
        ImportError if pandas is not installed.
        """
        return data_frame([column.name for column in self.columns], [self.flat(row) for row in self.rows])

    def to_dict(self) -> dict[str, Any]:
        """The report as a JSON object; floats stay floats."""
        return {
            "probe": self.probe,
            "model": self.model,
            "meta": dict(self.meta),
            "columns": [columns.to_dict(column) for column in self.columns],
            "rows": [self.flat(row) for row in self.rows],
            "totals": dict(self.totals),
            "skipped": [item.to_dict() for item in self.skipped],
            "findings": [asdict(item) for item in self.findings],
            **({"grouping": self.grouping} if self.grouping != "nested" else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """The inverse of `to_dict`, also of what `strict` made of it."""
        probe, model = data["probe"], data["model"]
        layout = [columns.from_dict(column) for column in data["columns"]]
        rows = relaxed(data["rows"], columns.TEXTS.union(column.name for column in layout if column.kind in TEXT_KINDS))
        statistics = _statistics(data["columns"], rows)
        return cls(
            probe=probe,
            model=model,
            columns=layouts.restored(probe, layout),
            rows=tuple(Row.from_flat(row, statistics) for row in rows),
            meta=relaxed(data["meta"]),
            totals=relaxed(data["totals"]),
            skipped=tuple(Skipped.from_dict(item) for item in data["skipped"]),
            findings=tuple(Finding(**relaxed(item, columns.TEXTS)) for item in data["findings"]),
            grouping=data.get("grouping", "nested"),
            statistics=statistics,
        )


def _statistics(columns: Iterable[Mapping[str, Any]], rows: Iterable[Mapping[str, Any]]) -> Collection[str]:
    """The statistics that a report's columns or rows name."""
    named = {column["name"] for column in columns}
    if named.issuperset(STATS_KEYS):
        return STATS_KEYS
    named = named.union(*rows)
    return tuple(key for key in STATS_KEYS if key in named)


def document(reports: Iterable[Report], error: Mapping[str, object] | None = None) -> dict[str, Any]:
    """The one JSON document that holds the reports of a run, and the error that ended it, if one did."""
    documents = []
    for report in reports:
        written: dict[str, Any] = strict(report.to_dict())
        computed = [column.name for column in report.columns if column.name in HIST_KEYS]  # from histograms
        for row, values in zip(report.rows, written["rows"], strict=True):
            if "hist" in values:
                values |= {name: strict(row.get(name)) for name in computed}
        documents.append(written)
    return {"schema": SCHEMA, **({"error": error} if error else {}), "reports": documents}
