"""Lines for a terminal: broken at spaces, while commands and quoted names stay whole."""

from __future__ import annotations

import re

import pytest

from hookcli.system.escaping import wrapped

COMMAND = "hookcli run --first-bad stop train.py --epochs 3"
LINES = {
    "short": ["short"],
    "twenty columns are enough for this": ["twenty columns are", "  enough for this"],
    f"it is NaN; `{COMMAND}` finds the first value": ["it is NaN;", f"  `{COMMAND}`", "  finds the first", "  value"],
    f"Next: {COMMAND}": ["Next:", f"  {COMMAND}"],
    f"try this: {COMMAND}; or not": ["try this:", f"  {COMMAND};", "  or not"],
    "can't read 'a file with blanks' here": ["can't read", "  'a file with blanks'", "  here"],
    "/a/path/that/is/longer/than/the/line is there": ["/a/path/that/is/longer/than/the/line", "  is there"],
    "層の名前は日本語で 書かれていて": ["層の名前は日本語で", "  書かれていて"],
    "  an  indented  table": ["  an  indented", "  table"],
    "one line\nand a second that is longer": ["one line", "and a second that is", "  longer"],
}


@pytest.mark.parametrize("line", LINES)
def test_lines(line: str) -> None:
    assert wrapped(line, 20).split("\n") == LINES[line]
    assert wrapped(line, None) == wrapped(line, 200) == wrapped(line, 5) == line


def test_a_figure_stays_with_its_unit() -> None:
    text = "float32 · the loss of (cross-entropy) · ran 0.57 s (hookcli 1,021 ms) · peak 14.73 MiB, 18.0 dB"
    for width in range(20, 90):
        assert not re.search(r"\d$", wrapped(text, width), re.MULTILINE), width
