"""`hookcli report RECORD --serve` answers this machine alone, and keeps up with a record that grows."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import forks
import paged
import pytest
from records import HEADER, bad, end, recorded_step

from hookcli.commands import report_serve
from hookcli.record.file.writer import RecordWriter


class Served:
    """A server of a record, with what it says on stderr."""

    def __init__(self, path: Path, *more: str) -> None:
        command = [sys.executable, "-m", "hookcli", "report", str(path), "--serve", *more]
        self.process = forks.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.said: str = self.process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/ \(Ctrl-C ends it\)", self.said)
        assert found, self.said
        self.port = int(found[1])

    def get(self, path: str, method: str = "GET", host: str | None = None) -> tuple[HTTPResponse, str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path, headers={"Host": host or f"127.0.0.1:{self.port}"})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer, text

    def news(self, have: str) -> tuple[int, dict[str, Any]]:
        answer, text = self.get(f"/steps?have={have}")
        return answer.status, json.loads(text) if text else {}

    def page(self) -> dict[str, Any]:
        return paged.payload(self.get("/")[1])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.run.jsonl"


@pytest.fixture
def served(path: Path) -> Iterator[Served]:
    """A server of a record that does not exist yet."""
    server = Served(path)
    assert "the record does not exist yet" in server.said
    yield server
    server.process.send_signal(signal.SIGINT)
    out, err = server.process.communicate(timeout=120)
    assert (server.process.returncode, out, err) == (130, "", "hookcli: interrupted\n")


def test_the_page_gets_new_steps_and_is_loaded_anew_for_a_new_run(served: Served, path: Path) -> None:
    assert served.page()["steps"]["tracks"] == []
    begun = served.page()["live"]["version"]
    writer = RecordWriter(path).begun(HEADER)
    writer.write(recorded_step(0))
    assert served.news(begun)[0] == 205  # the record is there: the page is another
    page = served.page()
    assert page["title"] == "train.py" and page["steps"]["tracks"][0]["steps"] == [0]
    version = page["live"]["version"]
    assert served.news(version) == (204, {})
    for line in (recorded_step(100, std=3.0), bad(100), recorded_step(100, phase="no_grad", forward=0)):
        writer.write(line)
    status, news = served.news(version)
    train, other = news["steps"]["tracks"]
    assert (status, train["since"], train["steps"], other["since"]) == (200, 1, [0, 100], 0)
    assert paged.matrices(train)["std"]["", ""] == [3.0] and news["steps"]["non_finite"][0]["fqn"] == "body.1"
    assert {report["meta"].get("step") for report in news["reports"]} >= {100}
    assert served.news(news["version"]) == (204, {})
    writer.write(end())
    status, news = served.news(news["version"])
    assert status == 200 and dict(news["steps"]["facts"])["Ended"] == "exit code 0"
    writer.close()
    RecordWriter(path).begun(HEADER).close()
    assert served.news(news["version"])[0] == 205


def test_a_record_that_becomes_a_link_to_a_device_is_an_answer(served: Served, path: Path) -> None:
    RecordWriter(path).begun(HEADER).close()
    version = served.page()["live"]["version"]
    for kind, target in (("a device", "/dev/zero"), ("a pipe", path.with_name("fifo"))):
        if kind == "a pipe":
            os.mkfifo(target)
        path.unlink()
        path.symlink_to(target)
        answer, text = served.get(f"/steps?have={version}")
        assert answer.status == 500 and f"can't be read as a record ({kind}, not a file)" in text


def test_only_two_paths_one_method_and_this_machine_are_answered(served: Served) -> None:
    answer, text = served.get("/")
    assert answer.status == 200 and "connect-src 'self'" in text and answer.headers["Cache-Control"] == "no-store"
    for path in ("/etc/passwd", "/../a.run.jsonl", "/index.html", "/steps/"):
        assert served.get(path)[0].status == 404, path
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        assert served.get("/", method)[0].status == 501
    for host in ("evil.example", f"evil.example:{served.port}", "127.0.0.1", f"127.0.0.1:{served.port}.evil.example"):
        answer, text = served.get("/", host=host)
        assert answer.status == 421 and "script" not in text
    assert served.get("/", host=f"localhost:{served.port}")[0].status == 200
    for odd in ("", "x", "1", "1.x", "1.1.-1", "1.2." + "9" * 30, "%00", "%ff", "[", "1" * 9000):
        assert served.get(f"/steps?have={odd}")[0].status == 400, odd[:99]
    for other in ("9.1.1", "0.0.1", "0.999999999.999999999.9.9.9", "0.0" + ".1" * 5000):
        assert served.get(f"/steps?have={other}")[0].status == 205, other[:99]
    assert served.get("//[")[0].status == 404
    addresses = {
        line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if line.split()[3] == "0A"
    }
    assert f"0100007F:{served.port:04X}" in addresses and f"00000000:{served.port:04X}" not in addresses


def test_a_port_in_use_is_an_error(path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "hookcli", "report", str(path), "--serve", "--port", port]
        ran = forks.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2 and len(ran.stderr.splitlines()) == 1
    assert f"--port {port}: is in use by another program; name another one, or leave it out" in ran.stderr


def test_half_open_connections_are_bounded_and_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_serve, "_MOST_THREADS", 2)
    with closing(report_serve.LivePage(path)) as live, report_serve.PageServer(None) as server:
        server.live = live
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            clients = [socket.create_connection(server.server_address) for _ in range(5)]
            for refused in clients[2:]:
                refused.settimeout(60)
                assert refused.recv(1) == b""
            for client in clients:
                client.close()
        finally:
            server.shutdown()
            thread.join()
    assert report_serve._Handler.timeout is not None  # then a connection without a word is closed
