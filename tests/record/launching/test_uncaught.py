"""Our frames are in no traceback, theirs in all; and a program can go on after a script."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import hookcli
from hookcli.record.launching import Ending, find, restored
from hookcli.record.launching.uncaught import remove_our_frames

OURS = Path(hookcli.__file__).parent / "hooks" / "wrapper.py"


@pytest.fixture
def wrap() -> Callable[[Callable[[], None]], None]:
    """A function of hookcli's that calls one of the script's, as what hooks put around calls does."""
    names: dict[str, Callable[[Callable[[], None]], None]] = {}
    exec(compile("def wrap(call):\n    call()\n", str(OURS), "exec"), names)
    return names["wrap"]


def frames(error: BaseException | None) -> list[str]:
    assert error is not None
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def test_our_frames_go_from_the_middle_of_all_tracebacks(wrap: Callable[[Callable[[], None]], None]) -> None:
    def inner() -> None:
        raise ValueError

    def outer() -> None:
        wrap(inner)

    def chained() -> None:
        try:
            wrap(outer)
        except ValueError as error:
            raise ExceptionGroup("several", [error]) from error

    try:
        wrap(chained)
    except ExceptionGroup as error:
        caught = error
    here = "test_our_frames_go_from_the_middle_of_all_tracebacks"
    assert frames(caught) == [here, "wrap", "chained"]
    assert frames(caught.__cause__) == ["chained", "wrap", "outer", "wrap", "inner"]
    remove_our_frames(caught)
    assert frames(caught) == [here, "chained"]
    assert frames(caught.__cause__) == frames(caught.exceptions[0]) == ["chained", "outer", "inner"]


def test_a_chain_that_comes_back_to_itself_ends() -> None:
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    remove_our_frames(first)
    assert first.__cause__ is second


def test_what_a_run_changes_can_be_put_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\nsys.path.append('x')\nsys.excepthook = print\nsys.exit('over')")

    def state() -> list[object]:
        return [sys.modules["__main__"], sys.argv, [*sys.path], sys.excepthook, sys.orig_argv, sys.getrecursionlimit()]

    before = state()
    with restored():
        assert find(str(script), module=False).run(["--x"]) == Ending(1, "SystemExit: over")
        assert sys.argv == [str(script), "--x"] and sys.modules["__main__"].__file__ == str(script)
    assert state() == before
    assert capsys.readouterr().err == "over\n"


@pytest.mark.parametrize(
    ("source", "ending"),
    [
        ("", Ending(0)),
        ("import sys; sys.exit(-1)", Ending(255)),
        ("raise SystemExit", Ending(0)),
        ("raise KeyboardInterrupt", Ending(130, "KeyboardInterrupt", 2)),
        ("raise ValueError('one\\ntwo')", Ending(1, "ValueError: one two")),
        ("foo bar", Ending(1, "SyntaxError: invalid syntax")),
        ("e = OSError('x')\ne.add_note('note')\nraise e", Ending(1, "OSError: x")),
    ],
)
def test_endings(source: str, ending: Ending, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(source)
    with restored():
        assert find(str(tmp_path / "train.py"), module=False).run([]) == ending
