"""Options that capabilities add to `check` and `report`, for their own checks."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, make_dataclass
from typing import TYPE_CHECKING

from hookcli.registry.pieces import pieces

CHECK_OPTIONS = [(one, kind) for one, kind in pieces("check_options", type) if is_dataclass(kind)]
"""The dataclasses of options, each with the capability that adds it."""
if TYPE_CHECKING:

    @dataclass(frozen=True)
    class AddedOptions:
        """The options of all capabilities."""

else:
    AddedOptions = make_dataclass(
        "AddedOptions",
        [],
        bases=tuple(kind for _, kind in CHECK_OPTIONS),
        namespace={"__module__": __name__},
        frozen=True,
    )
ADDED = tuple(fields(AddedOptions))
ADDED_NAMES = tuple(one.name for one in ADDED)
BUDGETS = tuple(name for name in ADDED_NAMES if name.startswith("max_"))
"""Options that set the limit of the check of their name."""
