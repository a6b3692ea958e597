"""Rows that mix in a model which learns nothing, and is run for that; each fault beside a correct sibling."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from capabilities.learn.test_misused import all_faults
from observing import observed
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.forwards.trial import PLACE, may_run
from hookcli.capabilities.learn.lines import Learning
from hookcli.record.observe.parts import BegunStep
from hookcli.tensors.stats import Reducer

B, T, D = 16, 4, 8
STEPS = 30
OverTime = Callable[[Tensor], Tensor]
IGNORES = "gives the same whatever gradient it gets: multiply by grad_output"
MIXED = "the output for a row also depends on other rows of its batch"


class Clips(nn.Module):
    """Returns scores for the frames (B, T, D) of clips, and keeps an account of its calls."""

    def __init__(self, over_time: OverTime) -> None:
        super().__init__()
        self.frame, self.drop, self.head = nn.Linear(D, D), nn.Dropout(0.2), nn.Linear(D, 4)
        self.over_time = over_time
        self.calls, self.draws = 0, True
        self.seen: list[int] = []
        self.register_buffer("number", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        self.number += 1
        if self.draws:
            random.random()
        print("called")
        scores: Tensor = self.head(self.over_time(self.drop(self.frame(x.flatten(0, 1)))))
        return scores


WAYS: dict[str, tuple[OverTime, str]] = {
    "a view for a permute": (lambda x: x.view(T, B, D).mean(0), "view"),
    "a softmax over rows": (lambda x: x.view(B, T, D).mean(1) * x.view(B, T, D).mean(1).softmax(0), "softmax"),
    "times a mean over rows": (lambda x: x.view(B, T, D).mean(1) * x.mean(0).exp(), "mean"),
    "right": (lambda x: x.view(B, T, D).mean(1), ""),
    "items that see each other": (lambda x: attention(x.view(B, T, D).mean(1)), ""),
}


def attention(x: Tensor) -> Tensor:
    """Rows that are compared with each other, as of a set."""
    return (x @ x.T).softmax(1) @ x


def program(
    over_time: OverTime,
    *,
    steps: int = STEPS,
    learns: bool = False,
    prepare: Callable[[nn.Module], object] = lambda model: None,
) -> Callable[[], dict[str, Any]]:
    """A training on labels at random, which end near guessing; or one that `learns` to name the largest mean."""

    def run() -> dict[str, Any]:
        random.seed(0)
        model = Clips(over_time)
        prepare(model)
        optimizer = torch.optim.SGD(model.parameters(), 1.0 if learns else 1e-3)
        for _ in range(steps):
            x = torch.randn(B, T, D)
            y = x[..., :4].mean(1).argmax(1) if learns else torch.randint(4, (B,))
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        after = [random.random(), model.calls, len(model.seen), *torch.rand(2).tolist()]
        return {**model.state_dict(), "after": torch.tensor(after)}

    return run


def said(run: Callable[[], dict[str, Any]]) -> list[str]:
    """What the lines of a run say of rows that mix; nothing of it is otherwise than without hookcli."""
    lines = [line for line in observed(run, trial=True).of_parts if isinstance(line, Learning)]
    assert len(lines) == STEPS
    return [line.tried for line in lines]


@pytest.mark.parametrize("way", WAYS)
def test_rows_that_mix(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    over_time, operator = WAYS[way]
    *_, last = said(program(over_time))
    assert last.startswith(MIXED) is bool(operator)
    assert operator in last
    assert capsys.readouterr().out == "called\n" * 2 * STEPS  # with hookcli, and without


@pytest.mark.parametrize(("by_row", "expected"), [(True, True), (False, False)])
def test_rows_that_depend_on_their_places(by_row: bool, expected: bool) -> None:
    """Positional codes for tokens, which a model with the batch first adds to rows."""
    codes = torch.linspace(-3, 3, B)[:, None]

    def over_time(x: Tensor) -> Tensor:
        x = x.view(B, T, D)
        return (x + (codes[:, None] if by_row else codes[:T])).mean(1)

    *_, last = said(program(over_time, prepare=lambda model: setattr(model, "draws", False)))
    assert last == PLACE * expected


def test_a_model_that_learns_is_not_run() -> None:
    calls = list[int]()

    def counted(x: Tensor) -> Tensor:
        calls.append(1)
        return x.view(B, T, D).mean(1)

    assert not any(said(program(counted, learns=True)))
    assert len(calls) == 2 * STEPS
    assert not any(said(program(counted)))
    assert len(calls) > 4 * STEPS  # one that does not learn is run


def test_no_model_is_run_unless_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    calls = list[int]()

    def counted(x: Tensor) -> Tensor:
        calls.append(1)
        return x.view(T, B, D).mean(0)

    lines = [line for line in observed(program(counted)).of_parts if isinstance(line, Learning)]
    assert not any(line.tried for line in lines)
    assert len(calls) == 2 * STEPS


HOOKED: dict[str, Callable[[nn.Module], object]] = {
    "forward": lambda model: model.head.register_forward_hook(lambda *_: None),
    "forward pre": lambda model: model.frame.register_forward_pre_hook(lambda *_: None),
}


@pytest.mark.parametrize("hook", HOOKED)
def test_hooks_of_the_program_see_no_run_that_is_not_its_own(hook: str) -> None:
    over_time, _ = WAYS["a view for a permute"]
    assert not any(said(program(over_time, prepare=HOOKED[hook])))


def always_trains(mode: bool = True) -> nn.Module:
    raise RuntimeError("it has no eval mode")


def test_a_model_without_eval_mode_is_left_alone() -> None:
    over_time, _ = WAYS["a view for a permute"]
    assert not any(said(program(over_time, prepare=lambda model: setattr(model, "train", always_trains))))


class Scaled(torch.autograd.Function):
    """Twice its input; its backward is right."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad


