"""The forward flow of tensors in Graphviz's language."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hookcli.reporters.digraph import Digraph
from hookcli.reporters.framed import draw_framed
from hookcli.table import Report, Row, formatting
from hookcli.table.tree import Tree

_OF_FLOW = {"fontname": "Helvetica", "fontsize": "8", "fontcolor": "gray40", "color": "gray40", "arrowsize": "0.6"}
_LOOKS = {
    "function": {"style": "filled,rounded", "fillcolor": "lightblue", "color": "lightblue4", "height": "0.3"},
    "input": {"style": "dashed,rounded"},
    "output": {"style": "dashed,rounded"},
}
_FITTING = 40  # nodes of a flow, where no depth is asked for


@dataclass(slots=True)
class _Box:
    """A call, or all calls inside a module at the depth that is shown, as long as they follow each other."""

    name: str
    fqn: str
    is_call: bool
    rows: list[Row] = field(default_factory=list)


def draw(graph: Digraph, report: Report, depth: float | None) -> None:
    """Draw modules as boxes, functions between them, and shapes at the arrows.

    `depth` counts as in tables; None is the depth that fits about 40 boxes.
    """
    tree = report.tree
    # without functions whose result nothing uses
    used: set[int] = set()
    for row in reversed(report.rows):
        if row["kind"] != "function" or row["id"] in used:
            used.update((row["id"], *row["inputs"]))
    rows = [row for row in report.rows if row["id"] in used]
    if depth is None:
        deepest = max((tree[row.fqn].level for row in rows), default=1)
        depth = next((n for n in range(deepest + 1, 0, -1) if len(_boxes(rows, tree, n)) <= _FITTING), 1)
    boxes = _boxes(rows, tree, depth)
    graph.attr("edge", **_OF_FLOW)

    def frame_of(box: _Box, at: int) -> str | None:
        around, owner = tree[box.fqn].at(at - 1).fqn if at > 1 else "", tree[box.fqn].at(at).fqn
        is_function = box.is_call and box.rows[0]["kind"] == "function"
        return owner if owner != around and (owner != box.fqn or is_function) else None

    def draw_box(graph: Digraph, box: _Box, around: str) -> None:
        look = _LOOKS.get(box.rows[0]["kind"], {}) if box.is_call else {"penwidth": "2"}
        graph.node(box.name, "\n".join(_lines(box, around)), **look)

    draw_framed(graph, boxes, frame_of, draw_box)
    for (start, end), shapes in _arrows(boxes).items():
        graph.edge(start, end, label="\n".join(f" {shape}" for shape in shapes))


def _boxes(rows: Sequence[Row], tree: Tree, depth: float) -> list[_Box]:
    boxes: list[_Box] = []
    for row in rows:
        owner = row.fqn if math.isinf(depth) else tree[row.fqn].at(depth).fqn
        inside = owner != row.fqn or (row["kind"] == "function" and tree[owner].level >= depth)
        if not (inside and boxes and boxes[-1].fqn == owner and not boxes[-1].is_call):
            boxes.append(_Box(f"{'in' if inside else 'call'} {row['id']}", owner, not inside))
        boxes[-1].rows.append(row)
    return boxes


def _lines(box: _Box, around: str) -> Iterator[str]:
    first = box.rows[0]
    if not box.is_call:
        yield box.fqn.removeprefix(f"{around}.") or "(model)"
        yield formatting.counted(len(box.rows), "call")
        return
    if first["kind"] == "module":
        yield first.fqn.removeprefix(f"{around}.")
    yield first["type"]
    if shape := first["output_shape"]:
        yield formatting.shape(shape)


def _arrows(boxes: Sequence[_Box]) -> dict[tuple[str, str], list[str]]:
    """The arrows between boxes, each with the shapes that flow there."""
    of = {row["id"]: box.name for box in boxes for row in box.rows}
    arrows: dict[tuple[str, str], dict[str, None]] = {}
    for box in boxes:
        for row in box.rows:
            for start, shape in zip(row["inputs"], row["input_shape"] or (), strict=True):
                if start in of and of[start] != box.name:
                    arrows.setdefault((of[start], box.name), {})[formatting.shape(shape)] = None
    return {ends: list(shapes) for ends, shapes in arrows.items()}
