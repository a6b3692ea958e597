"""Identifies the code that a spec's model is made of, without importing torch, so that reports on it can be cached."""

from __future__ import annotations

import json
import platform
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from hookcli.sources.catalog import entries
from hookcli.sources.specs import source_of
from hookcli.system.cache import stamp
from hookcli.system.files import exists

# The packages whose code the models of a source are made of, beside torch's.
_PACKAGES = {"torchvision": ("torchvision",), "timm": ("timm", "torchvision"), "hf": ("transformers",)}


def identity(spec: str) -> str | None:
    """Everything that the model of this spec depends on except options: versions, and files by size and time.

    None for models of one's own, and where a package is missing: their reports are not cached.
    """
    source, name = source_of(spec)
    folders = [_package(name) for name in ("hookcli", "torch", *_PACKAGES.get(source, ("",)))]
    if None in folders:
        return None
    own, torch, *others = filter(None, folders)
    # torch has thousands of files: its version names the commit, and of the code only that of modules is likely edited.
    version = torch.joinpath("version.py").read_text("utf-8", "replace")
    parts = _transformers(others.pop(), name) if source == "hf" else []
    if parts is None or (source == "timm" and ("/" in name or exists(name))):  # a configuration that may change
        return None
    stamps = [*map(stamp, (own, torch / "nn", *others)), stamp(torch, "version.py"), *parts]
    return "\n".join([sys.version, platform.machine(), version, *stamps, spec])


def _transformers(folder: Path, name: str) -> list[str] | None:
    """Stamps of the parts of Transformers that a model of this folder or type uses, of its thousands of files.

    None for other names: their configurations are the hub's.
    """
    kind, config = name, Path(name, "config.json")
    with suppress(OSError, ValueError, AttributeError):
        kind = str(json.loads(config.read_text("utf-8")).get("model_type"))
    if kind not in entries("hf"):
        return None
    shared = [file.name for file in folder.glob("*.py")]
    own = folder / "models" / kind.replace("-", "_")
    return [
        stamp(folder, *shared),
        *map(stamp, (folder / "integrations", folder / "models" / "auto", own)),
        _text(config),
    ]


def _text(file: Path) -> str:
    """The content of a small file; empty if there is none."""
    with suppress(OSError):
        return file.read_text("utf-8", "replace")
    return ""


def _package(name: str) -> Path | None:
    """The folder of a package, found without importing it; None if it is missing."""
    found = find_spec(name) if name else None
    return Path(found.origin).parent if found and found.origin else None
