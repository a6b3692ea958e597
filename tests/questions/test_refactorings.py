"""Did my refactoring change the model? Its modules have other names, and one thing is changed."""

from __future__ import annotations

import random
import re

import pytest
from questions.asking import Asker
from support import swept

RENAMED = [
    *(("conv1", "proj_a"), ("conv2", "proj_b"), ("bn1", "norm_a"), ("bn2", "norm_b"), ("down", "shortcut")),
    *(("layer1", "stage_a"), ("layer2", "stage_b"), ("layer3", "stage_c"), (".fc", ".classifier")),
]
PLANTED = {
    "eps": (
        ("self.norm_b = nn.BatchNorm2d(b)", "self.norm_b = nn.BatchNorm2d(b, eps=1e-2)"),
        r"3 BatchNorm2ds: changed eps \(1e-05 → 0\.01\); first difference: layer1\.bn2, relative error ",
    ),
    "stride": (
        ("self.stage_b = Residual(16, 32, 2)", "self.stage_b = Residual(16, 32, 1)"),
        r"2 Conv2ds: changed stride \(2 → 1\); first difference: layer2\.conv1, shape 4x32x8x8 → 4x32x16x16 ",
    ),
    "residual": (("y + self.shortcut(x)", "y"), r"First difference: layer1\.down, called in A only "),
    "pool": (
        ("nn.AdaptiveAvgPool2d(1)", "nn.AdaptiveMaxPool2d(1)"),
        r"pool \(AdaptiveAvgPool2d\) is AdaptiveMaxPool2d in B; first difference: pool, relative error ",
    ),
    "bias": (
        ("self.pool =", "nn.init.ones_(self.stem.bias)\n        self.pool ="),
        r"First difference: stem \(bias differs\), relative error ",
    ),
}
INPUT = "--input 4x3x16x16"


@pytest.mark.sweep
def test_only_names_changed(ask: Asker) -> None:
    ask.copy("residual.py", "new.py", *RENAMED)
    answer = ask(f"hookcli diff residual.py:Net new.py:Net {INPUT}")
    assert answer.first == "Identical, bit for bit (22 modules renamed)" and "Next:" not in answer.out


@pytest.mark.parametrize("planted", [swept(p) if p in ("bias", "pool", "eps", "stride") else p for p in PLANTED])
def test_the_change_is_the_first_line(ask: Asker, planted: str) -> None:
    change, said = PLANTED[planted]
    ask.copy("residual.py", "new.py", *RENAMED, change)
    width = random.Random(planted).choice(["80", "120", "200"])
    answer = ask(f"hookcli diff residual.py:Net new.py:Net {INPUT}", code=1, COLUMNS=width)
    head = " ".join(answer.out.split("residual.py:Net →")[0].split())
    assert re.match(said, head), head


@pytest.mark.sweep
def test_other_random_numbers_are_told_from_other_code(ask: Asker) -> None:
    """Every weight differs; the command that the last line names takes A's, and then nothing differs."""
    ask.copy(
        "residual.py",
        "new.py",
        *RENAMED,
        ("super().__init__()\n        self.stem", "super().__init__()\n        torch.rand(1)\n        self.stem"),
    )
    answer = ask(f"hookcli diff residual.py:Net new.py:Net {INPUT}", code=1)
    assert answer.first.startswith("First difference: stem (weight and bias differ), relative error ")
    assert ask(answer.next).first == "Identical, bit for bit (22 modules renamed)"


@pytest.mark.sweep
def test_a_setting_that_changes_no_figure_is_told(ask: Asker) -> None:
    ask.copy(
        "residual.py",
        "new.py",
        *RENAMED,
        ("self.norm_a = nn.BatchNorm2d(b)", "self.norm_a = nn.BatchNorm2d(b, momentum=0.2)"),
    )
    answer = ask(f"hookcli diff residual.py:Net new.py:Net {INPUT}")
    idle = "3 BatchNorm2ds: changed momentum (0.1 → 0.2), which acts only in train mode"
    assert answer.first == f"Identical, bit for bit (22 modules renamed); {idle}"
    assert "settings differ: momentum in layer1.bn1, layer2.bn1, layer3.bn1" in answer.out
