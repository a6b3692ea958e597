"""The table of hooks: whole, true, and the same in docs/hooks.md as on the command line."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hookcli.cli import main
from hookcli.commands import COMMANDS
from hookcli.hooks.kinds import HOOKS, HookKind

PAGE = Path(__file__).parents[2].joinpath("docs/hooks.md").read_text()


def test_every_kind_is_in_the_table_once() -> None:
    names = [hook.name for hook in HOOKS]
    assert len(set(names)) == len(names)
    assert set(HookKind) <= set(names)


def test_the_page_has_the_table() -> None:
    lines = [f"| {h.name} | {h.fires} | {h.registered_by} | hookcli {h.command} |" for h in HOOKS]
    assert [line for line in PAGE.splitlines() if line in lines] == lines


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.name)
def test_pytorch_has_what_registers_it(hook: object) -> None:
    """The registering call is looked up in PyTorch; those of C++ in its headers."""
    call = hook.registered_by  # type: ignore[attr-defined]
    if "::" in call:
        name = call.rpartition("::")[2]
        headers = Path(torch.__file__).parent / "include"
        places = ("torch/csrc/autograd", "ATen/templates", "ATen/core")
        assert any(name in path.read_text() for place in places for path in (headers / place).glob("*.h"))
        return
    if call.endswith("node_creation_hook") and not hasattr(torch.autograd.graph, "node_creation_hook"):
        pytest.skip("PyTorch has this hook since 2.14")
    if call.endswith("queue_callback") and not hasattr(torch.autograd.graph, "queue_callback"):
        pytest.skip("public since torch 2.15")
    call = call.replace("get_gradient_edge(p).node", "Node")
    if call.startswith("distributed.") and not hasattr(torch.distributed.ProcessGroup, "register_pre_hook"):
        pytest.skip("PyTorch has this hook since 2.14")
    if call.startswith("PackageExporter"):
        call = f"package.{call}"
    *path, name = call.split(".")
    found: object = torch
    for part in path:
        found = getattr(found, part, None) or importlib.import_module(f"torch.{'.'.join(path[: path.index(part) + 1])}")
    assert callable(getattr(found, name))


@pytest.mark.parametrize("command", sorted({hook.command for hook in HOOKS}))
def test_every_command_of_the_table_works(command: str, net: Path, cli: Callable[..., Any]) -> None:
    words = shlex.split(command)
    assert words[0] in COMMANDS
    if "--native" in words:
        from hookcli.hooks.native import build

        if build.compiler() is None:
            pytest.skip("needs a C++ compiler")
    (net / "table.py").write_text(
        "from torch import nn\ndef two():\n    return nn.Sequential(nn.Linear(3, 4), nn.Tanh())\n"
    )
    inputs = [] if words[0] in ("hooks", "package") else ["--input", "2x3"]
    extern = ["--extern", "**"] if words[0] == "package" else []
    ran = cli(words[0], "table.py:two", *words[1:], *inputs, *extern)
    assert ran.code == 0, ran.err


@pytest.mark.skipif(not hasattr(torch.autograd.graph, "node_creation_hook"), reason="PyTorch has this hook since 2.14")
def test_the_readme_shows_pytorchs_order(net: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The block in the page is what `trace` prints."""
    (net / "pair.py").write_text(
        "from torch import nn\ndef two():\n    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))\n"
    )
    kinds = "forward*,full*,tensor*,post*,multi*,optimizer_step*"
    wanted = ["--kinds", kinds, "--columns", "kind,fqn", "--depth", "all", "--format", "csv"]
    assert main(["trace", "pair.py:two", "--input", "1x3", "--quiet", *wanted]) == 0
    found = [tuple(line.split(",")) for line in capfd.readouterr().out.splitlines()[1:]]
    block = re.search(r"```\n(forward_pre .*?)\n```", PAGE, re.DOTALL)
    assert block is not None
    shown = [tuple(line.split()) for line in block[1].splitlines()]
    assert [(kind, fqn or "(model)") for kind, fqn in found] == shown
