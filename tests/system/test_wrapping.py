"""Lines for a terminal: broken at spaces, while commands and quoted names stay whole."""

from __future__ import annotations

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
