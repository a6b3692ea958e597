"""Joins the page's ES modules into one script, in the order in which they need each other."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

ASSETS = files(__package__) / "assets"
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|let|class)\b)", re.MULTILINE)


def asset(name: str) -> str:
    """Return the text of a file in assets/."""
    return (ASSETS / name).read_text(encoding="utf-8")


def imports(source: str) -> list[tuple[str, list[str]]]:
    """Return the files that a module imports, each with the names that it takes."""
    return [(file, [name.strip() for name in names.split(",")]) for names, file in _IMPORT.findall(source)]


def reached(entry: str) -> list[str]:
    """Return the modules that the entry reaches, each after those that it imports."""
    order: dict[str, None] = {}

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise ValueError(f"{name} imports itself through {' -> '.join(above)}")
        if name not in order:
            for file, _ in imports(asset(name)):
                visit(file, (*above, name))
            order[name] = None

    visit(entry, ())
    return list(order)


@cache
def joined(entry: str) -> str:
    """Return one module: everything that the entry reaches, without imports, exports and comments of whole lines."""
    return "\n".join(_bare(asset(name)) for name in reached(entry))


def _bare(source: str) -> str:
    source = _EXPORT.sub("", _IMPORT.sub("", source))
    source = re.sub(r"^ */\*\*.*?\*/$", "", source, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"\n\s*\n+", "\n", re.sub(r"^ *//.*$", "", source, flags=re.MULTILINE)).strip()


@cache
def styles() -> str:
    """Return the style sheets: the page's own, those of views, and what print changes in them."""
    names = sorted(item.name for item in ASSETS.iterdir() if item.name.endswith(".css"))
    names.sort(key=lambda name: (name != "style.css", name == "print.css"))
    return "\n".join(map(asset, names))
