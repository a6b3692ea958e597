"""One way to open a file that others may have made: regular, bounded, without waiting, no link out of its folder."""

from __future__ import annotations

import ast
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
from parsed import nodes

import hookcli
from hookcli.system import files
from hookcli.system.files import at_rest, content, member, opened, regular, replacing, unzipped

PACKAGE = Path(hookcli.__file__).parent
# Calls that read a file, or unpack what one held: whatever is called so, of whichever module.
READ = {"read_text", "read_bytes", "fromfile", "memmap", "genfromtxt", "loadtxt", "getlines", "getline"}
READ |= {"decompress", "decompressobj", "open_code", "FileIO", "fdopen", "run_path", "copyfile"}
# Of libraries, which take the file, or the path that `regular` has looked at.
HANDED = {"safe_open", "load_file", "PackageImporter", "ZipFile", "is_zipfile", "mmap"}
HANDED |= {f"{library}.load" for library in ("torch", "np", "export", "json", "tomllib", "pickle")}
HANDED |= {f"{library}.open" for library in ("Image", "tokenize", "gzip", "bz2", "lzma", "codecs", "io", "wave")}
ALLOWED = {
    ("system/files.py", "open"): "the one way itself",
    ("system/files.py", "decompressobj"): "the one way itself",
    ("system/files.py", "decompress"): "the one way itself",
    ("system/files.py", "os.open"): "the one way itself",
    ("hooks/compilations.py", "linecache.getline"): "a line of code that Python has loaded",
    ("reporters/html/scripts.py", "read_text"): "a part of the package, which may lie in a zip file",
    ("hooks/program/global_hooks.py", "mmap"): "memory without a file",
    ("record/record_sink.py", "self.open"): "opens what it writes",
    ("record/model_recording.py", "_sink.open"): "opens what it writes",
    ("commands/report_file.py", "webbrowser.open"): "an address",
    ("sources/exported.py", "export.load"): "a checked copy, or a regular file that the user trusts",
    ("sources/plain_program.py", "zipfile.ZipFile"): "writes the copy",
}


def called(call: ast.Call) -> str:
    """The name of what is called, with the name before it."""
    return ".".join(ast.unparse(call.func).split(".")[-2:])


def writes(call: ast.Call) -> bool:
    """True for an `open` that says so by its mode or flags."""
    words = ast.unparse(ast.Tuple([*call.args, *(each.value for each in call.keywords)], ast.Load()))
    return any(f"'{mode}'" in words for mode in ("wb", "w", "a", "ab", "xb", "x")) or "O_WRONLY" in words


def is_checked(call: ast.Call, bound: set[str]) -> bool:
    """True for a call on a file that the one way has opened, or a path that it has looked at."""
    if not call.args:
        return False
    first = call.args[0]
    if isinstance(first, ast.Call):
        return called(first).split(".")[-1] in ("regular", "opened", "fileno")
    return isinstance(first, ast.Name) and first.id in bound


def opened_elsewise(source: str, place: str) -> Iterator[str]:
    items = (item for node in nodes(source) if isinstance(node, ast.With) for item in node.items)
    bound = {
        item.optional_vars.id
        for item in items
        if isinstance(item.context_expr, ast.Call)
        and isinstance(item.optional_vars, ast.Name)
        and called(item.context_expr).split(".")[-1] in ("opened", "open_unbuffered")
    }
    for call in (node for node in nodes(source) if isinstance(node, ast.Call)):
        name = called(call)
        last = name.split(".")[-1]
        on_path = last == "open" and name not in HANDED and all(isinstance(each, ast.Constant) for each in call.args)
        plain = name in ("open", "os.open") or (last == "open" and "Path(" in ast.unparse(call.func)) or on_path
        wrong = last in READ or (plain and "devnull" not in ast.unparse(call) and not writes(call))
        wrong |= (last in HANDED or name in HANDED) and not is_checked(call, bound)
        if wrong and (place, name) not in ALLOWED and (place, last) not in ALLOWED:
            yield f"{place}:{call.lineno} {ast.unparse(call)[:70]}"


@pytest.mark.xdist_group("sources")
@pytest.mark.usefixtures("uncollected")
def test_no_file_is_opened_in_another_way() -> None:
    paths = sorted(PACKAGE.rglob("*.py"))
    found = [each for path in paths for each in opened_elsewise(path.read_text(), str(path.relative_to(PACKAGE)))]
    assert len(paths) > 100 and not found


