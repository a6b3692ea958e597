"""Folds repeated blocks: rows of blocks.0 to blocks.11, if alike, become rows of blocks.0-11. Free of torch."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from hookcli.table import Report, Row
from hookcli.table.marks import mark
from hookcli.table.tree import Node, Tree

_INDEXED = re.compile(r"(|.*_)(\d+)")  # 0, or encoder_layer_0


def folded(report: Report) -> Report:
    """The report with the names of repeated blocks replaced, so that grouping merges their rows; itself without any.

    Blocks are repeated if they have consecutive numbers, or evenly spaced ones with no row between (of gradients, the
    linear layers 0, 2, 4 of a sequence), and are alike in types, shapes, costs and marks, with all their parts; rows
    beyond tolerance are like no other. Their rows keep their own name as `origin`.
    """
    repeated = _repeated(report)
    if not repeated:
        return report
    report.tree.add(report.meta.get("containers", ()))  # also those without rows
    names: dict[Node, str] = {}
    for node in report.tree:  # each after the module around it
        owner = names[node.owner] if node.owner else ""
        dot = "." if owner and not node.is_operator else ""
        names[node] = f"{owner}{dot}{repeated[node].name if node in repeated else node.name}"
    containers = [*dict.fromkeys(names[report.tree[name]] for name in report.meta.get("containers", ()))]
    tree = Tree(containers)
    for node, run in repeated.items():
        tree[names[node]].repeats = run.blocks
    new = ((row, names[report.tree[row.fqn]]) for row in report.rows)
    rows = [row if name == row.fqn else row.having({"fqn": name, "origin": row.fqn}) for row, name in new]
    return replace(report, rows=rows, meta={**report.meta, "containers": containers}, tree=tree)


class _Block(NamedTuple):
    """All that is in a place: a number that places share if they are alike, and its first and its last row."""

    key: int
    first: int
    last: int

    def repeats(self, other: _Block, anywhere: bool) -> bool:
        """True if the other block is alike; unless it may be `anywhere`, also next to this one."""
        near = self.last + 1 == other.first or other.last + 1 == self.first
        return (anywhere or near) and self.key == other.key


class _Run(NamedTuple):
    """A number of blocks that are folded: the word before their numbers, and the first and the last number."""

    stem: str
    first: int
    last: int
    blocks: int

    @property
    def name(self) -> str:
        return f"{self.stem}{self.first}-{self.last}"


def _repeated(report: Report) -> dict[Node, _Run]:
    """The places that are folded, each with its run."""
    alike = [column.name for column in report.known_columns() if column.alike]
    held: dict[Node, list[tuple[str, int, int]]] = defaultdict(list)  # rows and parts, as text, with their ends
    for number, row in enumerate(report.rows):
        # All that rows of repeated blocks have in common; as text, since values need not be hashable or ordered.
        faults = (mark(row), bool(row.get("handed_on")), row.fqn if row.get("beyond") else "")
        signature = repr([*(str(row.get(name)) for name in alike), *faults])
        held[report.tree[row.fqn]].append((signature, number, number))
    keys: dict[object, int] = {}
    blocks: dict[Node, _Block] = {}
    repeated: dict[Node, _Run] = {}
    for node in reversed([*report.tree]):  # each before the module around it
        parts = [part for part in node.parts if part in blocks]
        repeated |= _runs(parts, blocks)
        for part in parts:
            key, first, last = blocks[part]
            held[node].append((f"{repeated.get(part, part.name)} {key}", first, last))
        if held[node]:
            signatures, firsts, lasts = zip(*held[node], strict=True)
            blocks[node] = _Block(keys.setdefault(tuple(sorted(signatures)), len(keys)), min(firsts), max(lasts))
    return repeated


def _runs(parts: Iterable[Node], blocks: Mapping[Node, _Block]) -> Iterator[tuple[Node, _Run]]:
    """The parts that lie in runs of two or more evenly spaced numbers, whose blocks are alike."""
    families: dict[str, dict[int, Node]] = defaultdict(dict)
    for part in parts:
        match = _INDEXED.fullmatch(part.name)
        if match and not part.is_operator:  # add_1 and add_2 do not repeat each other
            families[match[1]][int(match[2])] = part
    for stem, family in families.items():
        runs: list[list[int]] = []
        for number in sorted(family):
            before = runs[-1][-1] if runs else number
            step = runs[-1][1] - runs[-1][0] if runs and runs[-1][1:] else number - before
            # ln_1 and ln_2 of one block do not repeat each other
            alike = runs and blocks[family[before]].repeats(blocks[family[number]], anywhere=not stem)
            if alike and number - before == step:
                runs[-1].append(number)
            else:
                runs.append([number])
        for run in runs:
            if run[1:]:
                yield from ((family[number], _Run(stem, run[0], run[-1], len(run))) for number in run)


def times(row: Row) -> str:
    """How many a row stands for: modules or parameters of its name (6x), calls x2, or parts that are not modules (12).

    Rows of calls, which are shown as a tree, say it where blocks begin; other rows have no block above them.
    """
    merged, blocks, values = row.get("merged"), row.get("folded") or 1, row.values
    if not merged:
        return ""
    if "node" in values:
        return f" ({blocks}x)" if blocks > 1 else f" ({merged} nodes)"
    of_tensors = row.get("kind") in ("parameter", "weight") or ("bytes" in values and "call" not in values)
    if blocks > 1 and (of_tensors or row.get("is_block")):
        return f" ({blocks}x)"
    if of_tensors:
        return "" if "param_bytes" in values else f" ({merged})"
    return f" x{values['repeated']}" if values.get("repeated") else ""
