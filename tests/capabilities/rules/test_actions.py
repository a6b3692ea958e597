"""`--then dump` keeps the values of every model and rule: no folder is written over."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from hookcli.capabilities.rules.actions import act, parse_then
from hookcli.capabilities.rules.lines import RuleFired


@pytest.mark.parametrize(
    ("rules", "folders"),
    [
        (["spike", "spike"], ["spike-step3", "spike-step3-2"]),  # of two models
        (["a b", "a/b", "a?b"], ["a_b-step3", "a_b-step3-2", "a_b-step3-3"]),
        (["-loss > 5", "--help"], ["help-step3", "loss_5-step3"]),
        (["...", "> <"], ["rule-step3", "rule-step3-2"]),
        (["é" * 90, "é" * 90 + "x"], ["é" * 40 + "-step3", "é" * 40 + "-step3-2"]),
    ],
)
def test_no_dump_is_written_over(tmp_path: Path, rules: list[str], folders: list[str]) -> None:
    said = []
    for number, rule in enumerate(rules):
        model = nn.Linear(2, 2)
        nn.init.constant_(model.weight, number)
        fired = RuleFired(f"model{number}", 3, rule, [], [], 1)
        said.append(act(parse_then("dump"), fired, model, tmp_path / "a.run.jsonl"))
    found = sorted((tmp_path / "a.rules").iterdir())
    assert [folder.name for folder in found] == folders
    values = [torch.load(folder / "weights.pt")["weight"][0, 0].item() for folder in found]
    assert sorted(values) == [*range(len(rules))]
    assert all(any(line.endswith(f"/{folder.name}") for line in said) for folder in found)
