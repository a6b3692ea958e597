"""PyTorch's private names: each may be gone, and then reports say what is lost; and none is mentioned elsewhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from parsed import OF_SOURCES, nodes
from torch_without import Lookup, Without

import hookcli

pytestmark = OF_SOURCES

PACKAGE = Path(hookcli.__file__).parent
ROOMS = {"hooks.torch_private", "tensors.torch_private"}
# The part of hookcli that uses a room most; a name that is looked up late is looked up by another.
USES = {
    "hookcli.tensors.torch_private": "capture",
    "hookcli.hooks.torch_private.meta_operators": "shapes",
    "hookcli.hooks.torch_private.autograd": "capture",
    "hookcli.hooks.torch_private.nodes": "run",
    "hookcli.hooks.torch_private.losses": "losses",
    "hookcli.hooks.torch_private.modules": "hooks",
    "hookcli.hooks.torch_private.overrides": "shapes",
    "hookcli.hooks.torch_private.frames": "run",
    "hookcli.hooks.torch_private.dynamo": "compiled",
    "hookcli.hooks.torch_private.compilations": "compilations",
    "hookcli.hooks.torch_private.unwrap": "compiled",
    "hookcli.hooks.torch_private.programs": "compiled",
    "hookcli.hooks.torch_private.exchange": "run",
    "hookcli.hooks.torch_private.distributed": "comm",
}


@pytest.fixture(scope="module")
def without() -> Iterator[Without]:
    with Without() as server:
        yield server


@pytest.fixture(scope="module")
def lookups(without: Without) -> dict[str, list[Lookup]]:
    """What each part looks up, and nothing lost with all of it there."""
    found = {part: without.run(part) for part in sorted(set(USES.values()))}
    lost = {part: [x for x in answer["notes"] if " has no effect " not in x] for part, answer in found.items()}
    assert not any(answer["failed"] or lost[part] for part, answer in found.items()), found
    assert {room for answer in found.values() for room, *_ in answer["lookups"]} == USES.keys()
    return {part: answer["lookups"] for part, answer in found.items()}


@pytest.mark.sweep
@pytest.mark.parametrize("room", USES)
def test_each_name_may_be_gone_and_reports_say_what_is_lost(
    room: str, without: Without, lookups: dict[str, list[Lookup]]
) -> None:
    names = {tuple(lookup): None for found in lookups.values() for lookup in found if lookup[0] == room}
    wrong = {}
    for _, owner, name, lost in names:
        lookup = [room, owner, name, lost]
        part = next(part for part in (USES[room], *lookups) if lookup in lookups[part])
        answer = without.run(part, lookup)
        if answer["failed"] or not any(f" has no {owner}.{name}: {lost}" in note for note in answer["notes"]):
            wrong[f"{owner}.{name}"] = answer["failed"] or answer["notes"]
    assert names and not wrong


def sources() -> Iterator[tuple[str, str]]:
    """The package's files but the rooms: path, text."""
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        if "torch_private" not in str(place):
            yield str(place), path.read_text()


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def imported(source: str) -> Iterator[str]:
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


PYTHONS = {"_runtime_param", "_start_method", "_target", "_fields", "_make"}  # and Typer's


def test_no_other_file_imports_or_names_what_is_private_to_pytorch() -> None:
    """Attributes are the business of ruff's SLF001; these are imports, names in text, and names given to getattr."""
    wrong = []
    for place, text in sources():
        private = [name for name in imported(text) if any(map(is_private, name.split("."))) and name != "_thread"]
        wrong += [(place, name) for name in private]
        wrong += [(place, match[0]) for match in re.finditer(r"\btorch\._(?!_)\w+", text)]
        for node in nodes(text):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr")
            given = node.args[1] if called and len(node.args) > 1 else None
            if isinstance(given, ast.Constant) and is_private(str(given.value)) and given.value not in PYTHONS:
                wrong.append((place, str(given.value)))
    assert not wrong


def test_no_other_file_has_the_name_of_something_private_as_a_text() -> None:
    """A table of attributes, for example; what the rooms look up is not to be spelled anywhere else."""
    rooms = [path for path in PACKAGE.rglob("*.py") if "torch_private" in str(path.relative_to(PACKAGE))]
    spelled = {text for path in rooms for text in texts(path.read_text()) if is_private(text)}
    assert {"_version", "_forward_hooks", "_call_impl"} <= spelled
    assert not [(place, text) for place, source in sources() for text in texts(source) if text in spelled]


def texts(source: str) -> Iterator[str]:
    for node in nodes(source):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
