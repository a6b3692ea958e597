"""What edits leave behind, and edits that do not go with a model."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from hooks.edited import OWN, Checkpointed, Keywords, grads_of
from support import Hand, Shared, equal, hooks_on, untouched
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookcli import capture, watch
from hookcli.errors import ModelError, UsageError
from hookcli.hooks.edits.base import Edit, check_edits, parse_edit
from hookcli.probes.grads import GradsProbe


@pytest.fixture(autouse=True)
def own_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "math_of_tests.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


# What it leaves behind.

EVERY = [
    "first:input=noise(0.1)",
    "relu:output=scale(2)",
    "out:grad_output=noise(0.1)",
    "relu:grad_input=clamp(min=0)",
    "*.weight:grad=square",
]


def test_nothing_is_left_after_a_capture() -> None:
    model, x = Hand(), torch.ones(3, 2)
    model(x).sum().backward()
    with untouched(model):
        [report] = capture(model, x, ["grads"], edits=EVERY)
    assert report.meta["edits"] == EVERY
    json.dumps(report.to_dict()["meta"])


@pytest.mark.parametrize("what", ["input", "output", "grad_input", "grad_output", "grad"])
def test_nothing_is_left_when_an_edit_raises(what: str) -> None:
    def raises(x: Tensor) -> Tensor:
        raise ValueError("no")

    model = Hand()
    model(torch.ones(1, 2)).sum().backward()
    edit = Edit("mine", "out.weight" if what == "grad" else "relu", what, "raises", raises)
    with untouched(model), pytest.raises(UsageError, match="raises failed: ValueError: no"):
        capture(model, torch.ones(3, 2), ["grads"], edits=[*EVERY, edit])
    before = hooks_on(model)
    with pytest.raises(UsageError, match="raises failed"), watch(model, edits=[*EVERY, edit]):
        model(torch.ones(3, 2, requires_grad=True)).sum().backward()
    assert hooks_on(model) == before and sum(before.values()) == 0


def test_nothing_is_left_when_an_edit_matches_nothing() -> None:
    model = Hand()
    for edit in ("nope:output=zero", "nope.weight:grad=zero"):
        with untouched(model), pytest.raises(UsageError, match="matches nothing"):
            capture(model, torch.ones(3, 2), ["grads"], edits=[*EVERY, edit])
        with untouched(model), pytest.raises(UsageError, match="matches nothing"), watch(model, edits=[edit]):
            pass


@pytest.mark.sweep
def test_after_edits_the_model_runs_bit_for_bit_as_before() -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None).eval()
    x = torch.randn(2, 3, 64, 64)
    before = grads_of(copy.deepcopy(model), x)
    with untouched(model):
        capture(model, x, ["grads"], edits=["*relu*:output=noise(1)", "*.bn1:grad_output=zero", "fc.*:grad=ones"])
    assert equal(before, grads_of(model, x))


@pytest.mark.sweep
def test_an_edit_that_changes_no_bit_leaves_the_run_as_it_is() -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None).train()
    x = torch.randn(2, 3, 64, 64)
    expected = grads_of(copy.deepcopy(model), x)
    every = ["*:output=scale(1)", "*:input=scale(1)", "*:grad_output=scale(1)", "*:grad=scale(1)"]
    assert equal(expected, grads_of(model, x, every))


def test_edits_do_not_keep_their_count_from_an_earlier_run() -> None:
    edit = parse_edit("relu:output=scale(2)")
    for _ in range(2):
        capture(Hand(), torch.ones(1, 2), ["activations"], edits=[edit])
    assert edit.applied == 0


# Models and edits that do not go together.


def test_gradients_where_there_are_none() -> None:
    for what in ("grad_output", "grad_input"):
        with pytest.raises(UsageError, match=r"there are no gradients here; use `hookcli grads`"):
            capture(Hand(), torch.ones(1, 2), ["activations"], edits=[f"relu:{what}=zero"])
    with pytest.raises(UsageError, match="no gradients here"):
        capture(Hand(), torch.ones(1, 2), ["shapes"], edits=["out.weight:grad=zero"])


def test_a_frozen_parameter_is_said_to_be_frozen() -> None:
    model = Hand()
    model.first.requires_grad_(False)
    with pytest.raises(UsageError, match=r"'first\.\*:grad=zero' matches nothing: .*frozen"):
        check_edits([parse_edit("first.*:grad=zero")], model, backward=True)
    with pytest.raises(UsageError, match=r"no parameter matches 'firs\.weight'; did you mean 'first\.weight'"):
        check_edits([parse_edit("firs.weight:grad=zero")], model, backward=True)


def test_a_module_is_not_a_parameter_and_the_reverse() -> None:
    with pytest.raises(UsageError, match=r"first is a module: name its parameters, as in 'first\.\*:grad'"):
        check_edits([parse_edit("first:grad=zero")], Hand(), backward=True)
    with pytest.raises(
        UsageError, match=r"first\.weight is a parameter: what changes is its gradient, 'first\.weight:grad'"
    ):
        check_edits([parse_edit("first.weight:output=zero")], Hand(), backward=True)


def test_a_tied_parameter_is_known_by_its_first_name() -> None:
    with pytest.raises(UsageError, match=r"head\.weight is another name of embed\.weight: use that"):
        check_edits([parse_edit("head.weight:grad=zero")], Shared(), backward=True)


def test_what_never_ran_and_what_no_gradient_reached() -> None:
    class Leaves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    for edit, reason in {
        "unused:output=zero": "what it matches was never called, or had no tensor as output",
        "unused:grad_output=zero": "no gradient reached it",
        "unused.weight:grad=zero": "no gradient reached it",
        "used:grad_input=zero": "no gradient reached it",
    }.items():
        with untouched(model := Leaves()), pytest.raises(UsageError, match=reason) as caught:
            capture(model, torch.ones(1, 2), [GradsProbe("outputs")], edits=[edit])
        assert [row.fqn for row in caught.value.reports[0].rows] == ["", "used"]


def test_the_model_failing_is_the_models_error() -> None:
    class Fails(Hand):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("lost")

    with pytest.raises(ModelError, match="KeyError"):
        capture(Fails(), torch.ones(1, 2), ["activations"], edits=["relu:output=zero"])


def test_a_long_error_of_pytorch_is_cut_to_its_first_line() -> None:
    model = nn.Embedding(10, 3, sparse=True)
    with pytest.raises(UsageError, match=r"at grad of weight: zero failed: NotImplementedError") as caught:
        capture(model, torch.tensor([1, 2]), ["grads"], edits=["weight:grad=zero"])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    [row] = capture(model, torch.tensor([1, 2]), ["grads"], edits=["weight:grad=scale(2)"])[0].rows
    assert row["max"] == 2.0


# Known faults, outside of edits themselves; each test begins to pass when its fault is mended.


def test_a_list_edited_twice_is_the_callers_again() -> None:
    with watch(Keywords(), edits=["inner:input=scale(10)", "inner:input=scale(10)"]) as seen:
        found = seen.session.model(torch.ones(2))
    assert found["sum of the list"].tolist() == [5, 5]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_module_in_two_checkpoints_gets_the_noise_of_its_own_call(reentrant: bool) -> None:
    class Twice(Checkpointed):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(2):
                x = checkpoint(self.part, x, use_reentrant=reentrant) if self.reentrant is not None else self.part(x)
            return self.out(x)

    torch.manual_seed(0)
    model, x = Twice(reentrant).double(), torch.randn(3, 4, dtype=torch.float64)
    found = grads_of(copy.deepcopy(model), x, ["two:output=noise(1)"])
    model.reentrant = None  # type: ignore[assignment]
    torch.testing.assert_close(found, grads_of(model, x, ["two:output=noise(1)"]))


def test_noise_given_twice_is_two_noises() -> None:
    with watch(nn.Identity(), edits=["(model):output=noise(1)"] * 2) as seen:
        spread = seen.session.model(torch.zeros(100_000)).std().item()
    assert abs(spread - 2**0.5) < 0.02


@pytest.mark.parametrize("reentrant", [False, True])
def test_each_call_is_repeated_with_its_own_noise_however_checkpoints_cut(reentrant: bool) -> None:
    """One module: called outside of any checkpoint, twice in one, once in another, and outside again."""

    class Cut(nn.Module):
        def __init__(self, cut: bool) -> None:
            super().__init__()
            self.part = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
            self.cut = cut

        def region(self, function: Any, x: Tensor) -> Tensor:
            return checkpoint(function, x, use_reentrant=reentrant) if self.cut else function(x)

        def forward(self, x: Tensor) -> Tensor:
            x = self.part(x)
            x = self.region(lambda x: self.part(self.part(x)), x)
            x = self.region(self.part, x)
            return self.part(x).pow(2)

    torch.manual_seed(0)
    cut, x = Cut(True).double(), torch.randn(4, 3, dtype=torch.float64)
    whole = Cut(False).double()
    whole.load_state_dict(cut.state_dict())
    edits = ["part*:output=noise(1)"]
    torch.testing.assert_close(grads_of(cut, x, edits), grads_of(whole, x, edits))
