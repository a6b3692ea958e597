"""Makes foreign text (names of layers and files, messages, records) safe to show: as data, never as control codes."""

from __future__ import annotations

import re
import shlex

# Control characters (C0, DEL, C1), which drive terminals; line and paragraph separators; direction marks, which reorder
# a line; and surrogates, which no encoding can hold.
_HIDDEN = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_ANY = re.compile(f"[\x00-\x1f{_HIDDEN}]")
_IN_JSON = re.compile(f"[{_HIDDEN}]")


def visible(text: str) -> str:
    r"""Return the text on one line, with characters that are not printable as Python escapes them: `\n`, `\x1b`."""
    if text.isascii() and text.isprintable():  # nearly all are, and this is fast
        return text
    return _ANY.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def visible_lines(text: str) -> str:
    """Do as `visible` does for each line of the text; line breaks stay."""
    return "\n".join(visible(line) for line in text.split("\n"))


def visible_json(text: str) -> str:
    r"""Escape the characters of a JSON document that `json` does not: `\u009b` means the same to a parser."""
    return text if text.isascii() else _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shell_word(text: str) -> str:
    r"""Quote the text as one word of a command line, so that a person can copy it from a terminal.

    Characters that can't be shown become bytes within `$'\x1b'`, which bash, zsh and POSIX 2024 read. This covers file
    names that are not valid text.
    """
    if visible(text) == text:
        return shlex.quote(text)
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{_ANY.sub(lambda found: _as_bytes(found[0]), quoted)}'"


def shell_path(path: object) -> str:
    """Do as `shell_word` does for a file, whose name must not look like an option."""
    text = str(path)
    return shell_word(f"./{text}" if text.startswith("-") else text)


def _as_bytes(character: str) -> str:
    of_a_file = "\udc80" <= character <= "\udcff"
    data = character.encode("utf-8", "surrogateescape" if of_a_file else "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in data)
