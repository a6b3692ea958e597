"""Names the source that serves a spec, and the code of its model, for a cache of reports, without importing torch."""

from __future__ import annotations

import json
import platform
import re
import sys
from contextlib import suppress
from pathlib import Path

from hookcli import registry
from hookcli.registry.capability import file_source
from hookcli.sources.catalog import entries, package_folder
from hookcli.system.files import content, exists

# A single letter before a colon is a Windows drive.
_PREFIX = re.compile(r"([A-Za-z][\w-]+):(.+)", re.DOTALL)


def source_of(spec: str) -> tuple[str, str]:
    """The name of the source that serves a spec, and the rest of the spec.

    `NAME:REST` is served by the source NAME, a file by the source of its suffix; any other colon means an import path.
    """
    prefix = _PREFIX.fullmatch(spec)
    if prefix and prefix[1] in registry.names("sources"):
        return prefix[1], prefix[2]
    if spec.endswith(".pt2"):
        return "pt2", spec
    return file_source(spec) or ("importpath" if ":" in spec else "torchvision"), spec


# The packages whose code the models of a source are made of, beside torch's.
_PACKAGES = {"torchvision": ("torchvision",), "timm": ("timm", "torchvision"), "hf": ("transformers",)}
_OPTIONAL = {"hf": ("timm",)}  # some of Transformers' models have a backbone of timm's


def identity(spec: str) -> str | None:
    """Everything that the model of this spec depends on except options and the contents of `code_folders`.

    None for models of one's own, for configurations on the hub, and where a package is missing: these are not cached.
    """
    source, name = source_of(spec)
    config = ""  # in a file, where the package does not hold it
    if source == "timm" and ("/" in name or exists(name)):
        return None
    if source == "hf":
        config, kind = _text(Path(name, "config.json")), name
        with suppress(ValueError, AttributeError, RecursionError):
            kind = str(json.loads(config).get("model_type"))
        if kind not in entries("hf"):
            return None
    folders = code_folders(spec)
    if not folders:
        return None
    # torch has thousands of files: its version names the commit, and of its code only modules are likely edited.
    version = _text(folders[1].with_name("version.py"))
    return "\n".join([sys.version, platform.machine(), version, *map(str, folders), spec, config])


def code_folders(spec: str) -> list[Path]:
    """The folders of the code that makes and measures the model of this spec; none where a package is missing."""
    source, _ = source_of(spec)
    folders = [package_folder(package) for package in ("hookcli", "torch", *_PACKAGES.get(source, ("",)))]
    if None in folders:
        return []
    hookcli, torch, *others = filter(None, [*folders, *map(package_folder, _OPTIONAL.get(source, ()))])
    return [hookcli, torch / "nn", *others]


def _text(file: Path) -> str:
    """The content of a small file; empty if there is none."""
    with suppress(OSError, ValueError):
        return content(file, 2**24).decode("utf-8", "replace")
    return ""
