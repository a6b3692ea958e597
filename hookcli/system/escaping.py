"""Makes foreign text (names of layers and files, messages, records) safe to show: as data, never as control codes.

Lines are broken at spaces to fit a terminal; commands and quoted names stay whole, so that they can be copied.
"""

from __future__ import annotations

import re
import shlex
from unicodedata import east_asian_width

# Control characters (C0, DEL, C1), which drive terminals; line and paragraph separators; direction marks, which reorder
# a line; and surrogates, which no encoding can hold.
_HIDDEN = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_ANY = re.compile(f"[\x00-\x1f{_HIDDEN}]")
_IN_JSON = re.compile(f"[{_HIDDEN}]")


def visible(text: str) -> str:
    r"""Return the text on one line, with characters that are not printable as Python escapes them: `\n`, `\x1b`."""
    if text.isascii() and text.isprintable():  # nearly all are, and this is fast
        return text
    return _ANY.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def visible_lines(text: str) -> str:
    """Do as `visible` does for each line of the text; line breaks stay."""
    return "\n".join(visible(line) for line in text.split("\n"))


def visible_json(text: str) -> str:
    r"""Escape the characters of a JSON document that `json` does not: `\u009b` means the same to a parser."""
    return text if text.isascii() else _IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def shell_word(text: str) -> str:
    r"""Quote the text as one word of a command line, so that a person can copy it from a terminal.

    Characters that can't be shown become bytes within `$'\x1b'`, which bash, zsh and POSIX 2024 read. This covers file
    names that are not valid text.
    """
    if visible(text) == text:
        return shlex.quote(text)

    def as_bytes(match: re.Match[str]) -> str:
        errors = "surrogateescape" if "\udc80" <= match[0] <= "\udcff" else "surrogatepass"  # a file's name, or text
        return "".join(f"\\x{byte:02x}" for byte in match[0].encode("utf-8", errors))

    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{_ANY.sub(as_bytes, quoted)}'"


def shell_path(path: object) -> str:
    """Do as `shell_word` does for a file, whose name must not look like an option."""
    text = str(path)
    return shell_word(f"./{text}" if text.startswith("-") else text)


INDENT = "  "
_LEAST = 20  # columns; on a narrower terminal the line is left to it

# Text in backticks; a command after a colon, until the sentence goes on; quoted text; and a figure with its unit.
_WHOLE = re.compile(
    r"`[^`]+`\S*"
    r"|(?<=: )(?:hookcli|pip|python|tensorboard|wandb) .+?(?=; | \(|$)"
    r"|(?<![^\s(=])'[^']*'(?![^\s;,.:)?])\S*"
    r"|(?<![\w.,])\d[\d.,]* (?:[mµ]?s|min|[KMGT]iB|B|dB)\b"
)


def wrapped(text: str, width: int | None) -> str:
    """Return the lines of a text, those that are wider than `width` columns broken at spaces (None: no terminal).

    Further lines of a broken one are indented. Commands and words are never broken, even if they don't fit;
    nor is a figure parted from its unit.
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
