"""Wraps lines at spaces to fit a terminal; commands and quoted names stay whole, so that they can be copied."""

from __future__ import annotations

import re
from unicodedata import east_asian_width

INDENT = "  "
_LEAST = 20  # columns; on a narrower terminal the line is left to it

# Text in backticks; a command after a colon, until the sentence goes on; and quoted text.
_WHOLE = re.compile(
    r"`[^`]+`\S*"
    r"|(?<=: )(?:hookcli|pip|python|tensorboard|wandb) .+?(?=; | \(|$)"
    r"|(?<![^\s(=])'[^']*'(?![^\s;,.:)?])\S*"
)


def wrapped(text: str, width: int | None) -> str:
    """Return the lines of a text, those that are wider than `width` columns broken at spaces (None: no terminal).

    Further lines of a broken one are indented. Commands and words are never broken, even if they don't fit.
    """
    if width is None or width < _LEAST:
        return text
    return "\n".join(line for long in text.split("\n") for line in _filled(long, width))


def _filled(line: str, width: int) -> list[str]:
    if _columns(line) <= width:
        return [line]
    lines = [""]
    whole = _WHOLE.sub(lambda match: match[0].replace(" ", "\0"), line.replace("\0", " "))
    for place, piece in enumerate(word.replace("\0", " ") for word in whole.split(" ")):
        taken = f"{lines[-1]} {piece}" if place else piece
        if place and lines[-1].strip() and _columns(taken) > width:
            lines.append(INDENT + piece)
        else:
            lines[-1] = taken
    return [line.rstrip() for line in lines]


def _columns(text: str) -> int:
    """Return the number of columns that a text takes in a terminal."""
    return len(text) if text.isascii() else len(text) + sum(east_asian_width(letter) in "WF" for letter in text)
