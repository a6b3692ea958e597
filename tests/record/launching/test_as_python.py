"""What a script sees and how it ends, byte for byte as under the real `python`, but for addresses in memory."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
import zipfile
from pathlib import Path
from textwrap import dedent

import pytest
from record.launching.small import SCRIPTS
from record.launching.support import ENV, OURS, ROOT, under_both

LIKE_OTHERS = {
    "exit 3",
    "exit true",
    "exit -1",
    "exit 256",
    "exit float",
    "exit builtin",
    "exit tuple",
    "exit subclass",
}
LIKE_OTHERS |= {"interrupt subclass", "indentation", "imports nothing"}
"""Scripts that end as others do: `sys.exit` with a text, a huge number and nothing stays."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.sweep) if n in LIKE_OTHERS else n for n in SCRIPTS])
def test_a_script(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (tmp_path / "broken.py").write_text("x = (\n")
    (tmp_path / "train.py").write_text(dedent(SCRIPTS[name]).lstrip())
    plain, ours = under_both("../train.py", "--a", "b c", "-m", cwd=folder, stdin=b"one\ntwo\n")
    assert ours == plain


METHODS = """
import multiprocessing, sys
from dataclasses import dataclass

@dataclass
class Job:
    n: int

def work(job):
    return Job(job.n + 1), __name__, sys.argv

if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        print(pool.map(work, [Job(3)])[0])
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("module", [False, True])
def test_processes_of_multiprocessing(method: str, module: bool, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(METHODS)
    plain, ours = under_both(*(("-m", "jobs") if module else ("jobs.py",)), method, cwd=tmp_path)
    assert ours == plain and plain[0] == 0 and b"Job(n=4)" in plain[1]


BYTES = {
    "latin-1 without a cookie": b'x = 1\nx = "\xe9"\n',
    "latin-1 in a comment": b"# \xe9\nprint(1)\n",
    "latin-1 after other mistakes": b'foo bar\nx = "\xe9"\n',
    "latin-1 with a cookie": b'# -*- coding: latin-1 -*-\nprint(ascii("\xe9"))\n',
    "a mistake under a cookie": b'#!/bin/x\n# coding: latin-1\nx = "\xe9" 3\n',
    "not what the cookie says": b'# coding: utf-8\nx = "\xe9"\n',
    "not ascii": b'# coding: ascii\nx = "\xe9"\n',
    "an unknown cookie": b"# coding: nope\nprint(1)\n",
    "BOM and CRLF": b'\xef\xbb\xbfprint(1)\r\nprint("""a\r\nb""")\r\n1 / 0\r\n',
    "BOM and another cookie": b'\xef\xbb\xbf# coding: latin-1\nx = "\xe9"\n',
    "CR": b"print(1)\rfoo bar",
    "null bytes": b"x = 1\ny\0 = 2\n",
    "no newline at the end": b"if 1:\n    1 / 0",
}


TYPICAL = {"latin-1 without a cookie", "latin-1 with a cookie", "BOM and CRLF"}


@pytest.mark.parametrize("name", [n if n in TYPICAL else pytest.param(n, marks=pytest.mark.sweep) for n in BYTES])
def test_a_files_encoding(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(BYTES[name])
    plain, ours = under_both("train.py", cwd=tmp_path)
    assert ours == plain


SHOW = (
    "import sys; print(sys.argv, sys.path, __file__, __name__, __package__, __cached__, type(__spec__), __loader__)\n"
)
SHOW += "print(__spec__ and (__spec__.name, __spec__.parent, __spec__.origin))\n"
SHOW = SHOW.replace("__loader__)", "type(__loader__))")


@pytest.mark.parametrize("environment", [{}, {"PYTHONSAFEPATH": "1"}])
def test_links_folders_archives_and_byte_code(environment: dict[str, str], tmp_path: Path) -> None:
    real, work = tmp_path / "real", tmp_path / "work"
    real.mkdir()
    work.mkdir()
    (real / "__main__.py").write_text(SHOW + "1 / 0")
    (work / "link.py").symlink_to("../real/__main__.py")
    py_compile.compile(str(real / "__main__.py"), str(work / "code.pyc"))
    with zipfile.ZipFile(work / "app.zip", "w") as archive:
        archive.write(real / "__main__.py", "__main__.py")
    targets = ("link.py", "../real", "./link.py", str(work / "link.py"), "code.pyc", "app.zip")
    for target in targets[:2] if environment else targets:
        plain, ours = under_both(target, "--x", cwd=work, **environment)
        assert ours == plain and plain[0] == 1 and b"ZeroDivisionError" in plain[2]


def test_a_pipe_as_a_script(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, b"print(__name__, __file__)")
    os.close(write)
    ran = subprocess.run([sys.executable, "-c", OURS, f"/dev/fd/{read}"], pass_fds=[read], capture_output=True, env=ENV)
    os.close(read)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"__main__ /dev/fd/{read}\n".encode(), b"")


@pytest.mark.parametrize("environment", [{}, {"PYTHONSAFEPATH": "1", "PYTHONPATH": ".:{root}"}])
def test_modules(environment: dict[str, str], tmp_path: Path) -> None:
    environment = {name: value.format(root=ROOT) for name, value in environment.items()}
    package = tmp_path / "pkg"
    (package / "sub").mkdir(parents=True)
    (package / "__init__.py").write_text("import sys; print('parent', sys.argv, __name__, sys.modules['__main__'])")
    (package / "sub" / "__init__.py").write_text("")
    (package / "helper.py").write_text("value = 5")
    (package / "train.py").write_text(SHOW + "from .helper import value; from . import helper\nprint(value)")
    (package / "__main__.py").write_text(SHOW + "raise KeyboardInterrupt")
    (package / "broken.py").write_text("foo bar")
    (package / "fails.py").write_text("import sys\ndef f():\n    raise OSError('x')\nf()")
    (package / "sub" / "exits.py").write_text("import sys; sys.exit('told')")
    names = ("pkg.train", "pkg", "pkg.fails", "pkg.sub.exits", "pkg.broken", "this")
    for name in names[:2] if environment else names:
        plain, ours = under_both("-m", name, "--x", "-m", cwd=tmp_path, **environment)
        assert ours == plain, name
        assert b"No module" not in plain[2]


def test_a_module_whose_package_fails(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("import json\njson.loads('{')")
    (tmp_path / "pkg" / "train.py").write_text("")
    plain, ours = under_both("-m", "pkg.train", cwd=tmp_path)
    assert ours == plain and b"JSONDecodeError" in ours[2]
