"""Dumps of other programs, and damaged ones, as sides of a comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands.diffs import INPUT, NET, Cli, dumped, index
from safetensors.torch import load_file, save_file


def other_engine(folder: str, **changes: Any) -> None:
    """A folder as another program would write it: one file, the least of an index."""
    Path(folder).mkdir()
    found = {row["fqn"]: load_file(Path("a", row["file"]))[row["name"]] for row in index("a")["tensors"]}
    save_file({f"hidden.{fqn}": x * 1.0 for fqn, x in found.items()}, Path(folder, "all.safetensors"))
    tensors = [{"fqn": fqn, "file": "all.safetensors", "name": f"hidden.{fqn}"} for fqn in ("conv", "fc")]
    Path(folder, "index.json").write_text(json.dumps({"schema": 1, "tensors": tensors} | changes))


def test_a_folder_of_another_program(cli: Cli, net: Path) -> None:
    dumped(cli, "a")
    other_engine("other")
    ran = cli("diff", "other", NET, *INPUT)
    assert ran.code == 0 and "2 compared · 0 beyond" in ran.out and "only in" not in ran.out
    ran = cli("diff", "a", "other")
    assert ran.code == 0 and "2 compared" in ran.out and "not in the other dump" in ran.out
    assert cli("diff", "other", f"{NET} --edit conv:output=scale(2)", *INPUT).code == 1


def damage(**changes: Any) -> str:
    return json.dumps({"schema": 1, "tensors": [{"fqn": "conv", "file": "x.safetensors"} | changes]})


MISTAKES: dict[str, tuple[str, str]] = {
    damage(): (NET, "x.safetensors: can't be read as a dump's tensors (No such file or directory"),
    damage(file="../a/000000-conv.safetensors"): (
        NET,
        "file '../a/000000-conv.safetensors' is not in the dump's folder",
    ),
    damage(kind="weight"): (NET, "kind 'weight', not one of output, input, grad"),
    damage(call=-1): (NET, "damaged, or not the index of a dump (call is -1)"),
    damage(file=None): (NET, "has neither a file nor a reason"),
    damage(file="../a/x\0"): (NET, "is not in the dump's folder"),
    '{"schema": 1, "tensors": []}': (NET, "bad: holds no tensors (a dump)"),
    '{"schema": 2}': (NET, "bad/index.json: schema 2 is of a newer hookcli"),
    '{"schema": 1}': (NET, "damaged, or not the index of a dump (no 'tensors')"),
    "[": (NET, "bad/index.json: damaged, or not the index of a dump: not JSON"),
    damage()[:-1] + ', "options": {"seed": "x"}}': (NET, "bad: damaged: among its options, seed is 'x'"),
    damage()[:-1] + ', "options": {"loss": "bad/run.py:it"}}': (NET, "its run had --loss bad/run.py:it, which names"),
    damage()[:-1] + f', "inputs": {"[" * 100_000 + "]" * 100_000}' + "}": (NET, "maximum recursion depth"),
    damage(fqn="layers.0"): (NET, "bad: a dump, another model than net.py:Net: they have no module in common"),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_damaged_index(cli: Cli, net: Path, text: str) -> None:
    (net / "bad").mkdir()
    (net / "bad" / "index.json").write_text(text)
    other, said = MISTAKES[text]
    ran = cli("diff", "bad", other, *INPUT)
    assert (ran.code, ran.out) == (2, "") and said in ran.err and len(ran.err.splitlines()) <= 2, ran.err


def test_damaged_files_and_wrong_sides(cli: Cli, net: Path) -> None:
    dumped(cli, "a")
    (net / "empty").mkdir()
    (net / "tanh.py").write_text("from torch import nn\n\ndef Net():\n    return nn.Sequential(nn.Tanh())\n")
    cli("activations", NET, *INPUT, "-o", "saved.json", "-q")
    for argv, said in (
        (("a", "empty"), "B 'empty': is a folder without index.json, so no dump"),
        (("a", "saved.json"), "B 'saved.json': a saved report can't be compared with a dump; give a model"),
        (("a", NET, "--same-weights"), "--same-weights: both sides must be models, not dumps"),
        (("a", "resnet"), "B: unknown model 'resnet'; did you mean resnet"),
        (("a", "net.py:Needs --arg hidden=3"), "a is a dump of net.py:Net: net.py:Needs has 0 of its 3 modules"),
        (
            ("a", "tanh.py:Net"),
            "a: a dump of net.py:Net, another model than tanh.py:Net: they have no module in common",
        ),
    ):
        ran = cli("diff", *argv)
        assert (ran.code, ran.out) == (2, "") and said in ran.err, ran.err
    assert "is a dump; hookcli diff compares it" in cli("report", "a", "a", "-o", "x.html").err
    file = next(Path("a").glob("*-act.safetensors"))
    file.write_bytes(file.read_bytes()[:100])
    ran = cli("diff", "a", NET)
    assert ran.code == 2 and f"{file}: can't be read as a dump's tensors" in ran.err
    save_file({"act": torch.zeros(3)}, file)
    assert "act has the shape [3], not [2, 8, 4, 4]" in cli("diff", "a", NET).err
