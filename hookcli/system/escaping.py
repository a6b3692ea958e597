"""Text of others (names of layers and files, messages, records) made safe to show: as data, never as control codes."""

from __future__ import annotations

import re
import shlex

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


def shell_word(text: str) -> str:
    r"""The text as a word of a command line that a person can copy, also from where control characters are shown.

    What can't be shown stands as bytes in the `$'\x1b'` of bash, zsh and POSIX 2024, the names of files that are no
    text included.
    """
    if visible(text) == text:
        return shlex.quote(text)
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{_ANY.sub(lambda found: _as_bytes(found[0]), quoted)}'"


def shell_path(path: object) -> str:
    """The same for a file, which must not look like an option."""
    text = str(path)
    return shell_word(f"./{text}" if text.startswith("-") else text)


def _as_bytes(character: str) -> str:
    of_a_file = "\udc80" <= character <= "\udcff"
    data = character.encode("utf-8", "surrogateescape" if of_a_file else "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in data)
