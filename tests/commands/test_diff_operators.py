"""`hookcli diff --ops`: models, dumps and saved reports with operators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands.diffs import dumped, save

Cli = Callable[..., Any]

NET = """
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        x.new_empty(3)[:2]
        y = F.relu(self.layer(x).mean((1, 2)))
        return F.softmax(y, -1)
"""
FIRST = "First difference: before :softmax_1 (old.py:13 → new.py:14), only in B: :mul_1 (new.py:13); "


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two versions: the new one has a line more."""
    monkeypatch.chdir(tmp_path)
    Path("old.py").write_text(NET)
    Path("new.py").write_text(NET.replace("        return", "        y = y * 1.5\n        return"))


def test_models_dumps_and_saved_reports_name_the_line_that_only_one_side_has(cli: Cli) -> None:
    for name in ("old", "new"):
        dumped(cli, name, f"{name}.py:Net", "--ops")
        save(cli, f"{name}.json", f"{name}.py:Net", "--ops")
    sides = [("old.py:Net", "new.py:Net", "--ops", "--input", "2x3x4x4"), ("old", "new"), ("old", "new.py:Net")]
    for argv in [*sides, ("old.json", "new.json"), ("old", "new.py:Net", "--ops")]:
        ran = cli("diff", *argv, "--columns", "fqn,source,times", "--depth", "all", "-q")
        assert ran.code == 1 and ran.out.startswith(FIRST), (argv, ran.out, ran.err)
        assert "1 operator only in B" in ran.out
    ran = cli("diff", "old.py:Net", "new.py:Net", "--input", "2x3x4x4")  # looks for the operator by itself
    assert ran.out.startswith("First difference: before :softmax_1 (old.py:13 → new.py:14), only in B: :mul_1 (new.py")


def test_a_side_without_operators_is_compared_by_its_modules(cli: Cli) -> None:
    dumped(cli, "with", "old.py:Net", "--ops")
    dumped(cli, "without", "old.py:Net")
    ran = cli("diff", "with", "without")
    assert ran.code == 0 and "without has no operators: the operators of with are left out" in ran.err
    assert ran.out.startswith("Identical, bit for bit\n")
    for argv in (("with", "without", "--ops"), ("without", "old.py:Net", "--ops")):
        ran = cli("diff", *argv)
        assert (
            ran.code == 2 and ran.err == "hookcli: error: --ops: without has no operators; write the dump with --ops\n"
        )
    save(cli, "with.json", "old.py:Net", "--ops")
    save(cli, "without.json", "old.py:Net")
    ran = cli("diff", "without.json", "with.json")
    assert ran.code == 0 and "B alone was measured with --ops: its operators are left out" in ran.out
    ran = cli("diff", "without.json", "with.json", "--ops")
    assert ran.code == 2 and "--ops: saved reports and records have operators if --ops measured them" in ran.err
