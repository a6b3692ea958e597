"""hookcli recognizes a file that trains when it is imported, and one that trains only when it is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from hookcli.sources.module_code import trains_on_import

MODEL = """
import torch
class Net(torch.nn.Linear):
    def __init__(self): super().__init__(4, 2)
    def training_step(self, x): return self(x).sum().backward()
"""
LOOP = "net = Net()\nfor _ in range(3):\n    net(torch.randn(2, 4)).sum().backward()\n"
IN_FUNCTION = "def main():\n    Net()(torch.randn(2, 4)).sum().backward()\n"


@pytest.mark.parametrize(
    ("code", "trains"),
    [
        (MODEL, False),
        (MODEL + LOOP, True),
        (MODEL + IN_FUNCTION, False),
        (MODEL + IN_FUNCTION + "main()\n", True),
        (MODEL + IN_FUNCTION + "if __name__ == '__main__':\n    main()\n", False),
        ("def (", False),
    ],
)
def test_the_training_at_the_top_level_is_seen(tmp_path: Path, code: str, trains: bool) -> None:
    (tmp_path / "net.py").write_text(dedent(code))
    assert trains_on_import(f"{tmp_path / 'net.py'}:Net") == trains
    assert not trains_on_import("resnet50") and not trains_on_import(f"{tmp_path / 'other.py'}:Net")


def test_it_is_said_before_the_import(tmp_path: Path, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL + LOOP)
    ran = cli("shapes", "net.py:Net", "--input", "2x4")
    said = 'hookcli: net.py trains as it is imported: put the training under if __name__ == "__main__":\n'
    assert (ran.code, ran.err) == (0, said)
