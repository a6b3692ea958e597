"""Folds repeated blocks: rows of blocks.0 to blocks.11, if alike, become those of blocks.0-11. Free of torch."""

from __future__ import annotations

import math
import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from hookcli.table import Report, Row
from hookcli.table.marks import mark
from hookcli.table.names import operator_owner, prefixes

_INDEXED = re.compile(r"(|.*_)(\d+)")  # 0, or encoder_layer_0


def folded(report: Report) -> Report:
    """The report with the names of repeated blocks replaced, so that grouping merges their rows; itself without any.

    Blocks are repeated if they have consecutive numbers and are alike in types, shapes, costs and marks, with all their
    parts; rows beyond tolerance are like no other. Their rows keep their own name as `origin`.
    """
    names = [row.fqn for row in report.rows]
    containers = [str(name) for name in report.meta.get("containers", ())]
    deepest = max((len(_ends(name)) for name in names), default=0)
    numbers: dict[str, int] = {}
    alike = [column.name for column in report.known_columns() if column.alike]
    signatures = [numbers.setdefault(_signature(row, alike), len(numbers)) for row in report.rows]
    changed = False
    for level in range(deepest - 1, -1, -1):
        if new := dict(_renamings(names, signatures, level)):
            changed = True
            names, containers = _renamed(names, new, level), _renamed(containers, new, level)
    if not changed:
        return report
    rows = [
        row if name == row.fqn else row.having({"fqn": name, "origin": row.fqn})
        for row, name in zip(report.rows, names, strict=True)
    ]
    return replace(report, rows=rows, meta={**report.meta, "containers": list(dict.fromkeys(containers))})


def blocks(fqn: str, origin: str) -> int:
    """The number of modules that a folded fqn stands for: 24 for blocks.0-11.norms.0-1, of blocks.0.norms.0.

    The names at its levels that are as in `origin` stand for themselves, also where they look like ranges.
    """
    levels = zip(prefixes(fqn), prefixes(origin), strict=False)
    return math.prod(repeats(new) for new, old in levels if new.rpartition(".")[2] != old.rpartition(".")[2])


def repeats(fqn: str) -> int:
    """The number of blocks that the last name of an fqn stands for: 12 for blocks.0-11, otherwise 1."""
    match = re.fullmatch(r".*?(\d+)-(\d+)", fqn.rpartition(".")[2])
    return int(match[2]) - int(match[1]) + 1 if match else 1


def _signature(row: Row, alike: Iterable[str]) -> str:
    """All that rows of repeated blocks have in common; as text, since values need not be hashable or ordered."""
    faults = (mark(row), bool(row.get("handed_on")), row.fqn if row.get("beyond") else "")
    return repr([*(str(row.get(name)) for name in alike), *faults])


@dataclass(slots=True)
class _Block:
    """The rows of one block: the rest of each name and its signature's number, and their places in the report."""

    rows: list[tuple[str, int]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    def repeats(self, other: _Block, anywhere: bool) -> bool:
        """True if the other block is alike; unless it may be `anywhere`, also next to this one."""
        near = self.places[-1] + 1 == other.places[0] or other.places[-1] + 1 == self.places[0]
        return (anywhere or near) and sorted(self.rows) == sorted(other.rows)


def _renamings(names: Sequence[str], signatures: Sequence[int], level: int) -> Iterator[tuple[str, str]]:
    """Old and new names of blocks whose last name is at this level, counted from 0."""
    families: dict[tuple[str, str], dict[int, _Block]] = defaultdict(lambda: defaultdict(_Block))
    for place, (name, signature) in enumerate(zip(names, signatures, strict=True)):
        ends = _ends(name)
        if level >= len(ends):
            continue
        before = ends[level - 1] if level else 0
        # An operator's own name begins with a colon: add_1 and add_2 do not repeat each other.
        if match := _INDEXED.fullmatch(name[before : ends[level]].removeprefix(".")):
            block = families[name[:before], match[1]][int(match[2])]
            block.rows.append((name[ends[level] :], signature))
            block.places.append(place)
    for (owner, stem), blocks in families.items():
        start = f"{owner}.{stem}" if owner else stem
        for run in _runs(blocks, anywhere=not stem):  # ln_1 and ln_2 of one block do not repeat each other
            yield from ((f"{start}{number}", f"{start}{run[0]}-{run[-1]}") for number in run)


def _runs(blocks: dict[int, _Block], anywhere: bool) -> Iterator[list[int]]:
    """Runs of two or more consecutive numbers whose blocks are alike."""
    run: list[int] = []
    for number in sorted(blocks):
        if run and not (number == run[-1] + 1 and blocks[run[-1]].repeats(blocks[number], anywhere)):
            yield from [run] if run[1:] else []
            run = []
        run.append(number)
    yield from [run] if run[1:] else []


def _renamed(names: Sequence[str], new: Mapping[str, str], level: int) -> list[str]:
    """The names with their first parts, down to this level, replaced."""
    ends = (_ends(name) for name in names)
    split = ((name, name[: end[level]] if level < len(end) else name) for name, end in zip(names, ends, strict=True))
    return [new[old] + name[len(old) :] if old in new else name for name, old in split]


@lru_cache(maxsize=1 << 14)
def _ends(name: str) -> array[int]:
    """Where the names of the modules around a place end in its own, the outermost first, and its own end.

    The names themselves would take memory that grows with the cube of a chain's length.
    """
    owner = operator_owner(name)
    around = name if owner is None else owner
    ends = array("q", (match.start() for match in re.finditer(r"\.", around)))
    ends.extend(len(part) for part in dict.fromkeys((around, name)) if part)
    return ends


def times(row: Row) -> str:
    """How many a row stands for: modules or parameters of its name (6x), calls x2, or parts that are no modules (12).

    Rows of calls, which are shown as a tree, say it where blocks begin; other rows have no block above them.
    """
    merged, blocks, values = row.get("merged"), row.get("folded") or 1, row.values
    if not merged:
        return ""
    if "node" in values:
        return f" ({blocks}x)" if blocks > 1 else f" ({merged} nodes)"
    of_tensors = row.get("kind") in ("parameter", "weight") or ("bytes" in values and "call" not in values)
    if blocks > 1 and (of_tensors or repeats(row.fqn) > 1):
        return f" ({blocks}x)"
    if of_tensors:
        return "" if "param_bytes" in values else f" ({merged})"
    return f" x{values['repeated']}" if values.get("repeated") else ""
