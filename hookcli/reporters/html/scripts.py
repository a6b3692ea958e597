"""Joins the page's ES modules into one script, in the order in which they need each other."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from hookcli.registry.capability import capabilities
from hookcli.registry.pieces import left_out

ASSETS = files(__package__) / "assets"
VIEWS = tuple(one.view for one in capabilities() if one.view and one.distribution == "hookcli")
"""The first scripts of the parts of hookcli's own capabilities, as "package:file.js"."""
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|let|class)\b)", re.MULTILINE)


def asset(name: str) -> str:
    """Return the text of a file in assets/, or of "package:file", which belongs to the part of a capability."""
    return (_folder(name) / name.rpartition(":")[2]).read_text(encoding="utf-8")


def _folder(name: str) -> Traversable:
    package = name.rpartition(":")[0]
    return files(package) if package else ASSETS


def imports(source: str) -> list[tuple[str, list[str]]]:
    """Return the files that a module imports, each with the names that it takes."""
    return [(file, [name.strip() for name in names.split(",")]) for names, file in _IMPORT.findall(source)]


def reached(*entries: str) -> list[str]:
    """Return the modules that the entries reach, each after those that it imports."""
    order: dict[str, None] = {}

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise ValueError(f"{name} imports itself through {' -> '.join(above)}")
        if name not in order:
            for file, _ in imports(asset(name)):
                visit(_beside(name, file), (*above, name))
            order[name] = None

    for entry in entries:
        visit(entry, ())
    return list(order)


def require_joinable(name: str) -> None:
    """Raises ValueError for a script whose imports and exports are not of the form that this page can join."""
    source = asset(name)
    if re.search(r"</script|<!--|\r", source, re.IGNORECASE):
        raise ValueError(f"{name}: it would end its element of the page")
    for line in _bare(source).split("\n"):
        if re.match(r"\s*(import|export)\b", line):
            raise ValueError(f'{name}: {line.strip()!r} can\'t be joined; write import {{ h }} from "./dom.js";')
    for file, names in imports(source):
        exported = {*re.findall(_EXPORT.pattern + r"(?:async )?\w+\*? (\w+)", asset(_beside(name, file)), re.MULTILINE)}
        if lost := [one for one in names if one not in exported]:
            raise ValueError(f"{name}: {file} does not export {lost[0]!r}")


def _beside(name: str, file: str) -> str:
    """The module that one imports as a file: of its own package if that has it, else in assets/."""
    package = name.rpartition(":")[0]
    return f"{package}:{file}" if package and (_folder(name) / file).is_file() else file


@cache
def foreign_views() -> tuple[str, ...]:
    """The first scripts of the parts of other distributions, but for those that can't be read, or joined."""
    views: list[str] = []
    for one in capabilities():
        if one.view and one.distribution != "hookcli":
            with left_out(one, f"view={one.view!r}"):
                for name in reached(one.view):
                    require_joinable(name)
                views.append(one.view)
    return tuple(views)


@cache
def programs() -> Sequence[str]:
    """The page's modules, in the order in which they run, without imports, exports and comments of whole lines.

    One of all that main.js and the parts reach, each part a block with its own names; main.js, which builds the page,
    comes last. With parts of other distributions each of these is a module for itself, between the others and main.js:
    where one does not parse, or raises, the page has the others, and a tab that names it.
    """
    foreign = foreign_views()
    *shared, main = (name for name in reached(*VIEWS, *foreign, "main.js") if ":" not in name)
    first = "\n".join([*(_bare(asset(name)) for name in shared), *map(_block, VIEWS)])
    if not foreign:
        return [f"{first}\n{_bare(asset(main))}"]
    taken = {view: _taken(view) for view in (*foreign, main)}
    exported = ", ".join(sorted(set().union(*taken.values())))
    parts = [
        f"const {{ {', '.join(taken[view])} }} = hookcliPage;\n{_block(view)}\n{_RAN % json.dumps(view)}"
        for view in foreign
    ]
    last = f"const {{ {', '.join(taken[main])} }} = hookcliPage;\n{_bare(asset(main))}"
    awaited = "\n".join(f"addPart({_AWAITED % json.dumps(view)});" for view in foreign)
    return [f"{first}\nglobalThis.hookcliPage = {{ addedParts, {exported} }};\n{awaited}", *parts, last]


_AWAITED = (
    """{ id: %s, title: "Not shown", drawn: () => [0], mount() { throw new Error(`${this.id} did not run`); } }"""
)
"""Stands for the part of this script, until it has run to its end."""
_RAN = "hookcliPage.addedParts.splice(hookcliPage.addedParts.findIndex(({ id }) => id === %s), 1);"


def _block(view: str) -> str:
    """The scripts of a part, as a block."""
    return "{\n" + "\n".join(_bare(asset(name)) for name in reached(view) if ":" in name) + "\n}"


def _taken(view: str) -> list[str]:
    """The names that the scripts of a part, or main.js, import from the page's own."""
    own = [name for name in reached(view) if ":" in name] or [view]
    files = [(_beside(name, file), names) for name in own for file, names in imports(asset(name))]
    return sorted({each for file, names in files if ":" not in file for each in names})


def _bare(source: str) -> str:
    source = _EXPORT.sub("", _IMPORT.sub("", source))
    source = re.sub(r"^ */\*\*.*?\*/$", "", source, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"\n\s*\n+", "\n", re.sub(r"^ *//.*$", "", source, flags=re.MULTILINE)).strip()


@cache
def styles() -> str:
    """Return the style sheets: the page's own, the views', and what print changes in them."""
    folders = dict.fromkeys(["", *(f"{view.rpartition(':')[0]}:" for view in (*VIEWS, *foreign_views()))])
    names = [f"{own}{item.name}" for own in folders for item in _folder(own).iterdir() if item.name.endswith(".css")]
    names.sort(key=lambda name: name.rpartition(":")[2])
    names.sort(key=lambda name: (name != "style.css", name == "print.css"))
    return "\n".join(map(asset, names))
