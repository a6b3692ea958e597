"""A Parquet file: one table with a row per row of every report, for pandas, Polars, DuckDB and others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

from hookcli.reporters import flat_table
from hookcli.reporters.base import Exporter, require
from hookcli.reporters.series import about, encodable
from hookcli.table import Column, Report, document, strict
from hookcli.table.columns import declared
from hookcli.table.grouping import View
from hookcli.table.validation import value_type

_WHICH = ("model", "probe")


class ParquetReporter(Exporter):
    """A tidy table with the columns `model` and `probe` first, raw numbers, and NaN and infinities as they are.

    A column that holds whole numbers is int64, or float64 if it holds others too; shapes are text (1x3x224x224), and a
    value that a row lacks is null. The schema's metadata has under "hookcli" the JSON document without
    rows (of a record, the first report of each model, phase and probe), and each field's `title` and `unit`.
    """

    suffixes = (".parquet",)

    def __init__(self) -> None:
        require("parquet", "pyarrow.parquet")

    def export(self, reports: Iterable[Report], view: View, path: Path) -> None:
        """Write the file, which holds the reports in memory as columns of numbers until the end."""
        arrow: Any = import_module("pyarrow")
        parts, columns, heads = [], dict[str, Column](), dict[tuple[object, ...], Report]()
        for report in reports:
            head = (report.model, report.probe, report.meta.get("phase"))
            heads[head] = heads.get(head) or replace(report, rows=(), meta=about(report))
            columns |= {column.name: column for column in report.columns if column.name not in columns}
            if report.rows:
                parts.append(_table(arrow, report, view))
        which = [name for name in _WHICH if name not in columns]
        others = (name for part in parts for name in part.column_names if name not in _WHICH)
        names = [*which, *flat_table.names(columns, others)]
        table = _joined(arrow, parts, names, columns)
        fields = []
        for field in table.schema:
            if column := columns.get(field.name):
                unit = {"unit": column.unit} if column.unit else {}
                fields.append(field.with_metadata({"title": encodable(column.title)} | unit))
            else:
                fields.append(field)
        schema = arrow.schema(fields, {"hookcli": json.dumps(document(heads.values()))})
        import_module("pyarrow.parquet").write_table(table.cast(schema), path, compression="zstd")


def _table(arrow: Any, report: Report, view: View) -> Any:
    rows = [flat_table.cells(row, report, view) for row in report.rows]
    names = dict.fromkeys(chain.from_iterable(rows))
    which = {name: [getattr(report, name)] * len(rows) for name in _WHICH if name not in names}
    columns = which | {name: [flat_table.single(name, row.get(name)) for row in rows] for name in names}
    arrays = {}
    for name, values in columns.items():
        kinds = {type(value) for value in values} - {type(None)}
        if kinds <= {bool} or kinds <= {int}:
            array = arrow.array(values)
        elif kinds <= {int, float}:
            array = arrow.array([None if value is None else float(value) for value in values], arrow.float64())
        else:  # one of words and numbers is text
            words = [None if value is None else encodable(str(strict(value))) for value in values]
            array = arrow.array(words, arrow.string())
        arrays[encodable(name)] = array
    return arrow.table(arrays)


def _joined(arrow: Any, parts: list[Any], names: list[str], columns: Mapping[str, Column]) -> Any:
    """Return one table of these columns; one without values has the type that others have under its name."""
    types: dict[type | None, object] = {str: arrow.string(), float: arrow.float64(), int: arrow.int64()}
    fields = []
    for name in names:
        kinds = {part.schema.field(name).type for part in parts if name in part.column_names} - {arrow.null()}
        usual = types.get(value_type(columns.get(name) or declared(name)), arrow.null())
        mixed = arrow.float64() if kinds == {arrow.int64(), arrow.float64()} else arrow.string()
        fields.append(arrow.field(name, mixed if len(kinds) > 1 else next(iter(kinds), usual)))
    schema = arrow.schema(fields)
    whole = []
    for part in parts:
        known = {name: part.column(name) for name in part.column_names}
        own = [known[f.name].cast(f.type) if f.name in known else arrow.nulls(len(part), f.type) for f in schema]
        whole.append(arrow.table(own, schema=schema))
    return arrow.concat_tables(whole) if whole else schema.empty_table()
