"""Aligns the figures of a column at their decimal points."""

from __future__ import annotations

import re
from collections.abc import Sequence

_FIGURE = re.compile(r"(-?\d+)((?:\.\d+)?(?:e[+-]\d+)?)")


def aligned(texts: Sequence[str], most: int) -> list[str]:
    """The texts of a column, those that are figures with spaces after them, so that their decimal points align.

    Unchanged where the column would be wider than `most`, or no figure has decimals. Other texts end where the column
    ends.
    """
    matches = [_FIGURE.fullmatch(text) for text in texts]
    figures = [match for match in matches if match]
    if not any("." in match[2] for match in figures):
        return [*texts]
    after = max(len(match[2]) for match in figures)
    if max(len(match[1]) for match in figures) + after > most:
        return [*texts]
    return [text + " " * (after - len(match[2]) if match else 0) for text, match in zip(texts, matches, strict=True)]
