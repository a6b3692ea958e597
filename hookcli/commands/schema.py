"""The command `hookcli schema`."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Annotated

import typer

from hookcli import registry
from hookcli.commands import COMMANDS, MODULES
from hookcli.errors import UsageError, error_ids, unknown
from hookcli.system.stdout import require_stdout, write_report
from hookcli.table import Column
from hookcli.table.columns import resolved
from hookcli.table.json_schema import document_schema

EXAMPLES = ("hookcli schema", "hookcli schema activations")


def schema(
    command: Annotated[
        str | None, typer.Argument(metavar="[COMMAND]", help="A command: describe the columns of its rows alone.")
    ] = None,
) -> int:
    """Print the JSON Schema of what --format json writes.

    The schema (2020-12) has the type, title, unit (x-unit) and meaning of each column. Columns with x-identity tell
    which place a row is of. The object "error", which is there if a command could not run, has a stable id.
    """
    require_stdout()
    columns: list[Column] = []
    if module := MODULES.get(command or ""):
        columns += getattr(import_module(module), "COLUMNS", ())
        if not columns:
            raise UsageError(f"{command}: its columns depend on what it is given; `hookcli schema` describes all")
    elif command in (probes := registry.names("probes")):
        columns += map(resolved, registry.load("probes", command).columns)
    elif command:
        raise UsageError(unknown("command", command, {*COMMANDS, *probes}))
    write_report(json.dumps(document_schema(columns, error_ids()), indent=2, ensure_ascii=False) + "\n")
    return 0
