"""`--match`: the modules, parameters and operators of which a run is recorded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from observing import observed, rows
from record.observe.programs import net, training
from torch import Tensor, nn


@pytest.mark.sweep
def test_match_narrows_modules_and_parameters() -> None:
    recorded = observed(training(1), match="2*").only
    assert set(rows(recorded, "activations")) == set(rows(recorded, "grads", "output")) == {"2"}
    assert set(rows(recorded, "grads", "parameter")) == set(rows(recorded, "updates")) == {"2.weight", "2.bias"}
    recorded = observed(training(1), match="2").only  # a module stands for its parameters
    assert set(rows(recorded, "updates")) == {"2.weight", "2.bias"}


def test_a_note_says_where_a_name_leaves_out_others_that_contain_it() -> None:
    def program() -> nn.Module:
        model = nn.Sequential(net(), nn.Tanh())
        model(torch.ones(2, 4))
        return model

    def noted(match: str) -> Sequence[str]:
        return observed(program, match=match).ran["Sequential"].notes

    assert noted("0") == ("--match 0: only what has exactly this name; '*0*' matches every name that contains it",)
    assert not noted("0.0") and not noted("linear") and not noted("0*")


@pytest.mark.parametrize(("match", "notes"), [("relu", 0), ("relo", 1), (None, 0), ("0", 0)])
def test_a_pattern_may_be_for_operators_which_are_known_once_a_step_has_run(match: str | None, notes: int) -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.ModuleList([nn.Linear(4, 4)])

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.layer[0](x))

    def program() -> nn.Module:
        model = Plain()
        for _ in range(2):
            model(torch.ones(2, 4))
        return model

    told = [note for note in observed(program, match=match, ops="functions").ran["Plain"].notes if "matches" in note]
    assert len(told) == notes and all(note.startswith("--match: no module, parameter or operator") for note in told)
