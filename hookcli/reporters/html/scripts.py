"""Joins the page's ES modules into one script, in the order in which they need each other."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from hookcli.registry.capability import capabilities

ASSETS = files(__package__) / "assets"
VIEWS = tuple(one.view for one in capabilities() if one.view)
"""The first scripts of the parts of capabilities, as "package:file.js"."""
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


def _beside(name: str, file: str) -> str:
    """The module that one imports as a file: of its own package if that has it, else in assets/."""
    package = name.rpartition(":")[0]
    return f"{package}:{file}" if package and (_folder(name) / file).is_file() else file


@cache
def program() -> str:
    """Return one module of all that main.js and the parts reach, without imports, exports and comments of whole lines.

    Each part is a block, so that it has its own names; main.js, which builds the page, comes last.
    """
    *shared, main = (name for name in reached(*VIEWS, "main.js") if ":" not in name)
    parts = ([name for name in reached(view) if ":" in name] for view in VIEWS)
    blocks = ("{\n" + "\n".join(_bare(asset(name)) for name in part) + "\n}" for part in parts)
    return "\n".join([*(_bare(asset(name)) for name in shared), *blocks, _bare(asset(main))])


def _bare(source: str) -> str:
    source = _EXPORT.sub("", _IMPORT.sub("", source))
    source = re.sub(r"^ */\*\*.*?\*/$", "", source, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"\n\s*\n+", "\n", re.sub(r"^ *//.*$", "", source, flags=re.MULTILINE)).strip()


@cache
def styles() -> str:
    """Return the style sheets: the page's own, the views', and what print changes in them."""
    folders = dict.fromkeys(["", *(f"{view.rpartition(':')[0]}:" for view in VIEWS)])
    names = [f"{own}{item.name}" for own in folders for item in _folder(own).iterdir() if item.name.endswith(".css")]
    names.sort(key=lambda name: name.rpartition(":")[2])
    names.sort(key=lambda name: (name != "style.css", name == "print.css"))
    return "\n".join(map(asset, names))
