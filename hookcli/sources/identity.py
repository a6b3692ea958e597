"""Identifies the code that a spec's model is made of, without importing torch, so that reports on it can be cached."""

from __future__ import annotations

import platform
import sys
from importlib.util import find_spec
from pathlib import Path

from hookcli.sources.specs import source_of
from hookcli.system.cache import stamp

# The packages whose code the models of a source are made of, beside torch's.
_PACKAGES = {"torchvision": ("torchvision",), "timm": ("timm", "torchvision")}


def identity(spec: str) -> str | None:
    """Everything that the model of this spec depends on except options: versions, and files by size and time.

    None for models of one's own, and where a package is missing: their reports are not cached.
    """
    source, _ = source_of(spec)
    folders = [_package(name) for name in ("hookcli", "torch", *_PACKAGES.get(source, ("",)))]
    if None in folders:
        return None
    own, torch, *others = filter(None, folders)
    # torch has thousands of files: its version names the commit, and of the code only that of modules is likely edited.
    version = torch.joinpath("version.py").read_text("utf-8", "replace")
    stamps = [*map(stamp, (own, torch / "nn", *others)), stamp(torch, "version.py")]
    return "\n".join([sys.version, platform.machine(), version, *stamps, spec])


def _package(name: str) -> Path | None:
    """The folder of a package, found without importing it; None if it is missing."""
    found = find_spec(name) if name else None
    return Path(found.origin).parent if found and found.origin else None
