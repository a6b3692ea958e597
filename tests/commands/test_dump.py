"""--dump: the tensors themselves in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands.diffs import INPUT, NET, Cli
from safetensors.torch import load_file

from hookcli.system.importing import load_object


def index(folder: Path | str) -> dict[str, Any]:
    return dict(json.loads(Path(folder, "index.json").read_text()))


def tensors(folder: Path | str) -> dict[tuple[str, str, int, str], torch.Tensor]:
    """What a program without hookcli reads: the tensors by kind, fqn, call and path."""
    return {
        (row["kind"], row["fqn"], row["call"], row["path"]): load_file(Path(folder, row["file"]))[row["name"]]
        for row in index(folder)["tensors"]
        if row["file"]
    }


def test_activations_are_those_of_pytorch(cli: Cli, net: Path) -> None:
    """Also the one that an in-place ReLU overwrites; the output of `fc`, which the model returns, is written once."""
    ran = cli("activations", NET, *INPUT, "--dump", "acts")
    assert ran.code == 0 and ran.err == "hookcli: wrote acts: 4 tensors, 2.453 KiB\n"
    make = load_object(NET)
    torch.manual_seed(0)
    model = make().eval()
    x = load_file("acts/inputs-0.safetensors")["input0"]
    with torch.no_grad():
        conv = model.conv(x)
        expected = {"conv": conv, "act": conv.clamp(min=0), "fc": model.fc(conv.clamp(min=0).flatten(1))}
    found = tensors("acts")
    for fqn, tensor in {**expected, "": expected["fc"]}.items():
        assert torch.equal(found["output", fqn, 0, ""], tensor), fqn
    files = {row["fqn"]: row["file"] for row in index("acts")["tensors"]}
    assert files[""] == files["fc"] and len(list(Path("acts").iterdir())) == 3 + 2
    held = index("acts")
    assert held["schema"] == 1 and held["meta"]["complete"] is True and held["meta"]["input"] == "2x3x4x4"
    assert [part["fqn"] for part in held["modules"]] == ["", "conv", "act", "fc"]
    assert {path.stat().st_mode & 0o777 for path in Path("acts").iterdir()} == {Path("net.py").stat().st_mode & 0o777}


def test_gradients_and_inputs(cli: Cli, net: Path) -> None:
    """By hand: the loss is the sum of the outputs, so the gradient of the output is all ones."""
    assert cli("grads", NET, *INPUT, "--of", "outputs", "--dump", "outputs", "-q").code == 0
    assert cli("grads", NET, *INPUT, "--dump", "parameters", "-q").code == 0
    assert cli("inputs", NET, *INPUT, "--train", "--dump", "inputs", "--match", "fc", "-q").code == 0
    outputs, parameters, inputs = map(tensors, ("outputs", "parameters", "inputs"))
    assert torch.equal(outputs["grad_output", "fc", 0, ""], torch.ones(2, 10)) and len(outputs) == 4
    assert torch.equal(parameters["grad", "fc.bias", 0, ""], torch.full((10,), 2.0)) and len(parameters) == 4
    assert list(inputs) == [("input", "fc", 0, "")] and index("inputs")["narrowed"]
    weight = inputs["input", "fc", 0, ""].sum(0).expand(10, -1)
    assert torch.allclose(parameters["grad", "fc.weight", 0, ""], weight)


ODD = """
import torch
from torch import nn

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(3, 3)
        self.pair = Pair()

    def forward(self, x):
        for _ in range(3):
            x = self.mix(x)
        return self.pair(x)

class Pair(nn.Module):
    def forward(self, x):
        nested = torch.nested.nested_tensor([x[0], x[1, :2]])
        return {"sparse": x.relu().to_sparse(), "complex": torch.complex(x, x), "half": x.bfloat16().t(), "n": nested}

class Stops(Odd):
    def forward(self, x):
        self.mix(x)
        raise KeyboardInterrupt
