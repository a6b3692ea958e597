"""State dicts in folders, in shards with an index, within checkpoints, and under a wrapper's name."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
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
        state = read_state(place)
        assert state.keys() == STATE.keys() and all(torch.equal(state[k], STATE[k]) for k in STATE)
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


def under(prefix: str) -> dict[str, torch.Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in STATE.items()}


def optimizer_state() -> dict[str, Any]:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


DOUBLED = {name: tensor * 2 for name, tensor in STATE.items()}
TREE = {part: {name: STATE[f"{part}.{name}"] for name in ("weight", "bias")} for part in ("conv", "fc")}
LAYOUTS: dict[str, tuple[object, str]] = {
    "bare": (STATE, ""),
    "known key": ({"epoch": 3, "state_dict": STATE}, "took the state dict under 'state_dict'"),
    "any key": ({"step": 3, "net_g": STATE, "optim": optimizer_state()}, "took the state dict under 'net_g'"),
    "two keys": ({"model": {"state_dict": STATE, "version": 2}}, "took the state dict under 'model.state_dict'"),
    "in a list": ({"models": [STATE]}, "took the state dict under 'models.0'"),
    "a dict per module": ({"params": TREE}, "took the state dict under 'params'"),
    "wrapped": (
        {"state_dict": under("module._orig_mod.")},
        "took the state dict under 'state_dict'; names without 'module._orig_mod.'",
    ),
    "wrapped within": (
        {name.replace(".", "._orig_mod."): tensor for name, tensor in STATE.items()},
        "names without '_orig_mod.'",
    ),
    "averaged": (
        {"n_averaged": torch.tensor(3), **under("module.")},
        "took the tensors under 'module.'; left out 1 tensor outside it (n_averaged)",
    ),
    "Lightning": (
        {"state_dict": {**under("model."), "loss.weight": torch.ones(3)}, "loops": {}},
        "took the state dict under 'state_dict'; names without 'model.'; left out 1 tensor outside it (loss.weight)",
    ),
    "with averages": (
        {"state_dict_ema": DOUBLED, "state_dict": STATE},
        "took the state dict under 'state_dict'; 'state_dict_ema' fits, too",
    ),
    "averages in the optimizer": (
        {"model": STATE, "optimizer": {"state": {"momentum": DOUBLED}, "param_groups": []}},
        "took the state dict under 'model'",
    ),
    "plain objects beside": (
        {
            "args": argparse.Namespace(lr=0.1),
            "out": Path("runs"),
            "best": np.float64(0.5),
            "history": np.ones(3),
            "since": datetime(2026, 1, 1),
            "torch": torch.__version__,
            "weights": STATE,
        },
        "took the state dict under 'weights'",
    ),
    "in an object": (argparse.Namespace(net=STATE), ""),
}


@pytest.mark.parametrize("layout", [*LAYOUTS])
def test_the_dict_that_fits_is_taken_and_said(net: Path, cli: Callable[..., Any], layout: str) -> None:
    content, said = LAYOUTS[layout]
    if layout == "in an object":
        content, said = {"all": content}, "took the state dict under 'all.net'"
    torch.save(content, "saved.ckpt")
    ran = cli("activations", "net.py:Net", "-i", "2x3x4x4", "--fill", "zeros", "--weights", "saved.ckpt", "-f", "json")
    [report] = json.loads(ran.out)["reports"]
    rows = {row["fqn"]: row for row in report["rows"]}
    assert (rows["conv"]["mean"], rows["fc"]["mean"], report["meta"]["weights"]) == (1, 128, "saved.ckpt")
    assert ran.err == (f"hookcli: --weights saved.ckpt: {said}\n" if said else "")


def test_the_only_averages_are_taken(net: Path, cli: Callable[..., Any]) -> None:
    torch.save({"state_dict_ema": STATE}, "saved.pth.tar")
    ran = cli("shapes", "net.py:Net", "-i", "2x3x4x4", "--weights", "saved.pth.tar")
    assert ran.code == 0 and "took the state dict under 'state_dict_ema'" in ran.err


def test_two_parts_of_one_dict_that_fit() -> None:
    with pytest.raises(UsageError, match=r"x.pt: holds several parts that fit the model \('netG.', 'netD.'\)"):
        fill(
            nn.Linear(2, 2),
            {f"net{x}.{n}": t for x in "GD" for n, t in nn.Linear(2, 2).state_dict().items()},
            True,
            "x.pt",
        )


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    "state",
    [
        {"a.weight": torch.ones(3), "a.bias": torch.ones(5)},
        {"weight": torch.ones(3, 3), "bias": torch.ones(3)},
        {"state_dict": {"enc.0": torch.ones(2)}, "weights": 3},
        {"optimizer": optimizer_state()},
        {"epoch": 3},
    ],
)
def test_nothing_loaded_is_an_error(state: dict[str, object], strict: bool) -> None:
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    with pytest.raises(UsageError, match=r"--weights x.pt does not fit the model at all: ") as raised:
        fill(model, state, strict, "x.pt")
    assert "no-strict" not in str(raised.value) and torch.equal(model.weight, before)


@pytest.mark.sweep
def test_the_number_stands_in_the_caption(net: Path, cli: Callable[..., Any]) -> None:
    torch.save({"conv.weight": STATE["conv.weight"], "fc.bias": torch.ones(3)}, "part.pt")
    some = ("net.py:Net", "--weights", "part.pt", "--no-strict")
    for argv in (("activations", *some, "-i", "2x3x4x4"), ("weights", *some)):
        assert "net.py:Net · weights part.pt (1 of 4 tensors)" in cli(*argv).out
    torch.save(STATE, "all.pt")
    assert cli("weights", "net.py:Net", "--weights", "all.pt").out.startswith("net.py:Net · weights all.pt\n")
    side = "net.py:Net --weights all.pt"
    ran = cli("diff", side, "net.py:Net --weights part.pt --no-strict", "-i", "2x3x4x4")
    assert " · weights all.pt → part.pt (1 of 4 tensors) · " in ran.out


def test_lazy_parameters_and_renamed_ones_are_filled() -> None:
    lazy = nn.LazyLinear(2)
    assert fill(lazy, nn.Linear(3, 2).state_dict(), True, "x.pt").remark is None and lazy.weight.shape == (2, 3)
    new = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    old = nn.utils.weight_norm(nn.Linear(3, 2)).state_dict()  # weight_g and weight_v, which a hook renames
    assert fill(new, old, True, "x.pt").loaded == 3 and torch.equal(
        new.parametrizations.weight.original1, old["weight_v"]
    )


def test_the_attribute_of_a_wrapper_is_taken_off() -> None:
    model = nn.Linear(2, 2)
    values = {"net.weight": torch.eye(2), "net.bias": torch.ones(2)}
    assert fill(model, values, True, "x.pt").remark == "--weights x.pt: took the tensors under 'net.'"
    assert torch.equal(model.weight, torch.eye(2))
    spaced = nn.ModuleDict({"a b": model})
    said = fill(spaced, {"a b.weight": torch.eye(3), "a b.bias": torch.zeros(2)}, False, "x.pt").remark
    assert said == "--weights x.pt: loaded 1 of 2 tensors; wrong shape 1 (a b.weight is 3x3, not 2x2)"
    with pytest.raises(UsageError, match=r"missing 2 \(weight, bias\); extra 2 \(a.weight, b.bias\)"):
        fill(model, {"a.weight": torch.eye(2), "b.bias": torch.ones(2)}, True, "x.pt")


@pytest.mark.parametrize("kind", [tuple, list])
def test_the_state_dicts_of_a_model_and_its_optimizer_in_a_list(
    cli: Callable[..., Any], net: Path, kind: Callable[..., Any]
) -> None:
    torch.save(kind([STATE, optimizer_state()]), "both.pt")
    ran = cli("weights", "net.py:Net", "--weights", "both.pt", "-f", "json")
    rows = {row["fqn"]: row for row in json.loads(ran.out)["reports"][0]["rows"]}
    assert {name: row["mean"] for name, row in rows.items()} == {name: x.mean().item() for name, x in STATE.items()}
    assert ran.code == 0 and "took the state dict under '0'" in ran.err


def test_numpy_arrays_are_named(cli: Callable[..., Any], net: Path) -> None:
    torch.save({"model": {name: x.numpy() for name, x in STATE.items()}}, "arrays.pt")
    ran = cli("weights", "net.py:Net", "--weights", "arrays.pt")
    assert ran.code == 2 and "is a NumPy array, not " in ran.err
    ran = cli("weights", "arrays.pt")
    assert ran.code == 2 and "holds no tensors, but NumPy arrays, which are not read" in ran.err
