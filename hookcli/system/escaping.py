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

    def as_bytes(match: re.Match[str]) -> str:
        errors = "surrogateescape" if "\udc80" <= match[0] <= "\udcff" else "surrogatepass"  # a file's name, or text
        return "".join(f"\\x{byte:02x}" for byte in match[0].encode("utf-8", errors))

    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{_ANY.sub(as_bytes, quoted)}'"


def shell_path(path: object) -> str:
    """Do as `shell_word` does for a file, whose name must not look like an option."""
    text = str(path)
    return shell_word(f"./{text}" if text.startswith("-") else text)