"""


def test_several_calls_and_odd_tensors(cli: Cli, net: Path) -> None:
    (net / "odd.py").write_text(ODD)
    ran = cli("activations", "odd.py:Odd", "-i", "2x3", "--dump", "odd", "-f", "json")
    found = tensors("odd")
    assert {call for _, fqn, call, _ in found if fqn == "mix"} == {0, 1, 2} and ran.code == 0
    x = found["output", "mix", 2, ""]
    assert torch.equal(found["output", "pair", 0, '["sparse"]'], x.relu())
    assert torch.equal(found["output", "pair", 0, '["complex"]'], torch.complex(x, x))
    assert torch.equal(found["output", "pair", 0, '["half"]'], x.bfloat16().t())
    reasons = {(row["fqn"], row["path"]): row["reason"] for row in index("odd")["tensors"] if not row["file"]}
    assert reasons == dict.fromkeys(
        (("pair", '["n"]'), ("", '["n"]')), "can't be written (float32, NotImplementedError)"
    )
    assert "; 2 tensors of a layout that can't be written" in ran.err
    assert cli("diff", "odd", "odd.py:Odd", "--rtol", "0").code == 0


def test_limits_and_what_ends_early(cli: Cli, net: Path) -> None:
    ran = cli("activations", NET, *INPUT, "--dump", "acts", "--max-bytes", "1500")
    assert "hookcli: wrote acts: 3 tensors, 1.453 KiB; 1 tensor left out (--max-bytes 1500)" in ran.err
    left = [row for row in index("acts")["tensors"] if not row["file"]]
    assert [(row["fqn"], row["bytes"]) for row in left] == [("act", 1024)] and "--max-bytes" in left[0]["reason"]
    assert "act: left out" in cli("diff", "acts", NET).out
    ran = cli("activations", "net.py:Crashes", *INPUT, "--dump", "acts")
    assert ran.code == 2 and "KeyError" in ran.err and "wrote acts: 4 tensors" in ran.err
    assert index("acts")["meta"]["complete"] is False and ("output", "net.fc", 0, "") in tensors("acts")
    (net / "odd.py").write_text(ODD)
    assert cli("activations", "odd.py:Stops", "-i", "2x3", "--dump", "stops").code == 130
    assert len(tensors("stops")) == 1 and index("stops")["meta"]["complete"] is False


def test_a_dump_replaces_an_earlier_one_and_nothing_else(cli: Cli, net: Path) -> None:
    assert cli("activations", NET, *INPUT, "--dump", "acts").code == 0
    assert cli("activations", NET, *INPUT, "--match", "fc", "--dump", "acts").code == 0
    assert len(list(Path("acts").iterdir())) == 3
    before = index("acts")
    assert cli("activations", "net.py:Nett", *INPUT, "--dump", "acts").code == 2 and index("acts") == before
    Path("acts/notes.txt").write_text("mine")
    assert "holds files that --dump has not written" in cli("activations", NET, *INPUT, "--dump", "acts").err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--dump", "."), "--dump .: is not empty, and no dump"),
        (("--dump", "net.py"), "--dump net.py: is a file"),
        (("--dump", "acts", "--max-bytes", "much"), "--max-bytes much: give a number of bytes, such as 500MB or 2GiB"),
        (("--dump", "acts", "--nproc", "2"), "--dump: writes the tensors of one process"),
        (("--dump", "/proc/acts"), "--dump /proc/"),
    ],
)
def test_one_clear_line(cli: Cli, net: Path, given: tuple[str, ...], said: str) -> None:
    ran = cli("activations", NET, *INPUT, *given)
    assert (ran.code, ran.out) == (2, "") and said in ran.err and len(ran.err.splitlines()) == 1


def test_a_full_disk(cli: Cli, net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report is not lost, the dump holds what was written, and the message says why."""
    import safetensors.torch

    save, written = safetensors.torch.save_file, []

    def full(given: Any, path: Path, *rest: Any) -> None:
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        written.append(path)
        save(given, path, *rest)

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    ran = cli("activations", NET, *INPUT, "--dump", "acts")
    assert ran.code == 2 and "conv" in ran.out
    assert "error: --dump acts: No space left on device; it holds the tensors until then" in ran.err
    assert len(tensors("acts")) == 2 and index("acts")["meta"]["complete"] is False


def test_the_run_is_not_changed(net: Path, untouched_capture: Callable[..., Any]) -> None:
    untouched_capture()


@pytest.fixture
def untouched_capture(tmp_path: Path) -> Callable[..., Any]:
    """A capture with and without a dump: the same gradients, and nothing stays on the model."""
    from support import equal, untouched

    from hookcli.engine.capture import capture
    from hookcli.probes.grads import GradsProbe
    from hookcli.table.dump import Dump
    from hookcli.tensors.files.dump_writer import DumpWriter

    def run() -> None:
        torch.manual_seed(0)
        model = load_object(NET)()
        x = torch.randn(2, 3, 4, 4)
        plain = capture(model, x, GradsProbe("outputs"))[0]
        with untouched(model):
            writer = DumpWriter(tmp_path / "d", 1 << 20, Dump("", ()))
            dumped = capture(model, x, GradsProbe("outputs", sink=writer))[0]
        assert equal([row.flat() for row in plain.rows], [row.flat() for row in dumped.rows])
        assert len(tensors(tmp_path / "d")) == len(plain.rows)

    return run
