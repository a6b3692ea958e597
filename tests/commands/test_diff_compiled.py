"""`hookcli diff` of models that arrive compiled, in every way in which programs compile them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import swept

from hookcli.diff.tolerance import Tolerance
from hookcli.engine.setting import compile_settings
from hookcli.hooks.option_values import COMPILE
from hookcli.hooks.torch_private.programs import compiler

pytestmark = pytest.mark.xdist_group("torch.compile")  # whose imports and precompiled headers one worker needs
Cli = Callable[..., Any]
INPUT = ("--input", "2x3x8x8")
FILE = """
import torch
from torch import nn

def wrong(graph, inputs):
    for node in graph.graph.nodes:
        if getattr(node.target, "__name__", "") == "relu":
            node.target = lambda x, **_: 2 * x.relu()
    graph.recompile()
    return graph

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.block = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3))
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.block(self.conv(x)).mean((2, 3)))

class Decorated(Net):
    forward = torch.compile(Net.forward, backend=wrong)

def wrapped():
    return torch.compile(Net(), backend=wrong)

def in_place():
    model = Net()
    model.compile(backend=wrong)
    return model

def wrapped_part():
    model = Net()
    model.block = torch.compile(model.block, backend=wrong)
    return model

def part_in_place():
    model = Net()
    model.block.compile(backend=wrong)
    return model

def assigned():
    model = Net()
    model.block.forward = torch.compile(model.block.forward, backend=wrong)
    return model
"""
PLAIN = [("wrapped", True), ("part_in_place", False)]
WAYS = ("wrapped", "in_place", "Decorated", "wrapped_part", "part_in_place", "assigned")


@pytest.fixture(autouse=True)
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    (tmp_path / "net.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("how", "first"),
    [
        *PLAIN,
        *(swept(how, first) for how in WAYS for first in (True, False) if (how, first) not in PLAIN),
    ],
)
def test_a_side_that_arrives_compiled(cli: Cli, how: str, first: bool) -> None:
    """Its modules have the names of the model as written, and are seen in what its backend, which doubles ReLUs, made:
    there the difference begins.
    """
    sides = ("net.py:Net", f"net.py:{how}")
    ran = cli("diff", *(sides if first else sides[::-1]), *INPUT)
    assert ran.code == 1 and ran.out.startswith(f"First difference: block.1, relative error {'1' if first else '0.5'}")
    assert "renamed" not in ran.out and "only in" not in ran.out and "_orig_mod" not in ran.out
    assert "compiled by wrong: outputs bit-identical to the compiled model's" in ran.out.replace("\n  ", " ")


@pytest.mark.sweep
def test_both_sides_arrive_compiled(cli: Cli) -> None:
    ran = cli("diff", "net.py:wrapped", "net.py:in_place", *INPUT, "--backward")
    assert ran.code == 0 and ran.out.startswith("Identical, bit for bit") and "conv.weight" in ran.out


def test_names_choose_modules_of_the_model_as_written(cli: Cli) -> None:
    ran = cli("diff", "net.py:wrapped_part", "net.py:Net", *INPUT, "--match", "conv")
    assert ran.code == 0 and ran.out.startswith("Identical, bit for bit") and "1 compared" in ran.out


@pytest.mark.sweep
def test_both_sides_are_seen_inside_at_once(cli: Cli) -> None:
    from torch._dynamo import config

    before = config.skip_nnmodule_hook_guards  # type: ignore[attr-defined]
    ran = cli("diff", "net.py:Net --compile aot_eager", "net.py:Net --compile eager", *INPUT, "--backward")
    assert ran.code == 0 and ran.out.startswith("Identical, bit for bit") and "22 compared" in ran.out
    assert config.skip_nnmodule_hook_guards == before  # type: ignore[attr-defined]


@pytest.mark.parametrize("sides", [(" --compile eager", ""), swept(("", " --compile eager"))])
@pytest.mark.sweep
def test_torch_compile_takes_hooks_as_it_did_after_one_side_was_seen_inside(
    sides: tuple[str, str], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo import config

    monkeypatch.setattr(config, "skip_nnmodule_hook_guards", True)
    ran = cli("diff", *(f"net.py:Net{more}" for more in sides), *INPUT)
    assert ran.code == 0 and "7 compared" in ran.out and "part of a compiled module" not in ran.out
    assert config.skip_nnmodule_hook_guards is True  # type: ignore[attr-defined]


@pytest.mark.parametrize("word", COMPILE)
def test_every_backend_and_mode_can_be_asked_for(word: str) -> None:
    """Programs of inductor draw the random numbers of eager mode; that is asked of no other backend."""
    assert callable(compiler(compile_settings(word))(lambda x: x))


def test_fusion_deserves_less_than_the_dtype() -> None:
    """A compiled side must be four times as near to the other as two models; gradients keep their tolerance."""
    for fused, rtol in ((False, 2.0**-11.5), (True, 2.0**-13.5)):
        tolerance = Tolerance(fused=fused)
        assert tolerance.limits("float32", "float32") == (pytest.approx(rtol), 0)
        assert tolerance.limits("float32", scale=1.0) == pytest.approx((10 * 2.0**-11.5, 0.1 * 2.0**-11.5))
        assert tolerance.limits("bfloat16")[0] == pytest.approx(2.0**-3.5)
