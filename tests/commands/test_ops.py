"""`--ops` as it is typed, with the options that select."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from hookcli.cli import main

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.fc(x)) + x
"""


Run = Callable[..., tuple[int, list[tuple[str, str]], str]]


@pytest.fixture
def activations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `hookcli activations` with some arguments; returns the exit code, the rows' names, and stderr."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)

    def run(*arguments: str) -> tuple[int, list[tuple[str, str]], str]:
        code = main(["activations", *arguments, "--input", "2x4", "--format", "csv"])
        out, err = capsys.readouterr()
        return code, [(row["fqn"], row.get("source", "")) for row in csv.DictReader(io.StringIO(out))], err

    return run


def test_ops_may_stand_without_a_value_before_the_model_and_at_the_end(activations: Run) -> None:
    expected = [("", ""), ("fc", ""), (":relu_1", "net.py:11"), (":add_1", "net.py:11")]
    for arguments in (["--ops", "net.py:Net"], ["net.py:Net", "--ops"], ["net.py:Net", "--ops=functions"]):
        assert activations(*arguments)[:2] == (0, expected)
    assert [fqn for fqn, _ in activations("net.py:Net", "--ops", "aten")[1]][1:3] == ["fc", "fc:t_1"]
    code, _, said = activations("net.py:Net", "--ops=atn")
    assert code == 2 and "--ops" in said and "did you mean aten?" in said
    assert activations("net.py:Net", "--ops", "atn")[2] == said
    code, _, said = activations("--ops", "resnet81")
    assert code == 2 and "unknown model 'resnet81'; did you mean resnet18" in said


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--match", "*:add_*"], [":add_1"]),
        (["--match", ":relu_1"], [":relu_1"]),
        (["--type", "relu"], [":relu_1"]),
        (["--match", "add"], [":add_1"]),
    ],
)
def test_operators_are_selected_as_modules_are(activations: Run, arguments: list[str], expected: list[str]) -> None:
    code, rows, _ = activations("net.py:Net", "--ops", *arguments)
    assert (code, [fqn for fqn, _ in rows]) == (0, expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--match", ":rel_1"], "no module, parameter or operator matches ':rel_1'; did you mean ':relu_1'?"),
        (["--type", "rleu"], "unknown --type 'rleu'; did you mean relu?"),
    ],
)
def test_what_matches_nothing_that_ran_is_an_error_with_the_nearest_name(
    activations: Run, arguments: list[str], message: str
) -> None:
    code, rows, said = activations("net.py:Net", "--ops", *arguments)
    assert (code, rows) == (2, []) and message in said
