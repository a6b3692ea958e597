"""Options that capabilities add to `check` and `report`, for their own checks."""

from __future__ import annotations

from dataclasses import dataclass, fields, make_dataclass
from typing import TYPE_CHECKING

from hookcli.registry.capability import capabilities, load_text

if TYPE_CHECKING:

    @dataclass(frozen=True)
    class AddedOptions:
        """The options of all capabilities."""

else:
    AddedOptions = make_dataclass(
        "AddedOptions",
        [],
        bases=tuple(load_text(one.check_options) for one in capabilities() if one.check_options),
        namespace={"__module__": __name__},
        frozen=True,
    )
ADDED = tuple(fields(AddedOptions))
ADDED_NAMES = tuple(one.name for one in ADDED)
BUDGETS = tuple(name for name in ADDED_NAMES if name.startswith("max_"))
"""Options that set the limit of the check of their name."""
