"""Healthy programs that look like faults: what they do is meant, and nothing is said of it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from capabilities.learn.test_misused import all_faults
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.forwards.batches import rows_among
from hookcli.capabilities.learn.judging.checks import FrozenBlock
from hookcli.capabilities.learn.judging.misused_loss import maximized, out_of_range, too_large
from hookcli.capabilities.learn.lines import Learning
from hookcli.capabilities.learn.losses.pairs import paired
from hookcli.capabilities.learn.losses.targets import variance
from hookcli.capabilities.learn.weights.loaded import LoadedStates
from hookcli.capabilities.learn.weights.places import frozen_between

STEPS = 6


class Twins(nn.Module):
    """Two heads, and between them a frozen one that may follow the first, as a target network does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.target, self.second, self.third = (nn.Linear(6, 3) for _ in range(4))
        self.target.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.first(x) + self.second(x) + self.third(x) + self.target(x).detach()
        return scores


def heads(*, follows: bool) -> Callable[[], nn.Module]:
    def program() -> nn.Module:
        model = Twins()
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
        for _ in range(STEPS):
            x = torch.randn(16, 6)
            optimizer.zero_grad()
            F.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
            optimizer.step()
            if follows:
                with torch.no_grad():
                    model.target.weight.lerp_(model.first.weight, 0.1)
                    model.target.bias.lerp_(model.first.bias, 0.1)
        return model

    return program


def test_a_frozen_layer_that_the_program_moves_is_no_mistake() -> None:
    assert frozen_between(Twins()) == {"target": ("first", "second")}
    (text,) = all_faults(heads(follows=False))
    assert text == "target is frozen (requires_grad=False), between first and second, which are trained"
    assert FrozenBlock.id == "HK059"
    assert not all_faults(heads(follows=True))


class Tasks(nn.Module):
    """Heads of several tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = nn.Linear(6, 64), nn.ModuleDict({name: nn.Linear(64, 3) for name in "abc"})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.body(x))
        return {name: head(hidden) for name, head in self.heads.items()}


@pytest.mark.parametrize("how", ["all", "the last one alone", swept("in turns")])
def test_a_loss_that_forgets_some_of_the_heads(how: str) -> None:
    def program() -> nn.Module:
        model = Tasks()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(STEPS):
            x = torch.randn(16, 6)
            losses = [F.cross_entropy(scores, x[:, :3].argmax(1)) for scores in model(x).values()]
            loss = {"all": sum(losses), "in turns": losses[step % 3]}.get(how, losses[-1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model

    text = "no gradient reaches heads.a, heads.b (4 of the 8 parameters of the optimizer): the loss does not use"
    assert [said.startswith(text) for said in all_faults(program)] == [True] * (how == "the last one alone")


def test_many_quantiles_of_as_many_rows_mean_all_pairs() -> None:
    outputs, y, levels = torch.randn(8, 1, requires_grad=True), torch.randn(8), torch.rand(8)
    less = y - outputs
    assert paired(torch.maximum(levels * less, (levels - 1) * less).mean()) is None
    assert paired(less.square().mean()) == ((8, 1), (8, 8))


@pytest.mark.parametrize("first", ["body", "head"])
def test_one_state_may_be_for_several_parts(first: str) -> None:
    """Each part takes what it has; a new head finds nothing in the state."""
    whole = nn.ModuleDict({"body": nn.Linear(2, 3), "head": nn.Linear(3, 4, bias=False)})
    state = {"weight": torch.zeros(3, 2), "bias": torch.zeros(3)}
    keys = {
        "body": SimpleNamespace(missing_keys=[], unexpected_keys=[]),
        "head": SimpleNamespace(missing_keys=["kernel"], unexpected_keys=[*state]),
    }
    loaded = LoadedStates()
    loaded.note(whole[first], state, keys[first])
    assert bool(loaded.words(whole)) is (first == "head")
    other = "head" if first == "body" else "body"
    loaded.note(whole[other], state, keys[other])
    assert not loaded.words(whole)


@pytest.mark.parametrize(("rows", "known"), [(30, 0), (10, 100)])
def test_a_third_of_the_rows_may_be_all_that_have_labels(rows: int, known: int) -> None:
    data = torch.randn(100, 4)
    assert rows_among(data[torch.randperm(100)[:rows]], [data]) == known


@pytest.mark.parametrize(("loss", "said"), [(3.0, True), (0.05, False)])
def test_noise_may_make_targets_that_a_model_can_not_return(loss: float, said: bool) -> None:
    lines = [Learning("Net", step, bounded="Softplus (0 or more)", beyond=0.35, spread=2.0) for step in range(6)]
    assert bool(out_of_range(lines, dict.fromkeys(range(6), loss))) is said


@pytest.mark.parametrize("said", [True, False])
def test_a_pattern_that_fools_a_frozen_model_maximizes_its_loss(said: bool) -> None:
    """Then no layer with trained weights returns the scores."""
    lines = [Learning("Net", step, maximized="cross_entropy", of_layers=said) for step in range(6)]
    assert bool(maximized({step: -0.3 - step for step in range(20)}, lines)) is said


@pytest.mark.parametrize(("first", "said"), [(0.05, True), (0.0, False)])
def test_a_loss_that_begins_with_zero_did_not_run_away(first: float, said: bool) -> None:
    lines = [Learning("Net", step, entered=36.0) for step in range(6)]
    losses = {0: first, 1: 4.0, **dict.fromkeys(range(2, 40), 0.08)}
    assert bool(too_large(losses, lines, guessed=False)) is said


@pytest.mark.parametrize("shape", [(16,), (16, 1), (16, 3, 4)])
def test_the_variance_of_targets_of_which_a_row_has_several_has_bessels_correction(shape: tuple[int, ...]) -> None:
    targets = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = targets.double().var(0, correction=int(len(shape) > 2)).mean()
    assert float(variance(targets) or 0) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("size", [4, swept(16)])
def test_small_rotations_are_no_embeddings_that_collapsed(size: int) -> None:
    """Unit quaternions near (1, 0, 0, 0) differ by less than 1 %; embeddings that are as alike have collapsed."""

    class Turns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, size - 1)
            nn.init.normal_(self.layer.weight, std=1e-3)

        def forward(self, x: Tensor) -> Tensor:
            return F.normalize(torch.cat([torch.ones(len(x), 1), self.layer(x)], 1), dim=1)

    def program() -> nn.Module:
        model = Turns()
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for _ in range(10):
            x = torch.randn(32, 6)
            optimizer.zero_grad()
            (1 - (model(x) * model(x.flip(1)).detach()).sum(1)).abs().sqrt().mean().backward()
            optimizer.step()
        return model

    assert any("embeddings of norm 1" in text for text in all_faults(program)) is (size > 8)
