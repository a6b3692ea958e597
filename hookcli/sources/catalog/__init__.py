"""Lists the models of libraries from their sources, without importing these or torch.

No list is kept by hand, so none can become outdated.
Lists are kept in the user's cache folder, by the library's version and its sources.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import asdict, fields
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hookcli.errors import UsageError
from hookcli.sources.catalog.base import ModelEntry
from hookcli.system.cache import Cache, python_files, stamp
from hookcli.system.files import content

LIBRARIES = {"torchvision": "torchvision", "timm": "timm", "hf": "transformers"}
"""The library of each source that has a catalog."""
_INSTALLED = {"torchvision": "torchvision", "timm": "'hookcli[timm]'", "hf": "'hookcli[huggingface]'"}

_FOLDERS = {"torchvision": "models", "timm": "models", "hf": "models/auto"}
_SCANS = {source: f"hookcli.sources.catalog.{library}" for source, library in LIBRARIES.items()}
_FORMAT = 2  # of the cache; increase it when other things are read


def entries(source: str = "torchvision") -> dict[str, ModelEntry]:
    """Every model of a source, by name; none if its library is missing."""
    folder = models_folder(source)
    return dict(_entries(source, str(folder))) if folder else {}


def known_entries(source: str) -> dict[str, ModelEntry]:
    """Every model of a source, by name. Raises UsageError if its library is missing."""
    if models := entries(source):
        return models
    raise UsageError(f"{LIBRARIES[source]} is not installed: pip install {_INSTALLED[source]}")


def models_folder(source: str = "torchvision") -> Path | None:
    """The folder of a library's models, found without importing it."""
    folder = package_folder(LIBRARIES[source])
    return folder / _FOLDERS[source] if folder else None


def package_folder(name: str) -> Path | None:
    """The folder of a package, found without importing it; None if it is missing."""
    with suppress(ImportError, ValueError):  # a module that was not imported from anywhere has no spec
        spec = find_spec(name)
        return Path(spec.origin).parent if spec and spec.origin else None
    return None


def installed_version(source: str = "torchvision") -> str:
    """The version of a source's library, read from its files."""
    folder = package_folder(LIBRARIES[source]) or Path()
    for name in ("version.py", "__init__.py"):
        with suppress(OSError):
            text = content(folder / name).decode("utf-8")
            if match := re.search(r"^__version__\s*=\s*['\"]([^'\"]+)", text, re.MULTILINE):
                return match[1]
    return "unknown"


@cache
def _entries(source: str, folder: str) -> dict[str, ModelEntry]:
    cached, key = Cache("catalog"), f"{_FORMAT} {source} {installed_version(source)} {stamp(python_files(folder))}"
    with suppress(ValueError, KeyError, TypeError):
        return {entry.name: entry for entry in map(_entry, json.loads(cached.get(key) or ""))}
    models = sorted(import_module(_SCANS[source]).scan(Path(folder)), key=lambda e: e.name)
    cached.put(key, json.dumps([asdict(entry) for entry in models]))
    return {entry.name: entry for entry in models}


def _entry(saved: dict[str, Any]) -> ModelEntry:
    """A saved entry. Raises KeyError unless it has every field."""
    values = {field.name: saved[field.name] for field in fields(ModelEntry)}
    values |= {"inputs": tuple(map(tuple, values["inputs"])), "weights": tuple(values["weights"])}  # another word
    return ModelEntry(**values)
