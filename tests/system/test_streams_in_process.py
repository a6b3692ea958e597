"""Streams of a program's own process: put back, and written in whole."""

from __future__ import annotations

import json
import os
import pty
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from fork_server import ForkServer
from system.stream_kinds import COMMANDS

from hookcli.cli import main
from hookcli.system import streams
from hookcli.system.stdout import stdout_kept, write_report
from hookcli.system.streams import Descriptor

pytestmark = pytest.mark.xdist_group("streams")  # one server


# In a program's own process.


def open_files() -> dict[int, tuple[int, int]]:
    numbers = [int(path.name) for path in Path("/dev/fd").iterdir()]
    found = {}
    for number in numbers:
        try:
            found[number] = (os.fstat(number).st_dev, os.fstat(number).st_ino)
        except OSError:  # that of the listing itself
            continue
    return found


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt, SystemExit])
def test_all_is_put_back(error: type[BaseException] | None, capfd: pytest.CaptureFixture[str]) -> None:
    before = open_files(), sys.stdout, sys.stderr
    with suppress(*filter(None, [error])), stdout_kept():
        os.close(1)
        os.close(2)
        sys.stdout = sys.stderr = None  # type: ignore[assignment]
        write_report("the report\n")
        with stdout_kept():
            pass
        if error:
            raise error
    assert (open_files(), sys.stdout, sys.stderr) == before
    assert capfd.readouterr().out == "the report\n"


def test_a_report_of_a_command_in_a_command_is_no_report(capfd: pytest.CaptureFixture[str]) -> None:
    with stdout_kept():
        main(["models", "resnet18"])
    out, err = capfd.readouterr()
    assert out == "" and "quantized_resnet18" in err


def test_streams_that_are_no_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "resnet18"]) == 0 and main(["models", "resnt"]) == 2
    out, err = capsys.readouterr()
    assert "quantized_resnet18" in out and "unknown model" in err


@pytest.mark.parametrize("failing", [OSError, ValueError, AttributeError])
def test_a_stream_of_a_programs_own_that_fails(failing: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails:
        def write(self, text: str) -> int:
            raise failing

        flush = isatty = write

    monkeypatch.setattr("sys.stderr", Fails())
    assert main(["models", "resnt"]) == 2


def test_a_pipe_that_does_not_block_gets_all_of_it() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    got = bytearray()

    def read() -> None:
        while block := os.read(reader, 4096):
            got.extend(block)

    thread = threading.Thread(target=read)
    thread.start()
    Descriptor(writer, aside=False).write(b"x" * 1_000_000)
    os.close(writer)
    thread.join()
    os.close(reader)
    assert len(got) == 1_000_000


@pytest.mark.sweep
def test_a_full_stdout_costs_no_file(server: ForkServer, folder: Path) -> None:
    files = ("--report", "full.json", "--save", "full.baseline.json")
    ran = server.run(*COMMANDS["check"], *files, folder=folder, out="full", err="pipe")
    assert ran.code == 2 and "can't write the report: No space left on device" in ran.err
    assert json.loads((folder / "full.json").read_text())["reports"] and (folder / "full.baseline.json").exists()
    ran = server.run("shapes", "net.py:Net", "-i", "2x5", folder=folder, out="full", err="pipe")
    assert ran.code == 2 and "warning: can't write" in ran.err and "error: fc (Linear) failed" in ran.err


@pytest.mark.parametrize("shared", [False, True])
def test_a_remark_stands_alone_though_another_process_shows_its_status(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever that writes between two writes of ours is cleared by the one with the text."""
    monkeypatch.setattr(streams, "_shared", False)
    monkeypatch.setattr(streams, "_shown", False)
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    written: list[bytes] = []
    write = os.write
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(os, "write", lambda number, data: written.append(bytes(data)) or write(number, data))
        with streams.remarks_on(terminal):
            if shared:
                streams.share_terminal()
            streams.say("one")
            streams.say("two")
    os.close(ours)
    clear = b"\r\x1b[K" if shared else b""
    assert written == [clear + b"hookcli: one\n", clear + b"hookcli: two\n"]
