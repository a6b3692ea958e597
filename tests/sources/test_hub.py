"""Models of Transformers whose configuration lies on a hub: a server of the test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from sources.test_huggingface import TINY

from hookcli.errors import UsageError
from hookcli.sources.base import InputSpec
from hookcli.sources.finding import find_recipe


class _Hub(BaseHTTPRequestHandler):
    """A hub with one public model, a gated one, and no others."""

    def do_HEAD(self) -> None:
        self._answer(False)

    def do_GET(self) -> None:
        self._answer(True)

    def _answer(self, whole: bool) -> None:
        body = json.dumps({"model_type": "bert", **TINY}).encode()
        missing, gated = "absent" in self.path, "gated" in self.path
        self.send_response(401 if missing else 403 if gated else 200)
        for name, value in {
            "X-Error-Code": "RepoNotFound" if missing else "GatedRepo" if gated else "",
            "X-Repo-Commit": "c" * 40,
            "ETag": '"e"',
            "Content-Length": str(0 if missing or gated else len(body)),
        }.items():
            self.send_header(name, value) if value else None
        self.end_headers()
        if whole and not (missing or gated):
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # as tests of callbacks set it
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    yield server
    server.shutdown()
    server.server_close()


def test_a_name_on_the_hub_gives_its_configuration_alone(hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    recipe = find_recipe("hf:someone/public")
    assert recipe.inputs == (InputSpec((1, 128), torch.int64, 50),)
    assert [file.name for file in (tmp_path / "hub").rglob("snapshots/*/*")] == ["config.json"]
    with pytest.raises(UsageError, match=r"gated: accept its terms at https://huggingface.co/someone/gated and log in"):
        find_recipe("hf:someone/gated")
    with pytest.raises(UsageError, match=r"neither a folder with a config.json nor a public name"):
        find_recipe("hf:someone/absent")
    hub.shutdown()
    hub.server_close()
    assert find_recipe("hf:someone/public").inputs  # from the cache
    with pytest.raises(UsageError, match=r"can't be reached .*only local folders and names in the hub's cache work"):
        find_recipe("hf:someone/other")
    with pytest.raises(
        UsageError, match=r"^hf:berrt: unknown type 'berrt'; did you mean bert.*\n  no such folder here"
    ):
        find_recipe("hf:berrt")
    for name, kind in (
        ("bert-base-uncased", "bert"),
        ("someone/Qwen2.5-7B", "qwen2"),
        ("xlm-roberta-base", "xlm-roberta"),
    ):
        with pytest.raises(UsageError, match=rf"can't be reached .*\n  hf:{kind} has this type's default architecture"):
            find_recipe(f"hf:{name}")
