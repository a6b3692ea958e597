"""Advice to search a run for where values that are not finite begin."""

from __future__ import annotations

from hookcli.registry.capability import search_words


def find_where(begins: str) -> str:
    """The command that finds where "it begins"; "" if no part of a recording does."""
    words = search_words()
    return f"`hookcli run {' '.join(words)} SCRIPT` finds where {begins}" if words else ""
