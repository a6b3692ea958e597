"""Warnings of PyTorch about the model's code: each kind once, with the line of the model that led there."""

from __future__ import annotations

import warnings
from itertools import starmap
from pathlib import Path

import pytest
from commands.check_nets import Cli
from support import each_once

NETS = """
import warnings
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Softmax(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return nn.functional.softmax(self.layer(x))  # softmax


class Checkpoint(Softmax):
    def forward(self, x):
        for _ in range(3):
            x = checkpoint(self.layer, x, use_reentrant=True)  # checkpoint
        return x


class Dropout(Softmax):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 4, dropout=0.5)  # lstm

    def forward(self, x):
        return self.lstm(x)[0]


class Own(Softmax):
    def forward(self, x):
        for _ in range(2):
            warnings.warn("of my own")  # own
        return self.layer(x)


class Quiet(Softmax):
    def forward(self, x):
        return self.layer(x)
"""


@pytest.mark.parametrize(
    ("command", "net", "text", "line"),
    each_once(
        [["activations"], ["check"], ["activations", "--ops", "--train"]],
        starmap(
            pytest.param,
            [
                ("Softmax", "UserWarning: Implicit dimension choice for softmax", "softmax"),
                ("Checkpoint", "UserWarning: None of the inputs have requires_grad=True", "checkpoint"),
                ("Dropout", "UserWarning: dropout option adds dropout after all but last", "lstm"),
                ("Own", "UserWarning: of my own", "own"),
                ("Quiet", "", ""),
            ],
        ),
    ),
)
def test_each_kind_is_said_once_with_the_models_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], net: str, text: str, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETS)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        ran = cli(command[0], f"nets.py:{net}", "--input", "4x4", *command[1:])
    said = [one for one in ran.err.splitlines() if "Warning" in one]
    assert len(said) == bool(text), ran.err
    if text:
        number = next(n for n, code in enumerate(NETS.splitlines(), 1) if code.endswith(f"# {line}"))
        assert said[0].startswith(f"hookcli: warning: {text}") and said[0].endswith(f"(at nets.py:{number})")
