"""stdout has the report and nothing else, whatever the two streams are, and remarks decide nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fork_server import KINDS, ForkServer

NET = '''
import ctypes, os, sys, time
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        time.sleep(0.03)  # the spinner is there by now
        print("said by print")
        print("said by stderr", file=sys.stderr) if sys.stderr else None
        sys.__stdout__ and sys.__stdout__.write("said to the stream before\\n")
        os.system("echo said by a child 2>&-")
        ctypes.CDLL(None).printf(b"said by C\\n")
        try:
            os.write(1, b"said by os.write\\n")
        except OSError:
            pass
        return self.fc(x)

class Ailing(Net):
    def forward(self, x):
        return super().forward(x) * float("nan")

def closes():
    os.close(1)
    return nn.Linear(4, 3)

def replaces():
    sys.stdout = sys.stderr = open(os.devnull, "w")
    return nn.Linear(4, 3)

def leaves():
    import atexit
    atexit.register(print, "said at exit")
    return Net()
'''
RUNS = ("net.py:Net", "-i", "2x4", "-f", "json")
COMMANDS: dict[str, tuple[str, ...]] = {
    **{name: (name, *RUNS) for name in ("shapes", "inputs", "activations", "grads", "graph", "trace", "check")},
    "ailing": ("check", "net.py:Ailing", *RUNS[1:]),
    "diff": ("diff", "net.py:Net", *RUNS),
    "hooks": ("hooks", "net.py:Net", "-f", "json"),
    "package": ("package", "net.py:Net", "--extern", "**", "-f", "json"),
    "show": ("show", "saved.json", "-f", "json"),
    "models": ("models", "resnet", "-f", "json"),
    "plugins": ("plugins", "-f", "json"),
    "explain": ("explain", "HK012"),
}
CODES = {"ailing": 1}
SILENT = ("hooks", "package", "show", "models", "plugins", "explain")  # which run no forward
SAID = ("print", "stderr", "a child", "C", "os.write")


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, server: ForkServer) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    (folder / "net.py").write_text(NET)
    (folder / "script.py").write_text("print('the script')\n")
    (folder / "saved.json").write_text(server.run(*COMMANDS["shapes"], folder=folder).out)
    return folder


def steady(text: str) -> Any:
    """The report without what differs between two runs."""
    text = text.replace("\r\n", "\n")
    if not text.startswith("{"):
        return text.split()  # a terminal wraps it
    return json.loads(re.sub(r'"(\w*seconds|us|\w*_us|began|loss_value)": [-\d.e]+', r'"\1": 0', text))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_pair_of_streams(server: ForkServer, folder: Path, name: str) -> None:
    whole = steady(server.run(*COMMANDS[name], folder=folder).out)
    assert whole
    for out in KINDS:
        for err in KINDS:
            ran = server.run(*COMMANDS[name], folder=folder, out=out, err=err)
            where = f"{name} on {out}, {err}: {ran}"
            if out in ("closed", "full"):
                assert ran.code == 2, where
                assert err in ("closed", "full") or len(re.findall("hookcli: error: ", ran.err)) == 1, where
            else:
                assert ran.code == CODES.get(name, 0), where
                assert steady(ran.out) == whole, where
            assert "Traceback" not in ran.err, where
            if err == "pty" and name not in SILENT and out != "closed":
                assert "⠋" in ran.err, where
            if err in ("file", "pipe", "pty") and name not in SILENT and out != "closed":
                assert all(f"said by {word}" in ran.err for word in SAID) and "stream before" in ran.err, where


@pytest.mark.parametrize("err", KINDS)
def test_the_streams_of_a_script_are_its_own(server: ForkServer, folder: Path, err: str) -> None:
    for out in KINDS:
        ran = server.run("run", "script.py", folder=folder, out=out, err=err)
        assert ran.code == (120 if out == "full" else 0), (out, ran)  # which is Python's own
        assert ran.out.replace("\r\n", "\n") == ("" if out in ("closed", "full") else "the script\n"), (out, ran)
        assert err in ("closed", "full") or "hookcli: script.py" in ran.err


@pytest.mark.parametrize(("out", "err"), [("file", "pty"), ("closed", "pipe"), ("pty", "full")])
def test_several_processes(server: ForkServer, folder: Path, out: str, err: str) -> None:
    ran = server.run("comm", *RUNS, "--steps", "1", folder=folder, out=out, err=err)
    if out == "closed":
        assert ran.code == 2 and ran.err.count("stdout is closed") == 1 and len(ran.err.splitlines()) == 1
    else:
        assert ran.code == 0 and steady(ran.out)["reports"][0]["probe"] == "comm", ran


@pytest.mark.parametrize("out", ["file", "pty"])
@pytest.mark.parametrize("make", ["closes", "replaces", "leaves"])
def test_a_model_may_do_what_it_likes_to_its_streams(server: ForkServer, folder: Path, make: str, out: str) -> None:
    ran = server.run("shapes", f"net.py:{make}", *RUNS[1:], folder=folder, out=out, err="pipe")
    assert ran.code == 0 and steady(ran.out)["reports"][0]["rows"], ran
    assert make != "leaves" or "said at exit" in ran.err


@pytest.mark.parametrize("make", ["closes", "replaces"])
def test_an_error_is_told_all_the_same(server: ForkServer, folder: Path, make: str) -> None:
    ran = server.run("shapes", f"net.py:{make}", "-i", "2x5", folder=folder)
    assert ran.code == 2 and "hookcli: error: the model (Linear) failed" in ran.err


@pytest.mark.parametrize("command", [("models",), ("--help",), ("shapes", "--help"), ("--version",), ()])
def test_a_reader_that_has_gone_and_streams_that_take_nothing(server: ForkServer, folder: Path, command: Any) -> None:
    gone = server.run(*command, folder=folder, out="broken")
    assert (gone.code, gone.err) == (0, "")
    for out in ("closed", "full"):
        ran = server.run(*command, folder=folder, out=out, err="pipe")
        assert ran.code == 2 and re.fullmatch("hookcli: error: .*\n", ran.err), ran
    assert server.run(*command, folder=folder, err="broken").code == 0
