"""The extension is built once, quietly, and where it can't be, one sentence says why."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import forks
import pytest

from hookcli.errors import UsageError
from hookcli.hooks.native import build

TRIVIAL = 'extern "C" int hookcli_answer() { return 42; }\n'


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Build this instead, which takes a moment, in a cache of the test's own."""

    def use(text: str) -> Path:
        path = tmp_path / "trivial.cpp"
        path.write_text(text)
        monkeypatch.setattr(build, "SOURCES", (path,))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        return tmp_path / "cache"

    return use


def test_what_was_built_is_loaded_without_a_compiler(
    source: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    source(TRIVIAL)
    said: list[str] = []
    library = build._library(said.append)
    assert Path(library).is_file() and len(said) == 1 and "building" in said[0]
    assert capfd.readouterr().out == ""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CXX", "nonexistent")
    assert build._library(said.append) == library and len(said) == 1


def test_a_change_of_the_source_is_another_build(source: Callable[[str], Path]) -> None:
    source(TRIVIAL)
    first = build.cache_folder()
    source(TRIVIAL + "\n")
    assert build.cache_folder() != first and build.cache_folder().parent == first.parent


def test_a_build_that_was_killed_counts_as_none(source: Callable[[str], Path]) -> None:
    source(TRIVIAL)
    folder = build.cache_folder()
    folder.mkdir(parents=True)
    (folder / "hookcli_native.so").write_text("half a library")
    (folder / "lock").touch()  # of torch 2.11, which waits for it to go
    assert Path(build._library(None)).stat().st_size > 1000


_IN_PROCESS = """
import sys
from pathlib import Path
from hookcli.hooks.native import build
build.SOURCES = (Path(sys.argv[1]),)
print(build._library(lambda text: print("built")))
"""


@pytest.mark.sweep
def test_two_processes_build_once(source: Callable[[str], Path], tmp_path: Path) -> None:
    source(TRIVIAL)
    command = [sys.executable, "-c", _IN_PROCESS, str(tmp_path / "trivial.cpp")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    both = [forks.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    said = [child.communicate(timeout=300)[0].split() for child in both]
    assert [child.returncode for child in both] == [0, 0]
    assert sorted(len(lines) for lines in said) == [1, 2] and said[0][-1] == said[1][-1]


def test_without_a_compiler(source: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    source(TRIVIAL)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UsageError, match=r"needs a C\+\+ compiler: no c\+\+, g\+\+ or clang\+\+ on PATH"):
        build._library(None)


def test_with_a_compiler_that_is_none(source: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    source(TRIVIAL)
    monkeypatch.setenv("CXX", "nonexistent")
    with pytest.raises(UsageError, match="CXX=nonexistent is not a program") as caught:
        build._library(None)
    assert "\n" not in str(caught.value)


def test_without_ninja(source: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source(TRIVIAL)
    monkeypatch.setenv("CXX", str(shutil.which("c++")))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(UsageError, match=r"needs ninja: pip install 'hookcli\[native\]'"):
        build._library(None)


def test_ninja_beside_python_is_found(source: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    source(TRIVIAL)
    ninja, compiler = shutil.which("ninja"), shutil.which("c++")
    assert ninja and compiler
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(build.sysconfig, "get_path", lambda name: str(Path(ninja).parent))
    with build._ninja_on_path():
        assert shutil.which("ninja") == ninja
    assert os.environ["PATH"] == "/nowhere"


def test_what_the_compiler_says_first(source: Callable[[str], Path]) -> None:
    source("int answer() { return forty_two; }\n")
    with pytest.raises(UsageError, match=r"could not be built with .*: .*forty_two") as caught:
        build._library(None)
    assert "\n" not in str(caught.value)
    log = "\n".join(caught.value.__cause__.__notes__)  # type: ignore[union-attr]
    assert "forty_two" in log and "FAILED" in log
    assert not (build.cache_folder() / "built").exists()


def test_a_cache_that_cannot_be_written(source: Callable[[str], Path]) -> None:
    cache = source(TRIVIAL)
    cache.write_text("a file where the folder should be")
    with pytest.raises(UsageError, match="can't be used"):
        build._library(None)


def test_what_others_may_write_is_not_loaded(source: Callable[[str], Path]) -> None:
    source(TRIVIAL)
    library = build._library(None)
    folder = build.cache_folder()
    for path, mode in product((folder, folder / "built", Path(library)), (0o020, 0o002)):
        path.chmod(path.stat().st_mode | mode)
        with pytest.raises(UsageError, match=re.escape(f"others may write {path}: ")) as caught:
            build._library(None)
        assert "\n" not in str(caught.value)
        path.chmod(path.stat().st_mode & ~mode)
        assert build._library(None) == library


def test_what_another_user_has_put_there_is_not_loaded(
    source: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source(TRIVIAL)
    build._library(None)
    owner = build.cache_folder().stat().st_uid
    monkeypatch.setattr(build, "_TRUSTED", ())
    monkeypatch.setattr(build.os, "getuid", lambda: owner + 1)
    with pytest.raises(UsageError, match="belongs to another user"):
        build._library(None)


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can put what is root's there")
def test_what_root_has_put_there_is_loaded(source: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    source(TRIVIAL)
    library = build._library(None)
    monkeypatch.setattr(build.os, "getuid", lambda: 1)
    assert build._library(None) == library


def test_a_stamp_that_names_another_file_is_refused(source: Callable[[str], Path]) -> None:
    source(TRIVIAL)
    library = Path(build._library(None))
    folder = build.cache_folder()
    (folder.parent / "other.so").write_bytes(library.read_bytes())
    (folder / "link.so").symlink_to(folder.parent / "other.so")
    for name in ("../other.so", "/tmp/other.so", "", "gone.so", "link.so", "x\n" * 5000, "a/../built"):
        (folder / "built").write_text(name)
        with pytest.raises(UsageError, match=r"is not a file in this folder|can't be used") as caught:
            build._library(None)
        assert len(str(caught.value)) < 600


def test_what_is_built_is_this_users_alone(source: Callable[[str], Path]) -> None:
    """With a umask that lets the group write, as many systems have it."""
    source(TRIVIAL)
    before = os.umask(0o002)
    try:
        build._library(None)
        assert os.umask(0o002) == 0o002
    finally:
        os.umask(before)
    assert build._library(None)


_SLOW = """
import sys
from pathlib import Path
from hookcli.hooks.native import build
build.SOURCES = (Path(sys.argv[1]),)
try:
    build._library(None)
except KeyboardInterrupt:
    raise SystemExit(130)
"""


def test_an_interrupt_ends_the_compiler_too(source: Callable[[str], Path], tmp_path: Path) -> None:
    """One that reaches this process alone, as from `kill` or an editor."""
    source(TRIVIAL)
    compiler = tmp_path / "slow-c++"
    waits = f"echo $$ > {tmp_path}/pid; exec sleep 600"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *-c*) {waits};; esac\nexec c++ "$@"\n')
    compiler.chmod(0o755)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "CXX": str(compiler)}
    command = [sys.executable, "-c", _SLOW, str(tmp_path / "trivial.cpp")]
    with forks.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as child:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
            assert child.poll() is None
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    assert child.returncode == 130, said
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            return
        time.sleep(0.05)
    raise AssertionError("the compiler still runs")


def test_sources_are_there_to_be_shipped() -> None:
    """Of an installed hookcli too: the wheel takes the whole package."""
    assert {source.suffix for source in build.SOURCES} == {".cpp", ".h"}
    assert all(source.is_file() for source in build.SOURCES)
