"""The pages of the documentation, and `scripts/docs`, which takes them apart."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[2]

with patch.object(sys, "path", [str(ROOT / "scripts"), *sys.path]):  # scripts import their neighbours
    import _docs_blocks as blocks
    import _docs_tables as tables

PAGES = {page.relative_to(ROOT).as_posix(): page.read_text() for page in blocks.PAGES}


def executed(page: str, wanted: Any = bool) -> dict[str, Any]:
    """Run the Python blocks of a page, or the wanted ones of them, as one program; returns its variables."""
    program: dict[str, Any] = {"__name__": page}
    exec(compile(blocks.python(PAGES[page], wanted), page, "exec", dont_inherit=True), program)
    return program


__all__ = ["PAGES", "ROOT", "blocks", "executed", "tables"]
