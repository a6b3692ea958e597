"""The user's cache: right or absent whatever happens to its files, and never in the way."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
import zlib
from pathlib import Path
from types import ModuleType

import forks
import pytest

from hookcli.system.cache import Cache, imported, python_files, stamp, user_cache

ENTRY = "text \udc80 é\n" * 1000  # a name of a file may be no text


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hookcli" / "kept"


def test_it_gives_back_what_was_put_by_key(folder: Path) -> None:
    cache = Cache("kept")
    assert cache.get("a") is None and not folder.exists()
    for key, text in (("a", ENTRY), ("b", ""), ("a", "later"), ("\udc80", "odd")):
        cache.put(key, text)
        assert cache.get(key) == text
    assert cache.get("b") == "" and cache.get("c") is None
    assert len([*folder.iterdir()]) == 3


def test_keys_that_share_a_file_are_told_apart(folder: Path) -> None:
    cache = Cache("kept")
    cache.put("a", "of a")
    shutil.copy(next(folder.iterdir()), cache._path("b"))
    assert cache.get("b") is None and cache.get("a") == "of a"


def test_every_damage_makes_an_entry_absent_and_the_next_put_mends_it(folder: Path) -> None:
    cache = Cache("kept")
    cache.put("a", ENTRY)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    damaged = [whole[:length] for length in range(len(whole))]
    places = range(len(whole))
    damaged += [whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :] for at in places for bit in (0, 5)]
    for content in [*damaged, b"{}", os.urandom(500)]:
        file.write_bytes(content)
        assert cache.get("a") in (None, ENTRY)  # a bit may be one that zlib does not use
        assert len(content) >= len(whole) or cache.get("a") is None
    cache.put("a", "anew")
    assert cache.get("a") == "anew"
    file.unlink()
    file.mkdir()
    cache.put("a", "anew")
    assert cache.get("a") is None and [*folder.iterdir()] == [file]


def test_an_entry_that_others_have_made_is_neither_followed_nor_unpacked_without_end(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, mine = Cache("kept"), tmp_path / "mine"
    cache.put("a", ENTRY)
    (file,) = folder.iterdir()
    mine.write_bytes(file.read_bytes())
    for target in (mine, Path("/dev/zero")):
        file.unlink()
        file.symlink_to(target)
        assert cache.get("a") is None
        cache.put("a", "anew")
        assert cache.get("a") == "anew" and not file.is_symlink() and mine.read_bytes() != file.read_bytes()
    monkeypatch.setattr("hookcli.system.cache._LARGEST", 2**20)
    file.write_bytes(zlib.compress(b"a\0" + bytes(2**21)))
    assert cache.get("a") is None
    file.unlink()
    os.mkfifo(file)
    assert cache.get("a") is None


def test_the_least_recently_used_entries_are_deleted(folder: Path) -> None:
    cache = Cache("kept", bound=4096)
    texts = {f"{number}": os.urandom(300).hex() for number in range(30)}
    for age, (key, text) in enumerate(texts.items()):
        cache.put(key, text)
        os.utime(cache._path(key), (1000 + age, 1000 + age))
        if cache.get("0") is not None:
            os.utime(cache._path("0"), (2000 + age, 2000 + age))
        assert sum(file.stat().st_size for file in folder.iterdir()) <= 4096
    kept = [key for key, text in texts.items() if cache.get(key) == text]
    assert kept == ["0", *map(str, range(31 - len(kept), 30))] and len(kept) > 4
    cache.put("large", os.urandom(4096).hex())
    assert cache.get("large") is None and cache.get("0") == texts["0"]


def test_scratch_files_of_killed_processes_are_deleted_but_not_those_in_use(folder: Path) -> None:
    cache = Cache("kept")
    cache.put("a", "1")
    old, new = folder / ".hookcli-old", folder / ".hookcli-new"
    for file in (old, new):
        file.write_text("half")
    os.utime(old, (1, 1))
    cache.put("b", "2")
    assert not old.exists() and new.exists() and cache.get("a") == "1"


def test_a_full_disk_costs_nothing_but_time(folder: Path) -> None:
    cache, (_, most) = Cache("kept"), resource.getrlimit(resource.RLIMIT_FSIZE)
    cache.put("a", "before")
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))
    try:
        cache.put("a", "after")
        cache.put("b", "new")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert cache.get("a") == "before" and cache.get("b") is None
    assert len([*folder.iterdir()]) == 1


@pytest.mark.parametrize("place", ["/proc/none", "/dev/null", "/" + 300 * "n"])
def test_a_folder_that_cannot_be_made_costs_nothing_but_time(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    Cache("kept").put("a", "1")
    assert Cache("kept").get("a") is None


def nobody(uid: int) -> None:
    raise KeyError(uid)


@pytest.mark.parametrize("home", [None, "~", "here"])
def test_without_a_home_nothing_is_written_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the specification has us ignore
    monkeypatch.setattr("pwd.getpwuid", nobody)
    if home is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", home)
    Cache("kept").put("a", "1")
    assert Cache("kept").get("a") is None and not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("system", "given", "folder"),
    [
        ("linux", {}, "/home/me/.cache/hookcli"),
        ("linux", {"XDG_CACHE_HOME": "/fast"}, "/fast/hookcli"),
        ("darwin", {}, "/home/me/Library/Caches/hookcli"),
        ("win32", {}, "/home/me/AppData/Local/hookcli/Cache"),
        ("win32", {"LOCALAPPDATA": "/users/me/local"}, "/users/me/local/hookcli/Cache"),
    ],
)
def test_the_folder_is_the_one_that_each_system_has_for_caches(
    system: str, given: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **given}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", system)
    assert user_cache() == Path(folder)


WRITER = """
import sys
from hookcli.system.cache import Cache
cache = Cache("kept", bound=150)
for number in range(60):
    key = str(number % 7)
    text = cache.get(key)
    assert text is None or text == key * 3000 + text[-1], (key, text[:10])
    cache.put(key, key * 3000 + sys.argv[1])
