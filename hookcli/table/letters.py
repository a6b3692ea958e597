"""Letters for things that are compared: A, B, C ..."""

from __future__ import annotations

_LETTERS = 26


def letter(place: int) -> str:
    """The letters of a place from 0, as spreadsheets have them: A, B ... Z, AA, AB ..."""
    text = chr(ord("A") + place % _LETTERS)
    return text if place < _LETTERS else letter(place // _LETTERS - 1) + text
