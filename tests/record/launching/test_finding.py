"""What can't be run is said in a line, with what was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from record.launching.support import under_both

from hookcli.errors import UsageError
from hookcli.record.launching.finding import find


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a script and packages, of which nothing but packages may run while one is looked for."""
    files = ("train.py", "lib/__init__.py", "lib/fit.py", "app/__init__.py", "app/__main__.py", "data/notes.txt")
    for name in files:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("" if path.name == "__init__.py" else "raise AssertionError('it ran')")
    (tmp_path / "old.pyc").write_bytes(b"\x00" * 32)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("target", "module", "said"),
    [
        ("trian.py", False, "no script 'trian.py'; did you mean train.py?"),
        ("train", False, "no script or command 'train'; did you mean train.py?"),
        ("lib.fit", False, "no script 'lib.fit'; did you mean the module, -m lib.fit?"),
        ("lib/ft.py", False, "no script 'lib/ft.py'; did you mean lib/fit.py?"),
        ("zzz.py", False, "no script 'zzz.py'"),
        ("", False, "'' has no __main__.py to run; scripts in the folder: train.py"),
        ("nowhere/train.py", False, "no script 'nowhere/train.py' (there is no folder 'nowhere')"),
        ("lib", False, "'lib' has no __main__.py to run; scripts in the folder: __init__.py, fit.py"),
        ("data", False, "'data' has no __main__.py to run"),
        ("old.pyc", False, "'old.pyc' was compiled by a Python other than this"),
        ("lib.fti", True, "no module 'lib.fti'; did you mean lib.fit?"),
        ("trian", True, "no module 'trian'; did you mean train?"),
        ("train.py", True, "no module 'train.py': give 'train', or the file without -m"),
        ("lib", True, "'lib' is a package without a __main__; modules in it: lib.fit"),
        ("zzz.train", True, "no module 'zzz.train' (looked in the working directory and on sys.path)"),
        ("train.x", True, "no module 'train.x' (looked in the working directory and on sys.path)"),
        (".train", True, "'.train' is not a module name; give package.module with -m"),
        ("__main__", True, "no module '__main__'"),
    ],
)
def test_what_cannot_be_run(target: str, module: bool, said: str, folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        find(target, [], module)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("target", "module", "name", "stem"),
    [
        ("train.py", False, "train.py", "train"),
        ("lib/../train.py", False, "train.py", "train"),
        ("app/", False, "app", "app"),
        ("lib.fit", True, "lib.fit", "lib.fit"),
        ("app", True, "app", "app"),
        ("train", True, "train", "train"),
    ],
)
def test_what_can_is_named_and_not_run(target: str, module: bool, name: str, stem: str, folder: Path) -> None:
    script = find(target, [], module)
    assert (script.name, script.stem) == (name, stem)


def test_python_takes_no_script_for_an_option(folder: Path) -> None:
    (folder / "-c train.py").touch()
    assert find("-c train.py", [], False).argv[-1] == "./-c train.py"


def test_a_script_that_may_not_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("hookcli.record.launching.finding.opened", refused)  # tests may run as root, who may read all
    with pytest.raises(UsageError, match=r"can't read the script 'train.py': Permission denied"):
        find("train.py", [], module=False)


@pytest.mark.sweep
def test_a_package_that_changes_where_its_modules_are(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "far.py").write_text("print(__name__, __file__)")
    (folder / "wide").mkdir()
    (folder / "falls").mkdir()
    (folder / "falls" / "__init__.py").write_text("1 / 0; __path__")
    (folder / "wide" / "__init__.py").write_text("__path__.append('elsewhere')")
    plain, ours = under_both("-m", "wide.far", cwd=folder)
    assert ours == plain and plain[:2] == (0, f"__main__ {folder / 'elsewhere' / 'far.py'}\n".encode())
    plain, ours = under_both("-m", "falls.far", cwd=folder)
    assert ours == plain and plain[0] == 1 and b"ZeroDivisionError" in plain[2]
    plain, ours = under_both("-m", "wide.near", cwd=folder)  # perhaps the package moves its modules: Python says it
    assert ours == plain and b"No module named wide.near" in ours[2]
