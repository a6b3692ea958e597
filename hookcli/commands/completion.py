"""Completion in bash of words with a colon, such as net.py:Net, which bash takes for several words."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO

from hookcli.system.stdout import write_report


def joined(words: Sequence[str], place: int) -> tuple[list[str], int]:
    """The words, joined where bash has split them at a colon, and the place of the one that stood at `place`."""
    whole: list[str] = []
    places: list[int] = []
    for before, word in zip(["", *words], words, strict=False):
        if whole and (word.startswith(":") or before.endswith(":")):
            whole[-1] += word
        else:
            whole.append(word)
        places.append(len(whole) - 1)
    return whole, places[place] if place < len(places) else len(whole)


@contextmanager
def words_joined() -> Iterator[None]:
    """Have bash's completion see words with colons as one, and write what follows the last colon, as bash wants it.

    COMP_WORDS and COMP_CWORD are set, as the shell's script sets them: a word to a line.
    """
    words, place = os.environ["COMP_WORDS"].split("\n"), int(os.environ["COMP_CWORD"])
    whole, at = joined(words, place)
    typed = ""
    if len(whole) < len(words):
        os.environ |= {"COMP_WORDS": "\n".join(whole), "COMP_CWORD": str(at)}
        typed = "".join(whole[at : at + 1])
    before = typed[: typed.rfind(":") + 1]
    text = StringIO()
    try:
        with redirect_stdout(text):
            yield
    finally:
        write_report("".join(f"{line.removeprefix(before)}\n" for line in text.getvalue().splitlines()))
