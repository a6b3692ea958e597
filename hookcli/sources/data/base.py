"""The interface of real input."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hookcli.errors import UsageError
from hookcli.sources.base import Arguments, Recipe
from hookcli.table.meta import Meta

ITEMS = 16
"""Items in a batch that hookcli puts together, where the user gives no number."""


def wrong(option: str, message: str) -> UsageError:
    """The error for an option of real input."""
    return UsageError(f"--{option}: {message}", option=option)


@dataclass(frozen=True, slots=True)
class AllInput:
    """A batch whose items are all input, beside a known `target`, None without one.

    `spare`: keywords that the model does not take are left out. `typed`: the user gave the keywords, so none of them
    stands for an argument of another name.
    """

    arguments: Arguments
    spare: bool = False
    typed: bool = False
    target: object = None


@dataclass(frozen=True, slots=True)
class Batches:
    """The batches of an input: AllInput, or as a data loader gives them (a tensor, a tuple or list, keywords).

    `total` is their number, None if it is not known beforehand. `how` says, for `meta`, how they were made.
    """

    each: Iterable[object]
    total: int | None = None
    how: Meta = field(default_factory=Meta)


@dataclass(frozen=True, slots=True)
class Data:
    """Real input for a model.

    `typed` names it as the user did, such as "--image cats". `open` makes its batches for a recipe, anew at each
    call, of a number of items (None: the data's choice). `batches` is how many are run, None for all.
    """

    typed: str
    open: Callable[[Recipe, int | None], Batches]
    batches: int | None = 1
