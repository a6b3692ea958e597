"""Names the source that serves a spec, without importing torch."""

from __future__ import annotations

import re

from hookcli import registry

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
    return "importpath" if ":" in spec else "torchvision", spec
