"""What a program can see of hookcli, and whom its `sitecustomize` hands on to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest
from record.launching.support import ADDRESS, ENV, OURS, ROOT, under_both
from support import swept

from hookcli.record.launching.finding import why_unseen

SEEN = """
    import os, sys, threading, gc
    before = sorted(name for name in sys.modules if name not in ("atexit", "threading"))
    print(before, sys.path, sys.meta_path, sys.path_hooks, sorted(sys.path_importer_cache), sys.flags)
    print("sitecustomize" in sys.modules, sys.excepthook, sys.stdout, sys.argv, sys.orig_argv, gc.callbacks)
    print(len(threading.enumerate()), sys.getrecursionlimit(), sys._getframe().f_back, sys.exit, sys.gettrace())
    print({name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HOOKCLI_RUN")})
    """


@pytest.mark.parametrize("path", [swept(""), swept(str(ROOT)), f"lib{os.pathsep}{ROOT}"])
def test_a_program_sees_two_environment_variables(path: str, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "train.py").write_text(dedent(SEEN))
    # Twice: what Python has compiled is cached after the first run.
    for _ in range(2):
        plain, ours = under_both("train.py", cwd=tmp_path, PYTHONPATH=path) if path else both_without(tmp_path)
        assert ours == plain and plain[0] == 0


def both_without(folder: Path) -> list[tuple[int, bytes, bytes]]:
    """Without PYTHONPATH, where hookcli has to find itself."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ours = f"import sys; sys.path.append({str(ROOT)!r})\n{OURS}"
    commands = ([sys.executable, "train.py"], [sys.executable, "-c", ours, "train.py"])
    ran = [subprocess.run(command, cwd=folder, env=environment, capture_output=True) for command in commands]
    return [(one.returncode, ADDRESS.sub(b" at 0x", one.stdout), one.stderr) for one in ran]


SITES = {
    "own": "import sys; sys.mine = __name__, __file__, sys.modules[__name__].__name__",
    "fails": "1 / 0",
    "imports what is missing": "import nothing_of_that_name",
    "exits": "import sys; sys.exit(3)",
    "asks for torch": "from importlib.util import find_spec; import sys; sys.mine = find_spec('torch').loader.name",
}


@pytest.mark.parametrize("name", [n if n == "own" else swept(n) for n in SITES])
def test_the_users_own_sitecustomize(name: str, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITES[name])
    (tmp_path / "train.py").write_text(
        "import sys\nprint(getattr(sys, 'mine', None), sys.modules.get('sitecustomize'))\nimport sitecustomize"
    )
    (code, out, err), ours = under_both("train.py", cwd=tmp_path, PYTHONPATH=f"{tmp_path / 'site'}{os.pathsep}{ROOT}")
    once = err[: err.find(b"Traceback")] if b"Error in sitecustomize" in err else b""  # by the Python of hookcli
    assert ours == (code, out, once + err)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("python3 -I train.py", "-I"), ("env A=1 B=2 python3 -Iu train.py", "-I"), ("env -i python3 -E -m jobs", "-E"),
        ("python3 train.py -I", ""), ("env A=-I python3 train.py", ""), ("env", ""), ("true -I", ""),
    ],
)  # fmt: skip
def test_the_option_that_keeps_hookcli_out_is_found(command: str, option: str) -> None:
    found = why_unseen(command.split())
    assert found.startswith(f"python3 {option} ") if option else found == ""


def test_pythonpath_without_the_other_variable(tmp_path: Path) -> None:
    """As `mpirun -x PYTHONPATH` starts its processes: nothing is recorded, and nothing else differs."""
    (tmp_path / "sitecustomize.py").write_text(SITES["own"])
    folder = ROOT / "hookcli" / "record" / "launching" / "bootstrap"
    code = "import sys; print(sys.mine, sys.path, sorted(sys.path_importer_cache), 'atexit' in sys.modules)"
    environment = {name: value for name, value in ENV.items() if name != "HOOKCLI_RUN"}
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=environment | {"PYTHONPATH": os.pathsep.join(map(str, folders))},
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        for folders in ((tmp_path,), (folder, tmp_path))
    ]
    assert said[0] == said[1] and b"'sitecustomize'" in said[0]


TORCHES = {
    "whole": "value = 1",
    "fails": "import json\ndef f():\n    raise OSError('no such library')\nf()",
    "has no json": "import json; json.no",
}
IMPORTS = """
    import sys
    try:
        import torch
        print(torch.value, type(torch.__spec__.loader), torch.__loader__ is torch.__spec__.loader)
        print([name for name in vars(torch.__loader__)], sys.meta_path[0])
        print(sys.__spec__.loader.__dict__["find_spec"])  # as before, once torch is there
    except AttributeError as error:
        print(error)
    import json
    print(json.__file__)
    """


@pytest.mark.parametrize("name", [n if n == "fails" else swept(n) for n in TORCHES])
def test_the_import_of_torch(name: str, tmp_path: Path) -> None:
    """A torch that can't be imported raises as ever, without a frame of hookcli's; `hookcli` records what it can."""
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "torch.py").write_text(TORCHES[name])
    (tmp_path / "train.py").write_text(dedent(IMPORTS))
    plain, ours = under_both("train.py", cwd=tmp_path, PYTHONPATH=f"{folder}{os.pathsep}{ROOT}")
    code, out, err = ours
    said = [line for line in err.splitlines(keepends=True) if not line.startswith(b"hookcli: ")]
    assert (code, out, b"".join(said)) == plain


def test_a_script_beside_modules_that_python_has_not_imported_yet(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for module in ("json", "typing", "dataclasses", "threading", "contextlib", "multiprocessing"):
        (tmp_path / "sub" / f"{module}.py").write_text("print('mine', __name__)")
    (tmp_path / "sub" / "train.py").write_text("import json, dataclasses, threading\nprint(json.__file__)")
    plain, ours = under_both("sub/train.py", cwd=tmp_path)
    assert ours[:2] == plain[:2] and b"mine json" in plain[1]


def test_a_terminal_is_the_scripts(tmp_path: Path) -> None:
    """An interactive stdin, the group in the foreground, and Ctrl-C from the terminal."""
    import pty

    (tmp_path / "train.py").write_text(
        "import os, sys\nprint(sys.stdin.isatty(), os.tcgetpgrp(0) == os.getpgrp(), os.getpid())\n"
        "print(input('name? '))\ninput()\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # also where pytest's own parent ignores it
        os.execve(sys.executable, [sys.executable, "-m", "hookcli", "run", "-q", "train.py"], ENV)
    seen = b""
    while b"name? " not in seen:
        seen += os.read(terminal, 1024)
    assert f"True True {pid}".encode() in seen
    os.write(terminal, b"Ada\n")
    while b"Ada\r\nAda" not in seen:
        seen += os.read(terminal, 1024)
    # An interrupt between `print` and what `input` reads would be noted, and raised only after the next line.
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.001)
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGINT
    os.close(terminal)
