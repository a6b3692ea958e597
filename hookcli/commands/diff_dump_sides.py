"""A folder that --dump has written, as a side of `hookcli diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookcli.commands.diff_kinds import Asked, Side
from hookcli.commands.diff_verdict import compare_tensors
from hookcli.table.dump import is_dump

if TYPE_CHECKING:
    from hookcli.commands.diff_dumps import DumpRuns


class Dumps(Side):
    """Folders that --dump has written."""

    what = "dumps"
    place = 2

    def fits(self, text: str) -> bool:
        return is_dump(text)

    def why_no_model(self, text: str) -> str:
        """Name the command that takes one."""
        return "is a dump; hookcli diff compares it"

    def compare(self, asked: Asked) -> int:
        return compare_tensors(asked, dump_runs)


def dump_runs() -> type[DumpRuns]:
    """Import what compares dumps, and torch."""
    from hookcli.commands.diff_dumps import DumpRuns

    return DumpRuns
