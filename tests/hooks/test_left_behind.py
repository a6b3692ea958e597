"""What hooks leave behind: nothing, also after errors."""

from __future__ import annotations

import contextlib
import gc
import weakref
from functools import partial

import pytest
import torch
from hooks.graphs_left import X
from support import Shared, equal
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookcli
from hookcli.capabilities.trace.probe import TraceProbe
from hookcli.engine.probing import parse_edits
from hookcli.errors import ModelError
from hookcli.hooks.events import HookEvent
from hookcli.hooks.kinds import FULL_BACKWARD, SAVED_TENSOR, HookKind
from hookcli.hooks.session import HookSession
from hookcli.probes.grads import GradsProbe


class Unused(nn.Module):
    """Keeps the output of a sigmoid for a backward that never comes to it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
        self.seen: weakref.ref[Tensor] | None = None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        unused = torch.sigmoid(self.b(x))
        self.seen = weakref.ref(unused)
        return self.a(x).sum(), unused


@pytest.mark.parametrize("kinds", [SAVED_TENSOR, tuple(HookKind)], ids=["saved", "all"])
def test_what_is_kept_for_a_backward_that_never_comes_is_freed(kinds: tuple[HookKind, ...]) -> None:
    model = Unused()
    hookcli.capture(model, X, [TraceProbe(kinds)], loss=lambda output: output[0])
    gc.collect()
    assert model.seen is not None and model.seen() is None
    with hookcli.watch(model, [TraceProbe(kinds)]):
        for _ in range(3):
            model(X)
            gc.collect()
            assert model.seen() is None


def test_a_tensor_changed_after_it_was_kept_is_refused_as_without_hooks() -> None:
    class Changes(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.exp(super().forward(x))
            z = y.sum()
            y.mul_(5)
            return z

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        Changes(2, 2)(X).backward()
    with pytest.raises(ModelError, match="modified by an inplace operation"):
        hookcli.capture(Changes(2, 2), X, [TraceProbe(SAVED_TENSOR)])


@pytest.mark.parametrize("kinds", [FULL_BACKWARD, FULL_BACKWARD[:1], FULL_BACKWARD[1:]])
def test_calls_of_full_backward_hooks(kinds: tuple[HookKind, ...]) -> None:
    report = hookcli.capture(Shared(), torch.tensor([1, 2]), [TraceProbe(kinds)])[0]
    for kind in kinds:
        assert [row["call"] for row in report.rows if row["kind"] == kind and row.fqn == "mix"] == [2, 1, 0]
        assert [row["call"] for row in report.rows if row["kind"] == kind and row.fqn == "head"] == [0]


def test_a_call_that_needed_no_gradient_shifts_no_other() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.act = nn.Linear(2, 2), nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            y = self.act(self.layer(x))
            return y + self.act(x)

    calls = [
        [(row.fqn, row["call"]) for row in hookcli.capture(Twice(), X, [GradsProbe("outputs", via)])[0].rows]
        for via in ("tensor", "module")
    ]
    assert calls[0] == calls[1] and ("act", 0) in calls[1]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("kinds", [(), SAVED_TENSOR])
def test_hooks_on_saved_tensors_take_no_call_for_a_checkpoint(reentrant: bool, kinds: tuple[HookKind, ...]) -> None:
    class Once(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Sequential(nn.Linear(2, 2), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            x = checkpoint(self.part, x.requires_grad_(), use_reentrant=reentrant)
            return self.part(x).pow(2).sum()

    torch.manual_seed(0)
    model, grads = Once(), []
    for asked in ((), kinds):
        model.zero_grad()
        with HookSession(model, edits=parse_edits("part.0:output=noise(1)", model, True)) as session:
            for kind in asked:
                session.on(kind, lambda event: None)
            model(X.clone()).backward()
        grads.append([p.grad for p in model.parameters()])
    assert equal(*grads)


def test_a_recomputation_that_leaves_out_a_region_s_last_call_takes_that_of_no_other() -> None:
    """The noise of a call is drawn anew for its recomputation: gradients are those without checkpoints."""

    class Regions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.act = nn.ModuleList(nn.Linear(2, 2) for _ in range(3)), nn.Identity()

        def forward(self, x: Tensor, checkpointed: bool) -> Tensor:
            for layer in self.layers:
                region = partial(lambda layer, y: self.act(layer(self.act(y))), layer)
                x = checkpoint(region, x, use_reentrant=False) if checkpointed else region(x)
            return x.pow(2).sum()

    torch.manual_seed(0)
    model, grads = Regions(), []
    for checkpointed in (False, True):
        model.zero_grad()
        with HookSession(model, edits=parse_edits("act:output=noise(1)", model, True)):
            model(X.clone(), checkpointed).backward()
        grads.append([p.grad for p in model.parameters()])
    assert equal(*grads)


class Catches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fails, self.works = Fails(), nn.Linear(2, 2)

    def forward(self, pair: list[Tensor]) -> Tensor:
        with contextlib.suppress(ZeroDivisionError):
            self.fails(pair)
        return torch.sigmoid(self.works(pair[0]))


class Fails(nn.Module):
    def forward(self, pair: list[Tensor]) -> Tensor:
        raise ZeroDivisionError


def test_after_a_call_that_raised_its_lists_are_the_callers_and_names_are_right() -> None:
    model, pair, made = Catches(), [X.clone(), X.clone()], []
    first, second = pair

    def note(event: HookEvent) -> None:
        made.append((event.name, event.fqn))

    with HookSession(model, edits=parse_edits("fails:input=zero", model, True)) as session:
        session.input_grad(lambda event: None)
        session.on(HookKind.NODE_PRE, note)
        out = model(pair).sum()
        assert pair[0] is first and pair[1] is second
        session.backward_begins([out])
        out.backward()
    assert ("SigmoidBackward0", "") in made and not any(fqn == "fails" for _, fqn in made)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_lists_are_put_back_when_the_run_ends_by_an_error(error: type[BaseException]) -> None:
    class Stops(nn.Module):
        def forward(self, pair: list[Tensor]) -> Tensor:
            raise error

    model, pair = nn.Sequential(Stops()), [torch.ones(2), torch.ones(2)]
    with pytest.raises((ModelError, KeyboardInterrupt)):
        hookcli.capture(model, (pair,), ["activations"], edits="0:input=zero")
    assert [x.tolist() for x in pair] == [[1, 1], [1, 1]]
