"""The work of torch.compile on a model or a program: its graphs, their breaks, recompilations, and the time it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from hookcli.table.formatting import clock, counted


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A line at which torch.compile ends a graph, runs the line in Python, and begins another graph.

    `place` is the innermost line of the user's own code ("net.py:31") and `code` its text; `inner` is the line of a
    library that it leads to, "" if there is none. `reason` and `advice` are for people.
    """

    place: str
    code: str
    reason: str
    advice: str = ""
    inner: str = ""

    def __str__(self) -> str:
        at = f"{self.place} `{self.code}`: " if self.place else ""
        return f"{at}{self.reason}{f', in {self.inner}' if self.inner else ''}"


@dataclass(frozen=True, slots=True)
class Recompiled:
    """A function that was compiled again, and the guards that failed, each once.

    `times` counts recompilations of all its parts between graph breaks, `most` the recompilations of one part. `sizes`:
    all guards are on sizes of tensors, and torch.compile replaces such a size by a symbol when it compiles again.
    """

    place: str
    function: str
    times: int
    most: int
    guards: Sequence[str]
    sizes: bool = False

    def __str__(self) -> str:
        return f"{self.place} {self.function}: {self.why}".lstrip()

    @property
    def why(self) -> str:
        """The first guard that failed, and the number of others."""
        others = len(self.guards) - 1
        return self.guards[0] + (f" (and {counted(others, 'other guard')})" if others else "")


@dataclass(frozen=True, slots=True)
class LeftEager:
    """A function that runs without torch.compile; `limit`: it was compiled too often, and is not compiled again."""

    place: str
    function: str
    reason: str
    limit: bool = False

    def __str__(self) -> str:
        return f"{self.place} {self.function}: {self.reason}".lstrip()


@dataclass(frozen=True, slots=True)
class Compilation:
    """The compilations of a run, in order. `complete` is False if there were more than PyTorch keeps notes of.

    Of a model that hookcli has run itself: the `backend` or mode that it was compiled with ("": the model's own), the
    sizes of the `batches`, and `untried`, why there were no others.
    """

    graphs: int = 0
    seconds: float = 0.0
    breaks: Sequence[GraphBreak] = ()
    recompiled: Sequence[Recompiled] = ()
    eager: Sequence[LeftEager] = ()
    complete: bool = True
    untried: str = ""
    backend: str = ""
    batches: Sequence[int] = ()

    @property
    def remark(self) -> str:
        """torch.compile (inductor): 3 graphs, 4.1 s of compilation, on batches of 2, 3 and 4"""
        sizes = " and ".join(filter(None, [", ".join(map(str, self.batches[:-1])), *map(str, self.batches[-1:])]))
        on = f", on {'batches' if self.batches[1:] else 'a batch'} of {sizes}" if self.batches else ""
        how = self.backend or "as the model is compiled"
        graphs = counted(self.graphs, "graph")  # another word
        return f"torch.compile ({how}): {graphs}, {clock(self.seconds)} of compilation{on}"

    @property
    def recompilations(self) -> int:
        return sum(one.times for one in self.recompiled)

    def line(self, of: float, places: bool = True) -> str:
        """3 graphs, 1 graph break (train.py:31 `print(x)`: ...), 2 recompilations (...), 14 s of compilation, 31% of
        the run; without the `places`, counts alone. `of` is the time of the run in seconds.
        """
        limit = [one for one in self.eager if one.limit]
        left = [one for one in self.eager if not one.limit]
        parts = [counted(self.graphs, "graph")]  # another word
        for items, number, what in (
            (self.breaks, len(self.breaks), "graph break"),
            (self.recompiled, self.recompilations, "recompilation"),
            (limit, len(limit), "recompile limit hit"),
            (left, len(left), "function left eager"),
        ):
            more = f"; and {len(items) - _NAMED} more" if items[_NAMED:] else ""
            named = f" ({'; '.join(map(str, items[:_NAMED]))}{more})" if places else ""
            parts += [counted(number, what, _SEVERAL.get(what, "")) + named] if items else []
        share = f", {self.seconds / of:.0%} of the run" if of else ""
        least = "" if self.complete else "at least "
        return f"{least}{', '.join(parts)}, {clock(self.seconds)} of compilation{share}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; keys of later versions are left out."""
        values = _known(cls, data)
        for name, kind in zip(("breaks", "recompiled", "eager"), PARTS, strict=True):
            if name in values:
                values[name] = tuple(kind(**_known(kind, item)) for item in values[name])
        return cls(**values)


_SEVERAL = {"function left eager": "functions left eager", "recompile limit hit": "recompile limits hit"}
_NAMED = 2  # places that a line names


def _known(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in data.items() if name in names}


PARTS = (GraphBreak, Recompiled, LeftEager)
