"""The source that rebuilds a module that was kept: its repr, or the definitions that its class needs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch import nn

from hookcli.capabilities.keep_bad.module_source import _builds, definitions, module_source

OMITTING = (nn.L1Loss(reduction="sum"), nn.CosineSimilarity(dim=0), nn.PairwiseDistance(p=1))
TELLING = (nn.Linear(2, 3), nn.L1Loss(), nn.Conv2d(2, 4, (3, 5), padding=1), nn.BatchNorm1d(3), nn.GRU(2, 3, 2))


@pytest.mark.parametrize("module", OMITTING + TELLING, ids=repr)
def test_a_repr_that_omits_settings_builds_no_module(module: nn.Module) -> None:
    assert _builds(f"torch.nn.{module!r}", module.eval()) == (module in TELLING)


def test_a_module_without_source_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Typed(nn.Module):
        """As one that somebody has typed into a prompt."""

    Typed.__module__, Typed.__qualname__ = "__main__", "Typed"
    monkeypatch.setattr(sys.modules["__main__"], "Typed", Typed, raising=False)
    found = module_source(Typed(), tmp_path / "bad.pt")
    assert found.expression == "..." and "Typed can't be built from the program's source" in found.comment
    assert list(tmp_path.iterdir()) == []


SOURCE = """
'a program'
from __future__ import annotations
import os.path as path, sys
from .parts import Block
from torch import *
try:
    from fast import kernel
except ImportError:
    kernel = None
width, depth = 4, 2
model = Block(width)
def used(x): return kernel or helper(x, model_width=width)
def helper(x, model_width): model = 1; return model
class Net(Block):
    size: Size = width
    def forward(self, x): return used(x)
for step in range(3):
    late = model(step)
if __name__ == "__main__":
    guarded = 1
"""


def test_definitions_are_those_that_a_class_needs() -> None:
    found = definitions(SOURCE, ["Net"], "package")
    assert [line.partition("\n")[0] for line in found] == [
        "from __future__ import annotations", "from package.parts import Block", "from torch import *", "try:",
        "width, depth = (4, 2)", "def used(x):", "def helper(x, model_width):", "class Net(Block):",
    ]  # fmt: skip
    for name in ("late", "guarded", "nothing"):
        with pytest.raises(LookupError, match=name):
            definitions(SOURCE, [name])
