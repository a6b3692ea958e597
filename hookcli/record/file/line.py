"""The base of a record's lines."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from hookcli.table import strict


@dataclass(frozen=True, slots=True)
class RecordLine:
    """A line of a record. `kind` tells in JSON which one it is."""

    kind: ClassVar[str]

    def to_dict(self, packed: str | None = None) -> dict[str, Any]:
        """The line as strict JSON; `packed` stands for its reports, if given."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        if "reports" in values:
            values["reports"] = [r.to_dict() for r in values["reports"]] if packed is None else packed
        return {"line": self.kind} | dict(strict(values))
