"""Text of others (names of layers and files, messages, records) made safe to show: as data, never as control codes."""

from __future__ import annotations

import re

# Control characters (C0, DEL, C1), which drive terminals; line and paragraph separators and marks of direction, which
# reorder a line; and surrogates, which no encoding can hold.
_HIDDEN = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_ANY = re.compile(f"[\x00-\x1f{_HIDDEN}]")
_IN_JSON = re.compile(f"[{_HIDDEN}]")


def visible(text: str) -> str:
    r"""The text on one line, with each character that is not for eyes as Python would write it: `\n`, `\x1b`."""
    if text.isascii() and text.isprintable():  # nearly all are, and this is fast
        return text
    return _ANY.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def visible_lines(text: str) -> str:
    """The same for a text of several lines, which stay."""
    return "\n".join(visible(line) for line in text.split("\n"))


def visible_json(text: str) -> str:
    r"""A JSON document without the characters that `json` leaves as they are: `\u009b` means the same to a reader."""
    return text if text.isascii() else _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