class Ignores(Scaled):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.full_like(x, 2.0)


class Penalized(Scaled):
    """It adds the gradient of a penalty."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * grad + 0.01 * x.sign()


class Fails(Scaled):
    """Its backward may be called once."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if not grad.any():
            raise ValueError("no gradient")
        return 2 * grad


class Anew(nn.Module):
    """Makes a layer in each forward, or once, in the first."""

    def __init__(self, *, once: bool) -> None:
        super().__init__()
        self.body, self.once, self.kept = nn.Linear(D, D), once, list[nn.Module]()

    def forward(self, x: Tensor) -> Tensor:
        head = self.kept[0] if self.kept else nn.Linear(D, 4)
        if self.once and not self.kept:
            self.kept.append(head)
        scores: Tensor = head(self.body(x.mean(1)))
        return scores


@pytest.mark.parametrize("once", [False, True])
def test_a_layer_that_each_forward_makes(once: bool) -> None:
    def run() -> dict[str, Any]:
        model = Anew(once=once)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for _ in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(B, T, D)), torch.randint(4, (B,))).backward()
            optimizer.step()
        return {**model.state_dict(), "after": torch.rand(2)}

    *_, last = said(run)
    assert (
        last == ""
        if once
        else last.startswith("its forward makes a new parameter of shape 4x8 and 1 more in each call")
    )


@pytest.mark.parametrize("function", [Scaled, Ignores, Penalized, Fails])
def test_a_backward_that_ignores_the_gradient_it_gets(function: type[torch.autograd.Function]) -> None:
    *_, last = said(program(lambda x: function.apply(x.view(B, T, D).mean(1))))
    assert last == (f"the backward of {function.__name__} {IGNORES}" if function is Ignores else "")


def test_the_headline_names_what_mixes() -> None:
    over_time, operator = WAYS["a view for a permute"]
    [fault] = all_faults(program(over_time, steps=100), trial=True)
    assert "no better than guessing among 4 classes" in fault
    assert fault.startswith(MIXED)
    assert operator in fault


@pytest.mark.parametrize("compiled", [{}, {"": "torch.compile runs it"}])
def test_a_compiled_model_is_left_alone(compiled: dict[str, str]) -> None:
    model = nn.Linear(2, 2)
    begun = BegunStep("Linear", model, str, True, (), True, False, Reducer(), compiled=compiled)
    assert may_run(begun) is not bool(compiled)


def test_what_mixes_is_named_where_the_level_of_guessing_is_unknown() -> None:
    over_time, operator = WAYS["a softmax over rows"]

    def unknown() -> nn.Module:
        model = Clips(over_time)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for _ in range(STEPS):
            optimizer.zero_grad()
            outputs = model(torch.randn(B, T, D))
            ((outputs - torch.randn(B, 4)).abs().mean() + 0.1 * outputs.square().mean()).backward()
            optimizer.step()
        return model

    [fault] = all_faults(unknown, trial=True)
    assert "; the loss has " in fault
    assert fault.startswith(MIXED)
    assert operator in fault
    assert not all_faults(unknown)


def test_a_note_tells_what_a_trial_has_done() -> None:
    over_time, _ = WAYS["right"]
    expected = "Clips: --trial has run it on one batch, and found none of the faults that it looks for: "
    assert any(note.startswith(expected) for note in observed(program(over_time), trial=True).notes)
    assert not any("--trial" in note for note in observed(program(over_time)).notes)


def test_a_note_tells_of_a_model_that_was_not_tried() -> None:
    def learns() -> nn.Module:
        model = nn.Linear(D, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        for _ in range(STEPS):
            x = 3 * torch.randn(B, D)
            optimizer.zero_grad()
            F.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
            optimizer.step()
        return model

    expected = "Linear: --trial did not run it, as too few losses after step 16 were near that of guessing"
    assert expected in observed(learns, trial=True).notes


def test_nodes_that_a_matrix_of_all_pairs_brings_together_may_mix() -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(D, D), nn.Linear(D, 4)

        def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
            scores: Tensor = self.head(adjacency @ self.first(x).relu())
            return scores

    def program() -> nn.Module:
        model = Graph()
        adjacency = torch.rand(B, B).softmax(1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for _ in range(100):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(B, D), adjacency), torch.randint(4, (B,))).backward()
            optimizer.step()
        return model

    [text] = all_faults(program, trial=True)
    assert "guessing among 4 classes" in text
    assert MIXED not in text
