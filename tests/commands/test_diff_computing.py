"""`hookcli diff` of one model that computes in two ways: options of one side, and B left out."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from support import swept
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Cli = Callable[..., Any]
INPUT = ("--input", "2x5x8")
FILE = """
import torch
from torch import nn
from torch.nn import functional as F

class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 4)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (2, 12)).transpose(1, 2).chunk(3, -1)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.out(x.transpose(1, 2).flatten(2))
"""


@pytest.fixture(autouse=True)
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch._dynamo.reset()
    (tmp_path / "net.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(cli: Cli, *argv: str) -> dict[tuple[str, str], dict[str, Any]]:
    ran = cli("diff", *argv, *INPUT, "-f", "json")
    assert ran.code in (0, 1), ran.err
    return {(row["fqn"], row["kind"]): row for row in json.loads(ran.out)["reports"][0]["rows"]}


def by_hand(within: AbstractContextManager[object]) -> dict[str, Tensor]:
    """The output of the model as `diff` builds it, and the gradients of its sum."""
    torch.manual_seed(0)
    model: nn.Module = runpy.run_path("net.py")["Attends"]()
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    with within:
        output = model(x)
        loss = output.sum()
    loss.backward()
    return {"": output.detach(), **{name: p.grad for name, p in model.named_parameters() if p.grad is not None}}


def apart(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / a.double().norm())


@pytest.mark.parametrize(
    ("option", "within"),
    [
        ("--amp", torch.autocast("cpu", torch.bfloat16)),
        swept("--amp float16", torch.autocast("cpu", torch.float16)),
        swept("--attention math", sdpa_kernel(SDPBackend.MATH)),
    ],
)
def test_a_side_computes_as_by_hand(cli: Cli, option: str, within: AbstractContextManager[object]) -> None:
    """Figures are those of a plain model and one in PyTorch's own context, whose backward runs outside of it."""
    found = rows(cli, f"net.py:Attends {option}", "--backward")
    a, b = by_hand(nullcontext()), by_hand(within)
    assert apart(a[""], b[""]) > 0
    for name, x in a.items():
        assert found[name, "grad" if name else "output"]["rel_l2"] == pytest.approx(apart(x, b[name]), rel=1e-3), name


def test_both_sides_compute_alike(cli: Cli) -> None:
    """What one side switches is off while the other runs, and on again afterwards."""
    for option in ("--amp", "--attention math"):
        ran = cli("diff", f"net.py:Attends {option}", f"net.py:Attends {option}", *INPUT)
        assert ran.out.startswith("Identical, bit for bit"), option
    assert torch.backends.cuda.flash_sdp_enabled() and not torch.is_autocast_enabled("cpu")


def test_without_b_only_options_on_computing_differ(cli: Cli) -> None:
    name = "net.py:Attends --seed 3 --path ."
    ran = cli("diff", f"{name} --train --dtype=bfloat16", *INPUT, "-f", "json")
    assert ran.code == 0
    report = json.loads(ran.out)["reports"][0]
    assert report["model"] == f"net.py:Attends --seed 3 --train --path . → {name} --train --dtype=bfloat16"
    a, b = report["meta"]["a"], report["meta"]["b"]
    assert (a["seed"], a["mode"], a["dtype"]) == (3, "train", "float32")
    assert (b["seed"], b["mode"], b["dtype"]) == (3, "train", "bfloat16")
