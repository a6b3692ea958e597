"""Mistakes in the arguments of `hookcli.watch` are told of the argument that was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hookcli
from hookcli.errors import UsageError
from hookcli.record.model_recording import ModelRecording

OF_TRAINING = ": is for the record of a whole training; add every=100"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rules": "loss > 1"}, f"rules{OF_TRAINING}"),
        ({"output": "x.run.jsonl"}, f"output{OF_TRAINING}"),
        ({"max_seconds": 3}, f"max_seconds{OF_TRAINING}"),
        ({"every": 2, "edits": "0:output=zero"}, "edits: is for a single step; leave out every"),
        ({"every": 2, "select": None}, "select: is for a single step"),
        ({"evry": 2}, "unknown argument 'evry'"),
        ({"every": 2, "mtch": "*"}, "unknown argument 'mtch'; did you mean match"),
        ({"every": "2"}, "every='2': give a whole number, not str"),
        ({"every": 2, "match": 5}, "match=5: give a text, not int"),
        ({"every": 2, "max_seconds": "x"}, "max_seconds='x': give a number, not str"),
        ({"every": 2, "rules": [3]}, "rules=[3]: give a text or a list of texts, not list"),
        ({"every": 2, "keep_bad": 3}, "keep_bad=3: give a text or a path, not int"),
        ({"fastpath": "no"}, "fastpath='no': give True or False, not str"),
        ({"name": 3}, "name=3: give a text, not int"),
    ],
)
def test_settings(settings: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as raised:
        hookcli.watch(nn.Linear(2, 2), **settings)
    assert said in str(raised.value) and not [*tmp_path.iterdir()]


@pytest.mark.parametrize("model", [None, "resnet18", nn.Linear])
@pytest.mark.parametrize("settings", [{}, {"every": 2}])
def test_what_is_no_model(model: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"model=.*: give an nn.Module, not "):
        hookcli.watch(model, **settings)
    with pytest.raises(UsageError, match=r"model=.*: give an nn.Module, not "):
        ModelRecording(model)


def test_numbers_and_paths_of_other_classes(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"every": np.int64(2), "max_seconds": np.float32(9), "output": tmp_path / "a.run.jsonl"}
    model = nn.Linear(2, 2)
    with hookcli.watch(model, rules=("spike: loss > 5",), hist=True, **settings):
        model(torch.ones(1, 2))
    assert (tmp_path / "a.run.jsonl").exists()
