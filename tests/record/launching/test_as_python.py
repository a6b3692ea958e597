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
from support import swept

TYPICAL = {"names", "excepthook", "os._exit", "SIGINT"}
"""Scripts that differ in what they see of hookcli's frames, or in how they end."""


@pytest.mark.parametrize("name", [n if n in TYPICAL else swept(n) for n in SCRIPTS])
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


@pytest.mark.parametrize(
    ("method", "module"),
    [
        ("fork", False), swept("spawn", True), swept("spawn", False), swept("fork", True),
        swept("forkserver", False), swept("forkserver", True),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize("name", [n if n == "latin-1 without a cookie" else swept(n) for n in BYTES])
def test_a_files_encoding(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(BYTES[name])
    plain, ours = under_both("train.py", cwd=tmp_path)
    assert ours == plain


SHOW = (
    "import sys; print(sys.argv, sys.path, __file__, __name__, __package__, __cached__, type(__spec__), __loader__)\n"
)
SHOW += "print(__spec__ and (__spec__.name, __spec__.parent, __spec__.origin))\n"
SHOW = SHOW.replace("__loader__)", "type(__loader__))")


@pytest.mark.parametrize(
    ("target", "safe"),
    [
        swept("link.py", False), ("../real", True), swept("code.pyc", False), ("app.zip", False),
        swept("link.py", True), swept("../real", False), swept("./link.py", False), swept("{work}/link.py", False),
    ],
)  # fmt: skip
def test_links_folders_archives_and_byte_code(target: str, safe: bool, tmp_path: Path) -> None:
    real, work = tmp_path / "real", tmp_path / "work"
    real.mkdir()
    work.mkdir()
    (real / "__main__.py").write_text(SHOW + "1 / 0")
    (work / "link.py").symlink_to("../real/__main__.py")
    py_compile.compile(str(real / "__main__.py"), str(work / "code.pyc"))
    with zipfile.ZipFile(work / "app.zip", "w") as archive:
        archive.write(real / "__main__.py", "__main__.py")
    environment = {"PYTHONSAFEPATH": "1"} if safe else {}
    plain, ours = under_both(target.format(work=work), "--x", cwd=work, **environment)
    assert ours == plain and plain[0] == 1 and b"ZeroDivisionError" in plain[2]


def test_a_pipe_as_a_script(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, b"print(__name__, __file__)")
    os.close(write)
    ran = subprocess.run([sys.executable, "-c", OURS, f"/dev/fd/{read}"], pass_fds=[read], capture_output=True, env=ENV)
    os.close(read)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"__main__ /dev/fd/{read}\n".encode(), b"")


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("pkg.train", False), ("pkg", True), swept("pkg.fails", False), swept("pkg.broken", False),
        swept("pkg.train", True), swept("pkg", False), swept("pkg.sub.exits", False), swept("this", False),
    ],
)  # fmt: skip
def test_modules(name: str, safe: bool, tmp_path: Path) -> None:
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
    environment = {"PYTHONSAFEPATH": "1", "PYTHONPATH": f".:{ROOT}"} if safe else {}
    plain, ours = under_both("-m", name, "--x", "-m", cwd=tmp_path, **environment)
    assert ours == plain and b"No module" not in plain[2]


@pytest.mark.sweep
def test_a_module_whose_package_fails(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("import json\njson.loads('{')")
    (tmp_path / "pkg" / "train.py").write_text("")
    plain, ours = under_both("-m", "pkg.train", cwd=tmp_path)
    assert ours == plain and b"JSONDecodeError" in ours[2]
