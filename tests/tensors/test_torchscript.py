"""Tensors of TorchScript archives: those that PyTorch loads, without the archive's code, and archives that are none."""

from __future__ import annotations

import json
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookcli.errors import UsageError
from hookcli.tensors.files.pytorch import load, read
from hookcli.tensors.files.torchscript import is_torchscript, read_torchscript

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
Cli = Callable[..., Any]


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.register_buffer("table", torch.arange(6).view(2, 3).half())

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)  # type: ignore[no-any-return]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.conv.weight.data = self.conv.weight.data.to(memory_format=torch.channels_last)
        self.parts = nn.ModuleList([Part(), Part()])
        self.parts[1].fc.weight = self.parts[0].fc.weight
        self.scale = torch.tensor(2.0)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x * self.scale


@pytest.fixture(scope="module")
def model() -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net().eval()


@pytest.fixture(scope="module")
def archives(model: Net, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torchscript")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(model)
        scripted.save(folder / "scripted.pt")
        torch.jit.trace(model, torch.zeros(2, 3)).save(folder / "traced.pt")
        torch.jit.freeze(scripted).save(folder / "frozen.pt")
    torch.save(model.state_dict(), folder / "state.pt")
    return folder


@pytest.fixture(autouse=True)
def nothing_runs(archives: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive's code is never compiled."""

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("torch.jit.load was called")

    monkeypatch.setattr(torch.jit, "load", refused)
    monkeypatch.chdir(archives)


@pytest.mark.parametrize("file", ["scripted.pt", "traced.pt"])
def test_tensors_are_those_of_the_model(model: Net, file: str) -> None:
    held = {one.name: one for one in read_torchscript(Path(file))}
    state = model.state_dict()
    assert held.keys() - state.keys() <= {"scale", "CONSTANTS.c0"} and state.keys() <= held.keys()
    for name, x in state.items():
        assert torch.equal(held[name].tensor, x) and held[name].tensor.dtype == x.dtype
        assert held[name].tensor.stride() == x.stride()
    kinds = {name: held[name].kind for name in state}
    assert kinds == {name: "buffer" if "table" in name else "parameter" for name in state}
    assert held["conv.weight"].type == "Conv2d" and held["parts.0.table"].type == "Part"
    tied = {one.name: one.tied for one in read(Path(file)).tensors if one.tied}
    assert tied == {"parts.1.fc.weight": "parts.0.fc.weight"}


def test_frozen_archives_hold_constants() -> None:
    held = read_torchscript(Path("frozen.pt"))
    assert {one.kind for one in held} == {"constant"} and {one.tensor.shape for one in held} >= {(3, 3), (3,)}


def test_weights_diff_and_fill(cli: Cli, model: Net) -> None:
    ran = cli("weights", "scripted.pt", "-f", "json", "-q")
    found = json.loads(ran.out)["reports"][0]
    rows = {row["fqn"]: row for row in found["rows"]}
    weight = model.conv.weight.double()
    assert rows["conv.weight"]["mean"] == pytest.approx(weight.mean().item(), rel=1e-5)
    assert rows["parts.0.table"]["kind"] == "buffer" and rows["conv.weight"]["type"] == "Conv2d"
    assert found["meta"]["format"] == "TorchScript" and "4 buffers" not in str(found["meta"]["notes"])
    ran = cli("diff", "state.pt", "scripted.pt")
    assert "8 tensors compared: identical, bit for bit" in ran.out and "scale" in ran.out
    Path("net.py").write_text("from torch import nn\n\nNet = lambda: nn.ModuleDict({'conv': nn.Conv2d(2, 4, 3)})\n")
    ran = cli("weights", "net.py:Net", "--weights", "scripted.pt", "--no-strict", "-f", "json", "-q")
    assert json.loads(ran.out)["reports"][0]["rows"][0]["l2"] == pytest.approx(weight.norm().item(), rel=1e-5)


def test_as_a_model_it_is_named(cli: Cli) -> None:
    ran = cli("shapes", "scripted.pt")
    assert ran.code == 2 and "is a TorchScript archive" in ran.err and "`hookcli weights scripted.pt`" in ran.err


def changed(name: str, change: Callable[[str, bytes], bytes | None], how: int = zipfile.ZIP_STORED) -> Path:
    """A copy of the archive whose members are changed."""
    with zipfile.ZipFile("scripted.pt") as before, zipfile.ZipFile(name, "w", how) as after:
        for member in before.namelist():
            if (data := change(member, before.read(member))) is not None:
                after.writestr(member, data)
    return Path(name)


class Runs:
    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


def test_hostile_archives() -> None:
    """No class but those of an archive is named, and no tensor reaches beyond its storage."""

    def pickled(value: object) -> Callable[[str, bytes], bytes]:
        return lambda member, data: pickle.dumps(value, 2) if member.endswith("/data.pkl") else data

    cases = {
        "names posix.system": changed("runs.pt", pickled(Runs())),
        "names torch.hub.load": changed(
            "names.pt", lambda m, d: b"ctorch.hub\nload\n." if m.endswith("data.pkl") else d
        ),
        "compressed, or too short": changed("packed.pt", lambda m, d: d, zipfile.ZIP_DEFLATED),
        "too short": changed("short.pt", lambda m, d: d[:4] if "/data/" in m else d),
        "larger than its storage": changed("far.pt", lambda m, d: d.replace(b"K\x03K\x01t", b"K\x7fK\x01t")),
        "damaged": changed("cut.pt", lambda m, d: d[:20] if m.endswith("data.pkl") else d),
        "data.pkl": changed("without.pt", lambda m, d: None if m.endswith("/data.pkl") else d),
    }
    for said, file in cases.items():
        assert is_torchscript(file)
        with pytest.raises(UsageError, match=said) as caught:
            load(file)
        assert len(str(caught.value).splitlines()) == 1
    assert not Path("ran").exists()


def test_other_files_are_no_archives() -> None:
    Path("text.pt").write_text("no zip")
    assert not any(map(is_torchscript, (Path("state.pt"), Path("text.pt"), Path("missing.pt"))))
