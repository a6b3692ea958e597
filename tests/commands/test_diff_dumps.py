"""hookcli diff with a dump's folder as a side."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import forks
import pytest
from commands.diffs import INPUT, NET, Cli, dumped, index
from safetensors.torch import load_file
from support import swept

from hookcli.sources.catalog import entries


def rows(out: str) -> dict[tuple[str, str], dict[str, Any]]:
    (report,) = json.loads(out)["reports"]
    return {(row["kind"], row["fqn"]): row for row in report["rows"]}


def test_a_model_is_run_on_the_inputs_of_the_dump(cli: Cli, net: Path) -> None:
    """Also where it would draw others: from another seed, in another dtype."""
    dumped(cli, "a")
    ran = cli("diff", "a", NET)
    assert ran.code == 0 and ran.err == ""
    assert ran.out.startswith("Identical, bit for bit\na → net.py:Net · weights as built · input 2x3x4x4")
    assert "4 compared · 0 beyond" in ran.out
    ran = cli("diff", f"{NET} --dtype bfloat16", "a")
    assert ran.code == 0 and "the runs differ: dtype bfloat16 → float32" in ran.err
    ran = cli("diff", "a", NET, "--input", "1x3x4x4")
    assert ran.code == 1 and "shape 2x10 → 1x10" in ran.out and "the runs differ: input 2x3x4x4 → 1x3x4x4" in ran.err
    dumped(cli, "s", NET, "--seed", "7", "--train")
    assert cli("diff", "s", NET).code == 0 and cli("diff", "s", NET, "--seed", "0").code == 1


def test_an_edit_is_found_where_it_begins(cli: Cli, net: Path) -> None:
    """Figures from the files: the error by torch in float64, of either order and of two dumps the same."""
    dumped(cli, "a")
    dumped(cli, "b", NET, "--edit", "act:output=scale(1.01)")
    x, y = (load_file(next(Path(folder).glob("*-act.safetensors")))["act"].double() for folder in "ab")
    relative = float((x - y).norm() / x.norm())
    for a, b in (("a", f"{NET} --edit act:output=scale(1.01)"), ("a", "b"), (NET, "b")):
        ran = cli("diff", a, b, "-f", "json")
        found = rows(ran.out)
        assert ran.code == 1 and ran.err.startswith(
            "hookcli: First difference: act, relative error 0.01; 3 of 4 beyond"
        )
        assert found["output", "act"]["rel_l2"] == pytest.approx(relative, rel=1e-5)
        assert found["output", "conv"]["max_abs"] == 0 and found["output", "fc"]["beyond"]
    assert cli("diff", "a", "b", "--rtol", "0.02").code == 0
    assert cli("diff", "a", "b", "--match", "conv").code == 0
    for other in ("b", f"{NET} --edit act:output=scale(1.01)"):
        found = rows(cli("diff", "a", other, "--type", "ReLU", "-f", "json").out)
        assert [*found] == [("output", "act")] and found["output", "act"]["rel_l2"] == pytest.approx(relative, rel=1e-5)
    ran = cli("diff", "a", "b", "--match", "cnv")
    assert ran.code == 2 and "no module or parameter matches 'cnv'; did you mean 'conv'?" in ran.err


@pytest.mark.sweep
def test_growth_of_the_error_from_module_to_module(cli: Cli, net: Path) -> None:
    """As of two models: of a dump of one, only the live model tells which module received what."""
    dumped(cli, "a")
    argv = (f"{NET} --dtype bfloat16", "-f", "json")
    found = rows(cli("diff", "a", *argv).out)
    live = rows(cli("diff", NET, *argv, *INPUT).out)
    assert found["output", "act"]["growth"] == pytest.approx(live["output", "act"]["growth"])
    assert found["output", "fc"]["rel_l2"] == pytest.approx(live["output", "fc"]["rel_l2"], rel=1e-6)


@pytest.mark.parametrize(
    ("command", "kind", "fqn", "edit"),
    [
        (("grads",), "grad", "conv.weight", "fc:grad_output"),
        swept(("grads", "--of", "outputs"), "grad_output", "conv", "fc:grad_output"),
        swept(("grads", "--of", "inputs"), "grad_input", "fc", "fc:grad_output"),
        swept(("inputs",), "input", "fc", "conv:output"),
    ],
)
def test_every_kind(cli: Cli, net: Path, command: tuple[str, ...], kind: str, fqn: str, edit: str) -> None:
    dumped(cli, "a", NET, *command[1:], command=command[0])
    dumped(cli, "part", NET, *command[1:], "--match", fqn, command=command[0])
    assert cli("diff", "a", NET, "--rtol", "0").code == 0 and cli("diff", "part", NET).code == 0
    ran = cli("diff", "a", f"{NET} --edit {edit}=scale(3)", "-f", "json")
    found = rows(ran.out)[kind, fqn]
    assert ran.code == 1 and found["beyond"] and found["rel_l2"] == pytest.approx(2)
    ran = cli("diff", "part", "a", "-f", "json")
    assert ran.code == 0 and [*rows(ran.out)] == [(kind, fqn)]


def test_passes_and_losses_are_repeated(cli: Cli, net: Path) -> None:
    dumped(cli, "a", NET, "--passes", "2", "--loss", "net.py:loss", command="grads")
    ran = cli("diff", "a", NET)
    assert ran.code == 2 and "a: its run had --loss net.py:loss, which names code to run: add that option" in ran.err
    ran = cli("diff", "a", NET, "--loss", "net.py:loss", "-f", "json")
    report = json.loads(ran.out)["reports"][0]
    assert (
        ran.code == 0 and report["meta"]["loss"] == "loss" and {row.get("pass", 0) for row in report["rows"]} == {0, 1}
    )


def test_batches_and_their_targets(cli: Cli, net: Path) -> None:
    """The dump has the batches and targets, so that the model needs neither: the data may be gone."""
    code = "import torch\n\ndef batches():\n    for n in range(3):\n"
    code += "        yield torch.full((2, 3, 4, 4), n / 2), torch.tensor([n, 1])\n"
    (net / "data.py").write_text(code)
    given = ("--data", "data.py:batches", "--batches", "3")
    assert cli("grads", NET, *given, "--loss", "cross-entropy", "--dump", "g", "-q").code == 0
    (net / "data.py").unlink()
    ran = cli("diff", "g", NET, "--rtol", "0", "-f", "json")
    assert ran.code == 0 and [row["batch"] for row in index("g")["tensors"]] == [0] * 4 + [1] * 4 + [2] * 4
    assert [row.get("batch", 0) for row in json.loads(ran.out)["reports"][0]["rows"]] == [0] * 4 + [1] * 4 + [2] * 4
    edited = cli("diff", "g", f"{NET} --seed 9", "--depth", "all")
    assert edited.code == 1 and "Batch" in edited.out and "12 compared" in edited.out
    assert cli("diff", "g", "g").code == 0


def test_what_one_side_lacks_is_said(cli: Cli, net: Path) -> None:
    code = "from torch import nn\nfrom net import Net\n\nclass More(Net):\n    def __init__(self):\n"
    code += "        super().__init__()\n        self.last = nn.Tanh()\n    def forward(self, x):\n"
    code += "        return self.last(super().forward(x))\n\nclass Twice(Net):\n    def forward(self, x):\n"
    code += "        self.conv(x)\n        return super().forward(x)\n"
    code += "\nclass Skips(Net):\n    def forward(self, x):\n        return self.fc(self.conv(x).relu().flatten(1))\n"
    (net / "more.py").write_text(code)
    dumped(cli, "a")
    ran = cli("diff", "a", "more.py:Skips")
    assert ran.code == 1 and "First difference: act, returned in A only: never called in eval mode" in ran.out
    ran = cli("diff", "a", "more.py:More")
    assert ran.code == 1 and "only in B (last)" in ran.out and "last" in ran.out and "added" in ran.out
    ran = cli("diff", "a", "more.py:Twice", "--depth", "all")
    assert ran.code == 1 and "returned in B only" in ran.out
    dumped(cli, "twice", "more.py:Twice")
    ran = cli("diff", "twice", NET)
    assert ran.code == 1 and "First difference: conv, call 1, returned in A only" in ran.out.replace("\n  ", " ")
    dumped(cli, "narrow", NET, "--match", "fc")
    ran = cli("diff", "a", "narrow")
    assert ran.code == 0 and "1 compared" in ran.out and "not in the other dump" in ran.out


def test_a_compiled_model(cli: Cli, net: Path) -> None:
    """Hooks inside of what is compiled do not fire: their modules are not a difference."""
    dumped(cli, "a")
    ran = cli("diff", "a", f"{NET} --compile eager")
    assert ran.code == 0 and "1 compared" in ran.out and "part of a compiled module" in ran.out


def test_a_model_that_crashes(cli: Cli, net: Path) -> None:
    """What was compared is shown; and the dump of a run that crashed lacks nothing that never was."""
    assert cli("activations", "net.py:Crashes", *INPUT, "--dump", "a", "-q").code == 2
    ran = cli("diff", "a", "net.py:Crashes")
    assert ran.code == 2 and ran.out.startswith("B: the model (Crashes) failed on input 2x3x4x4")
    assert ran.err.startswith("hookcli: error: B: the model (Crashes) failed on input 2x3x4x4: KeyError: 'lost'")
    (net / "mended.py").write_text("from net import Net\nfrom torch import nn\n\nclass Crashes(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.net = Net()\n"
        "    def forward(self, x):\n        return self.net(x)\n")  # fmt: skip
    ran = cli("diff", "a", "mended.py:Crashes")
    assert ran.code == 0 and "not in the dump" in ran.out and "the runs differ: a is incomplete" in ran.err, ran.err


def test_a_dump_of_a_process_that_was_killed(cli: Cli, net: Path) -> None:
    """Every tensor that its index names is whole, and can be compared."""
    code = (
        "from net import Net\nimport os\n\nfrom hookcli.tensors.files import dump_writer\n\ndump_writer._PATIENCE = 0\n"
    )
    code += (
        "\nclass Killed(Net):\n    def forward(self, x):\n        super().forward(x)\n        os.kill(os.getpid(), 9)\n"
    )
    (net / "killed.py").write_text(code)
    command = [sys.executable, "-m", "hookcli", "activations", "killed.py:Killed", *INPUT, "--dump", "a"]
    assert forks.run(command, capture_output=True).returncode == -9
    assert [row["fqn"] for row in index("a")["tensors"]] == ["conv", "act", "fc"]
    ran = cli("diff", "a", NET)
    assert ran.code == 0 and "3 compared" in ran.out and "the runs differ: a is incomplete" in ran.err, ran.out
    assert ran.out.startswith("Identical, bit for bit, as far as both runs went"), ran.out


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(entries()))
@pytest.mark.parametrize("command", ["activations", "grads"])
def test_torchvisions_models_equal_their_dumps(cli: Cli, tmp_path: Path, name: str, command: str) -> None:
    argv = ("--dump", str(tmp_path / "d"), "-q", "-o", str(tmp_path / "a.json"))
    assert cli(command, name, *argv).code == 0
    ran = cli("diff", str(tmp_path / "d"), name, "--rtol", "0", "--depth", "1")
    shutil.rmtree(tmp_path / "d")  # a gigabyte each
    assert ran.code == 0 and " 0 beyond" in ran.out, ran.out
