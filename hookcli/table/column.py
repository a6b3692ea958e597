"""`Column`: everything that is known of a column, for whoever merges, compares, folds, shows or saves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """The type of a column's values, which decides how they are validated (`validation`) and written (`formatting`)."""

    ANY = "any"
    """Text, a flag, a number, or a list of these; each is written as its type is."""
    TEXT = "text"
    NAMES = "names"
    """A list of names, written as the first and the last."""
    FLAG = "flag"
    """True or False, written as the column's name or nothing."""
    COUNT = "count"
    QUANTITY = "quantity"
    """A large count, written with an SI prefix."""
    ELEMENTS = "elements"
    """A count of the elements of a tensor, written as a share of `numel`."""
    FAULTS = "faults"
    """A count of elements that should not be there, written as a count, and as nothing if it is 0."""
    BYTES = "bytes"
    BYTES_CHANGE = "bytes_change"
    """A number of bytes with its sign."""
    FIGURE = "figure"
    """A float, written with four significant digits."""
    COSINE = "cosine"
    LOSS = "loss"
    """A float that may be NaN and says so."""
    SETTING = "setting"
    """A number that a person typed."""
    SETTINGS = "settings"
    """A list of such numbers."""
    JUDGED = "judged"
    """The figure or threshold of a check: a count or a float."""
    SHARE = "share"
    """A share of 1, written as a percentage."""
    SECONDS = "seconds"
    MICROSECONDS = "microseconds"
    SHAPE = "shape"
    """A shape, or the shapes of several arguments."""
    SHAPES = "shapes"
    """The shapes of several calls."""
    NUMBERS = "numbers"
    """A list of numbers of other rows."""
    SOURCE = "source"
    """A line of a program: its file and number."""
    MAPPING = "mapping"
    HISTOGRAM = "histogram"


TEXT_KINDS = (Kind.TEXT, Kind.NAMES, Kind.SOURCE)
"""The kinds whose values are texts, or lists of texts."""


class Merge(StrEnum):
    """The rule by which the values of several rows become one; None where it gives none."""

    SAME = "same"
    """The value that all rows share."""
    FIRST = "first"
    """The first row's value."""
    SUM = "sum"
    ONCE = "once"
    """The sum over modules, each counted once however often it was called."""
    NORM = "norm"
    """The L2 norm of the concatenation of tensors that have these norms."""
    LEAST = "least"
    MOST = "most"
    LISTED = "listed"
    """The first of several texts, how many rows it holds for, and how many more texts there are."""
    RATIO = "ratio"
    """The ratio of the merged `update` and `weight`."""
    WORST = "worst"
    """The value of the row that is furthest beyond its tolerance."""


class Shown(StrEnum):
    """When a table for people has the column. Machine formats have every column."""

    FILLED = "filled"
    """If any row has a value."""
    ALWAYS = "always"
    SET = "set"
    """If any row has a value other than None, "", 0 and the `usual` one."""
    VARIED = "varied"
    """If rows have different values."""
    ASKED = "asked"
    """If `--columns` names it."""
    PAGE = "page"
    """If `--columns` names it; on pages, which have room, if any row has a value."""
    BELOW = "below"
    """Never: its sentences stand below the table."""
    MARK = "mark"
    """Never: the mark of a row has it."""


class Bar(StrEnum):
    """The scale of the small bars beside a column's figures. Pages have ticks for figures that are not amounts."""

    NONE = ""
    LOG = "log"
    SHARE = "share"
    PAGE = "page"
    """On pages alone, where there is room."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: `name` is the key in each row, `title` the heading for people, `unit` what a number counts.

    A plugin's column needs no more than these, and gets the rules that its unit suggests; any field may be given:

    - `kind`: the type of its values; `required`: a row that has the column has a value (None is damage).
    - `merge`: the rule for several rows that become one (calls, batches, ranks, parts, folded blocks). `lowest_of`: a
      column; if the rows have it, the value comes from the row in which it is lowest, so that figures stay together.
    - `identity`: rows with another value are other places; only hookcli's own columns say so. `charted`: False for
      numbers that do not change from step to step, or say which row it is. `per_call`: one value for a call, however
      many tensors it returned.
    - `detail`: a table shows rows with a value here only at full depth, and else what they merge into.
    - `compared`: False if a difference between two runs says nothing of the model. `tolerance`: relative, in place of
      the run's own; `moves`: by how much the figure of n elements moves if these move by an rms of 1.
    - `shown`, `usual`, `bar`: how tables show it. `aside`: views of a page that show it only if asked to. `drop`: the
      order in which columns leave a narrow table, the lowest first; None stays. `pair`: columns with the same
      `pair` leave together. `left`: holds words, and aligns left.
    - `lowest_stay`: where a table leaves out rows, those with the lowest values here stay.
    - `alike`: repeated blocks are folded only if they agree in it.
    - `about`: what a statistic of a module measures: "output", "gradient", "parameters" or "time"; or a "distance" of
      two sides. `of_parts`: a container's value is merged from its parts. `full`: the title where nothing around it
      says what the figure is of.
    - `judged`: in a comparison it has the colour of the row's verdict.
    - `total`: what the sum over the model is called, below a table; `explanation`: a sentence on how to read it.
    """

    name: str
    title: str
    unit: str | None = None
    kind: Kind = Kind.ANY
    required: bool = False
    merge: Merge = Merge.SAME
    identity: bool = False
    detail: bool = False
    charted: bool = True
    per_call: bool = False
    compared: bool = True
    tolerance: float | None = None
    moves: Callable[[int], float] | None = None
    shown: Shown = Shown.FILLED
    usual: Any = None
    bar: Bar = Bar.NONE
    drop: int | None = None
    pair: str = ""
    left: bool = False
    alike: bool = False
    aside: tuple[str, ...] = ()
    about: str = ""
    of_parts: bool = False
    full: str = ""
    judged: bool = False
    total: str = ""
    explanation: str = ""
    lowest_of: str = ""
    lowest_stay: bool = False

    def to_dict(self) -> dict[str, str | None]:
        """The name, the title and the unit, as JSON has them; `asdict` copies deeply, in every step of a record."""
        return {"name": self.name, "title": self.title, "unit": self.unit}

    def rules(self, usual: Column) -> dict[str, Any]:
        """The other fields that differ from the `usual` column's, as JSON has them."""
        values = ((name, getattr(self, name)) for name in _RULES)
        return {name: value for name, value in values if value != getattr(usual, name)}

    def looks(self) -> dict[str, Any]:
        """The title, the unit, and the other fields that a page needs, where they are not as usual."""
        values = ((name, getattr(self, name)) for name in _LOOKS)
        return {"title": self.title, **{name: value for name, value in values if value != _PLAIN[name]}}

    @classmethod
    def rules_from(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that `rules` wrote. Raises ValueError for a kind or rule that there is not."""
        rules = {name: _TYPES[name](data[name]) if name in _TYPES else data[name] for name in data.keys() & {*_RULES}}
        return {name: tuple(value) if isinstance(value, list) else value for name, value in rules.items()}


_TYPES: Mapping[str, Callable[[Any], StrEnum]] = {"kind": Kind, "merge": Merge, "shown": Shown, "bar": Bar}
_RULES = tuple(f.name for f in fields(Column) if f.name not in ("name", "title", "unit", "identity", "moves"))
_LOOKS = (
    *("unit", "kind", "merge", "identity", "charted", "shown", "usual", "bar"),
    *("aside", "about", "of_parts", "full", "judged", "drop"),
)
_PLAIN = {field.name: field.default for field in fields(Column) if field.name in _LOOKS}