@pytest.mark.parametrize(
    "line",
    [
        *(
            "open(p)",
            "p.open()",
            "p.open('rb')",
            "Path(p).open()",
            "p.read_text()",
            "Path(p).read_bytes()",
            "io.open(p)",
        ),
        *(
            "os.open(p, os.O_RDONLY)",
            "np.load(p)",
            "torch.load(p)",
            "zlib.decompress(b)",
            "gzip.open(p)",
            "json.load(f)",
        ),
        *("zipfile.ZipFile(p)", "safe_open(p)", "Image.open(p)", "tomllib.load(p.open('rb'))", "tokenize.open(p)"),
    ],
)
def test_that_test_finds(line: str) -> None:
    assert [*opened_elsewise(line, "a.py")], line


# Kinds of files.


@pytest.fixture
def odd(tmp_path: Path) -> dict[str, Path]:
    """Names of things that are not files, and of links to them."""
    os.mkfifo(tmp_path / "fifo")
    found = {"a device": Path("/dev/zero"), "a pipe": tmp_path / "fifo", "a folder": tmp_path}
    for kind, path in [*found.items()]:
        link = tmp_path / f"link to {kind}"
        link.symlink_to(path)
        found[f"{kind} "] = link
    return found


def test_only_regular_files_are_opened_and_nothing_waits(odd: dict[str, Path], tmp_path: Path) -> None:
    begin = time.monotonic()
    for kind, path in odd.items():
        for way in (opened, regular):
            with pytest.raises(OSError, match=f"{kind.strip()}, not a file"):
                way(path)
    for name in ("a\0b", "x" * 300, "gone", "\ud800"):
        with pytest.raises(OSError, match=r"name|too long|No such"):
            content(tmp_path / name)
    assert time.monotonic() - begin < 5
    (tmp_path / "a").write_bytes(b"here")
    (tmp_path / "b").symlink_to("a")  # which the user names
    assert content(tmp_path / "b") == b"here" and opened(tmp_path / "b").read(2) == b"he"


def test_no_link_leads_out_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(b"s")
    (folder / "own").write_bytes(b"o")
    (tmp_path / "alias").symlink_to(folder)  # of the folder, which the user may name so
    for name, target in (("out", "../secret"), ("far", tmp_path / "secret"), ("chain", "out"), ("in", "own")):
        (folder / name).symlink_to(target)
    for within in (folder, tmp_path / "alias"):
        assert content(within / "in", within=within) == content(within / "own", within=within) == b"o"
        for path in (within / "out", within / "far", within / "chain", within / "../secret"):
            with pytest.raises(OSError, match="leads out of"):
                content(path, within=within)


def test_what_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_LARGEST_PIPE", 3)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    bomb = zlib.compress(bytes(2**24))
    with ZipFile(tmp_path / "bomb.zip", "w", ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(2**24))
    calls: list[Callable[[], Any]] = [lambda: content(tmp_path / "sparse", 2**21), lambda: unzipped(bomb, 2**20)]
    with ZipFile(tmp_path / "bomb.zip") as archive:
        calls.append(lambda: member(archive, "a", 2**20))
        for call in calls:
            with pytest.raises((OSError, ValueError), match="large"):
                call()
        assert len(member(archive, "a")) == len(unzipped(bomb)) == 2**24
    assert content(tmp_path / "bomb.zip", (tmp_path / "bomb.zip").stat().st_size)


# Pipes, which only the user names.


def fed(path: Path, *blocks: bytes, after: float = 0.0) -> threading.Thread:
    def write() -> None:
        time.sleep(after)
        with path.open("wb", buffering=0) as file:
            for block in blocks:
                file.write(block)
                time.sleep(0.05)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


def test_a_pipe_is_read_to_its_end_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    large = bytes(2**17)  # more than a pipe holds
    for after in (0.0, 0.3):
        writer = fed(fifo, b"a", large, b"b", after=after)
        assert content(fifo) == b"a" + large + b"b"
        writer.join()
    writer = fed(fifo, b"abc")
    with at_rest(fifo) as copy:
        assert content(copy) == content(copy) == b"abc"
    writer.join()
    monkeypatch.setattr(files, "_PATIENCE", 0.2)
    with pytest.raises(OSError, match="no program writes to"):
        content(fifo)
    read, write = os.pipe()
    os.write(write, b"c")
    os.close(write)
    assert content(f"/dev/fd/{read}") == b"c" and content(f"/dev/fd/{read}") == b""
    os.close(read)


# What is written.


def test_a_link_is_replaced_where_it_may_not_be_written_through(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    for target in (tmp_path / "mine", Path("/dev/null")):
        link = tmp_path / "entry"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        with replacing(link, output=False) as scratch:
            scratch.write_text("new")
        assert not link.is_symlink() and link.read_text() == "new"
    assert (tmp_path / "mine").read_text() == "mine"
