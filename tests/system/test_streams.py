"""stdout has the report and nothing else, whatever the two streams are, and remarks decide nothing."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from fork_server import KINDS, ForkServer
from support import each_once, swept
from system.stream_kinds import COMMANDS, RUNS

pytestmark = pytest.mark.xdist_group("streams")  # one server


CODES = {"ailing": 1}


SILENT = ("hooks", "package", "show", "models", "plugins", "explain")  # which run no forward


ALL = list(product(KINDS, KINDS))


# Each kind of both; errors are seen in a file and in a pipe.
EACH = [("file", "pty"), ("pipe", "closed"), ("pty", "full"), ("closed", "file"), ("full", "pipe")]
SAME = [("file", "file"), ("pipe", "pipe"), ("pty", "pty"), ("closed", "closed"), ("full", "full")]


SAID = ("print", "stderr", "a child", "C", "os.write")


def steady(text: str) -> Any:
    """The report without what differs between two runs."""
    text = text.replace("\r\n", "\n")
    if not text.startswith("{"):
        return text.split()  # a terminal wraps it
    return json.loads(re.sub(r'"(\w*seconds|us|\w*_us|began|loss_value)": [-\d.e]+', r'"\1": 0', text))


LIKE_OTHERS = ("inputs", "activations", "grads", "graph", "trace", "check", "diff", "hooks", "package")
LIKE_OTHERS += ("shapes", "models", "explain")
PAIRS = [
    *(pytest.param(n, [*EACH, *(SAME if n == "plugins" else ())], id=n) for n in COMMANDS if n not in LIKE_OTHERS),
    *(pytest.param(name, ALL, id=f"{name}, all", marks=pytest.mark.sweep) for name in COMMANDS),
]


@pytest.mark.parametrize(("name", "pairs"), PAIRS)
def test_every_pair_of_streams(server: ForkServer, folder: Path, name: str, pairs: list[tuple[str, str]]) -> None:
    whole = steady(server.run(*COMMANDS[name], folder=folder).out)
    assert whole
    for out, err in pairs:
        ran = server.run(*COMMANDS[name], folder=folder, out=out, err=err)
        where = f"{name} on {out}, {err}: {ran}"
        assert "Traceback" not in ran.err, where
        if out in ("closed", "full"):
            assert ran.code == 2, where
            assert err in ("closed", "full") or len(re.findall("hookcli: error: ", ran.err)) == 1, where
        else:
            assert ran.code == CODES.get(name, 0), where
            assert steady(ran.out) == whole, where
        if err in ("file", "pipe", "pty") and name not in SILENT and out != "closed":
            assert all(f"said by {word}" in ran.err for word in SAID) and "stream before" in ran.err, where
            assert err != "pty" or "⠋" in ran.err, where


@pytest.mark.parametrize("pairs", [EACH, swept(ALL)])
def test_the_streams_of_a_script_are_its_own(server: ForkServer, folder: Path, pairs: list[tuple[str, str]]) -> None:
    for out, err in pairs:
        ran = server.run("run", "script.py", folder=folder, out=out, err=err)
        assert ran.code == (120 if out == "full" else 0), (out, ran)  # which is Python's own
        assert ran.out.replace("\r\n", "\n") == ("" if out in ("closed", "full") else "the script\n"), (out, ran)
        assert err in ("closed", "full") or "hookcli: script.py" in ran.err


@pytest.mark.parametrize(("out", "err"), [("file", "pty"), ("closed", "pipe"), swept("pty", "full")])
def test_several_processes(server: ForkServer, folder: Path, out: str, err: str) -> None:
    ran = server.run("comm", *RUNS, "--steps", "1", folder=folder, out=out, err=err)
    if out == "closed":
        assert ran.code == 2 and ran.err.count("stdout is closed") == 1 and len(ran.err.splitlines()) == 1
    else:
        assert ran.code == 0 and steady(ran.out)["reports"][0]["probe"] == "comm", ran


@pytest.mark.parametrize(("out", "make"), each_once(["file", "pty"], ["closes", "replaces", "leaves"]))
def test_a_model_may_do_what_it_likes_to_its_streams(server: ForkServer, folder: Path, make: str, out: str) -> None:
    ran = server.run("shapes", f"net.py:{make}", *RUNS[1:], folder=folder, out=out, err="pipe")
    assert ran.code == 0 and steady(ran.out)["reports"][0]["rows"], ran
    assert make != "leaves" or "said at exit" in ran.err


@pytest.mark.parametrize("make", ["closes", "replaces"])
def test_an_error_is_told_all_the_same(server: ForkServer, folder: Path, make: str) -> None:
    ran = server.run("shapes", f"net.py:{make}", "-i", "2x5", folder=folder)
    assert ran.code == 2 and "hookcli: error: the model (Linear) failed" in ran.err


@pytest.mark.parametrize("command", [("models",), *map(swept, [("--help",), ("shapes", "--help"), ("--version",)]), ()])
def test_a_reader_that_has_gone_and_streams_that_take_nothing(server: ForkServer, folder: Path, command: Any) -> None:
    gone = server.run(*command, folder=folder, out="broken")
    assert (gone.code, gone.err) == (0, "")
    for out in ("closed", "full"):
        ran = server.run(*command, folder=folder, out=out, err="pipe")
        assert ran.code == 2 and re.fullmatch("hookcli: error: .*\n", ran.err), ran
    assert server.run(*command, folder=folder, err="broken").code == 0


@pytest.mark.parametrize("kind", [swept("file"), "closed", swept("full")])
def test_all_of_pythons_end(server: ForkServer, folder: Path, kind: str) -> None:
    for command in (COMMANDS["ailing"], ("shapes", "net.py:leaves", *RUNS[1:])):
        ran = server.run(*command, folder=folder, err=kind, whole=True)
        assert ran.code == (1 if command[0] == "check" else 0) and steady(ran.out)["reports"], ran


def test_a_record_is_no_standard_stream_of_the_script(server: ForkServer, folder: Path) -> None:
    """A file that is opened where stderr is closed gets its number."""
    (folder / "trains.py").write_text(
        "import os, torch\nfrom contextlib import suppress\nnet = torch.nn.Linear(2, 2)\n"
        "for _ in range(3):\n    net(torch.ones(1, 2)).sum().backward()\n"
        "    for number in (1, 2):\n        with suppress(OSError):\n            os.write(number, b'junk')\n"
    )
    ran = server.run("run", "-o", "closed.jsonl", "trains.py", folder=folder, out="closed", err="closed")
    lines = [json.loads(line) for line in (folder / "closed.jsonl").read_text().splitlines()]
    assert ran.code == 0 and lines[0]["line"] == "run" and lines[-1]["line"] == "end"
