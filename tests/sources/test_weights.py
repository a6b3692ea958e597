"""State dicts in folders, in shards with an index, within checkpoints, and under a wrapper's name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from hookcli.errors import UsageError
from hookcli.sources.state_dicts import fill, read_state

STATE = {"conv.weight": torch.full((8, 3, 3, 3), 2.0), "conv.bias": torch.ones(8), "fc.weight": torch.ones(10, 128)}
STATE["fc.bias"] = torch.zeros(10)


@pytest.fixture
def sharded(net: Path) -> Path:
    folder = net / "sharded"
    folder.mkdir()
    parts = {"a.safetensors": ["conv.weight", "conv.bias"], "b.safetensors": ["fc.weight", "fc.bias"]}
    for file, names in parts.items():
        save_file({name: STATE[name] for name in names}, folder / file)
    weight_map = {name: file for file, names in parts.items() for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_a_folder_of_shards(sharded: Path, cli: Callable[..., Any]) -> None:
    for place in ("sharded", "sharded/model.safetensors.index.json"):
        state, remark = read_state(place)
        assert state.keys() == STATE.keys() and all(torch.equal(state[k], STATE[k]) for k in STATE) and remark is None
        ran = cli("activations", "net.py:Net", "-i", "2x3x4x4", "--fill", "zeros", "--weights", place, "-f", "json")
        rows = {row["fqn"]: row for row in json.loads(ran.out)["reports"][0]["rows"]}
        assert rows["conv"]["mean"] == 1 and rows["fc"]["mean"] == 128 and not ran.err
    (sharded / "b.safetensors").unlink()
    ran = cli("shapes", "net.py:Net", "-i", "2x3x4x4", "--weights", "sharded")
    assert ran.code == 2 and "--weights" in ran.err and "1 file missing (b.safetensors)" in ran.err
    Path("list").mkdir()
    torch.save([torch.ones(2)], "list/model.bin")
    with pytest.raises(UsageError, match=r"list/model.bin: holds an object of type list, not a state dict"):
        read_state("list")


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model"])
def test_the_key_that_was_taken_is_said(net: Path, cli: Callable[..., Any], key: str) -> None:
    torch.save({"epoch": 3, key: {f"module.{name}": tensor for name, tensor in STATE.items()}}, "saved.ckpt")
    ran = cli("shapes", "net.py:Net", "-i", "2x3x4x4", "--weights", "saved.ckpt")
    assert ran.code == 0 and f"--weights saved.ckpt: took the state dict under '{key}'" in ran.err


def test_the_attribute_of_a_wrapper_is_taken_off() -> None:
    model = nn.Linear(2, 2)
    values = {"net.weight": torch.eye(2), "net.bias": torch.ones(2)}
    assert fill(model, values, True, "x.pt") == "--weights x.pt: took the tensors under 'net.'"
    assert torch.equal(model.weight, torch.eye(2))
    spaced = nn.ModuleDict({"a b": model})
    said = fill(spaced, {"a b.weight": torch.eye(3), "a b.bias": torch.zeros(2)}, False, "x.pt")
    assert said == "--weights x.pt: loaded 1 of 2 tensors; wrong shape 1 (a b.weight is 3x3, not 2x2)"
    with pytest.raises(UsageError, match=r"missing 2 \(weight, bias\); extra 2 \(a.weight, b.bias\)"):
        fill(model, {"a.weight": torch.eye(2), "b.bias": torch.ones(2)}, True, "x.pt")
