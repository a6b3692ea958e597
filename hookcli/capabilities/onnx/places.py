"""The place of each operator of a graph among modules, by the names that exporters write."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from typing import Any

from hookcli.capabilities.onnx.graph import CLASSES, SCOPES, captured, quoted, scope_of
from hookcli.table.names import around

_DEEPEST = 30  # modules within each other, each of which calls the next
_LONGEST = 200  # letters of a name
_BARRED = re.compile(r"[^\w\-]+")


def in_order(nodes: Iterable[Any], constants: Collection[str]) -> list[tuple[Any, Any]]:
    """The nodes in the order in which they run, each with the node that tells its scope if it does not itself.

    One that computes from constants alone, such as a weight that is dequantized, runs before the first that takes it.
    """
    waiting: dict[str, Any] = {}
    fixed = {*constants}
    ordered: list[tuple[Any, Any]] = []

    def release(names: Iterable[str], owner: Any) -> None:
        for name in names:
            if (node := waiting.pop(name, None)) is not None:
                release([*node.input], owner)
                ordered.append((node, owner))

    for node in nodes:
        names = [name for name in (*node.input, *captured(node)) if name]
        if names and fixed.issuperset(names) and len(node.output) == 1:
            fixed.add(node.output[0])
            waiting[node.output[0]] = node
            continue
        release(names, node)
        ordered.append((node, node))
    for name, node in [*waiting.items()]:
        release([name], node)
    return ordered


def places(nodes: Sequence[tuple[Any, Any]], constants: Collection[str], reserved: Container[str]) -> list[str]:
    """A name for the module of each node, distinct, after the scope that its name, metadata or weights tell.

    The nodes come as `in_order` has them. `reserved`: the attributes of modules, which no name may have.

    A node that is alone in its scope has the scope's name: `layer1.0.conv1`; of several each is a part of it:
    `layer1.0.conv1.Conv`.
    """
    scopes = [_scope(node, constants, reserved) or _scope(owner, constants, reserved) for node, owner in nodes]
    alone = Counter(scopes)
    around_others = {owner for scope in alone for owner in around(scope)}
    taken: dict[str, int] = dict.fromkeys([*around_others, *alone], 1)
    named = []
    for (node, _), scope in zip(nodes, scopes, strict=True):
        if scope and alone[scope] == 1 and scope not in around_others:
            named.append(scope)
            continue
        label = _plain(node.name.rpartition("/")[2], reserved) or node.op_type
        label = node.op_type if len(label) > _LONGEST else label
        name = f"{scope}.{label}" if scope else label
        number = taken.get(name, 0)
        while number and f"{name}_{number}" in taken:
            number += 1
        taken[name] = number + 1
        name = f"{name}_{number}" if number else name
        taken.setdefault(name, 1)
        named.append(name)
    return named


def _scope(node: Any, constants: Collection[str], reserved: Container[str]) -> str:
    """The module that a node belongs to; "" if nothing tells."""
    scope = scope_of(node, node.output[0] if node.output else "", ())
    if scope is None:
        path: list[str] = []
        for part in filter(None, node.name.split("/")[:-1]):
            within = path and part.startswith(f"{path[-1]}.")  # layer1/layer1.0
            path = [*path[:-1], part] if within else [*path, part]
            if len(path) > _DEEPEST:
                return ""
        weights = (name.rpartition(".")[0] for name in node.input if name in constants)
        scope = ".".join(path) if path else next(filter(None, weights), "")
    parts = [_plain(part, reserved) for part in scope.split(".")]
    fits = len(parts) <= _DEEPEST and len(scope) <= _DEEPEST * _LONGEST
    return ".".join(filter(None, parts)) if fits else ""


def classes_of(nodes: Sequence[Any]) -> dict[str, str]:
    """The classes of the modules that were exported, by scope, where the file has them."""
    classes: dict[str, str] = {}
    for node in nodes:
        props = {prop.key: quoted(prop.value) for prop in node.metadata_props if prop.key in (SCOPES, CLASSES)}
        for scope, kind in zip(props.get(SCOPES, ()), props.get(CLASSES, ()), strict=False):
            classes.setdefault(scope, _plain(kind.rpartition(".")[2]))
    return classes


def _plain(name: str, reserved: Container[str] = ()) -> str:
    """A name as a part of a module may have it: without dots, and without colons, which operators have."""
    plain = _BARRED.sub("_", name)
    return f"{plain}_" if plain in reserved else plain


def local_name(constant_name: str, place: str, taken: Callable[[str], bool]) -> str:
    """The name of a constant in the module at a place: its name in the graph, without the place where it begins so."""
    owner = next((owner for owner in (place, *around(place)) if constant_name.startswith(f"{owner}.")), None)
    rest = constant_name.rpartition("/")[2] if owner is None else constant_name[len(owner) + 1 :]
    plain = _plain(rest)[-_LONGEST:] or "constant"
    number, distinct = 1, plain
    while taken(distinct):
        number += 1
        distinct = f"{plain}_{number}"
    return distinct