"""


@pytest.mark.sweep
def test_processes_share_it(folder: Path) -> None:
    writers = [forks.Popen([sys.executable, "-c", WRITER, name]) for name in "abc"]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 150 and not [*folder.glob(".*")]
    assert 0 < sum(Cache("kept").get(str(n)) is not None for n in range(7)) < 7


def test_a_stamp_follows_every_change_of_a_file_and_no_clock(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    one, two = tmp_path / "one.py", tmp_path / "sub" / "two.py"
    one.write_text("1")
    stamps = [stamp([one, two])]
    for change in (
        lambda: two.write_text("2"),
        lambda: (two.write_text("3"), os.utime(two, (1, 1))),
        lambda: (two.write_text("4"), os.utime(two, (1, 1))),  # of the same size and time
        lambda: two.write_text(""),
        lambda: two.unlink(),
    ):
        change()
        stamps.append(stamp([one, two]))
    assert len({*stamps}) == len(stamps) - 1 and stamps[-1] == stamps[0]
    os.utime(one, (1, 1))
    assert stamp([one, two]) == stamps[0]
    two.touch()
    assert stamp([one, two]) != stamp([two, one])
    (tmp_path / "notes.txt").touch()
    assert python_files(tmp_path) == [str(one), str(two)]


def test_files_that_were_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, file = "imported_by_test_cache", tmp_path / "sub" / "mine.py"
    module = ModuleType(name)
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "odd", 3)
    assert imported([tmp_path]) is None  # deleted
    file.parent.mkdir()
    file.touch()
    assert imported([tmp_path]) is None  # edited since this process began
    monkeypatch.setattr("hookcli.system.cache._BEGUN", time.time() + 60)
    assert imported([tmp_path]) == imported([tmp_path / "sub"]) == [str(file)]
    assert imported([tmp_path / "su"]) == imported([]) == []
