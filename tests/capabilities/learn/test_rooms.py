"""The rooms of learn know each other in one direction; what judges a record knows nothing of what was recorded how."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hookcli.capabilities import learn

FOLDER = Path(learn.__file__).parent
KNOWS = {
    "losses": {"graphs", "lines"},
    "weights": {"losses", "lines"},
    "forwards": {"weights", "losses", "graphs", "lines"},
    "judging": {"lines"},
}


@pytest.mark.parametrize("room", KNOWS)
def test_a_room_imports_only_those_below_it(room: str) -> None:
    files = [*(FOLDER / room).glob("*.py")]
    assert files
    imported = {name for file in files for name in re.findall(rf"{learn.__name__}\.(\w+)", file.read_text())}
    assert imported - {room} <= KNOWS[room]


def test_each_folder_is_such_a_room() -> None:
    assert {path.parent.name for path in FOLDER.glob("*/__init__.py")} == {*KNOWS}


def test_judging_needs_no_torch() -> None:
    modules = [f"{learn.__name__}.judging.{path.stem}" for path in (FOLDER / "judging").glob("[a-z]*.py")]
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
