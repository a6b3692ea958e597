"""What hooks must not leave or change: memory, lists of the caller's, versions, names after an error."""

from __future__ import annotations

import contextlib
import gc
import warnings
import weakref
from typing import Any

import pytest
import torch
from support import Hand, Shared, equal
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookcli
from hookcli.errors import ModelError, UsageError
from hookcli.hooks.events import HookEvent
from hookcli.hooks.kinds import FULL_BACKWARD, SAVED_TENSOR, HookKind
from hookcli.hooks.native import build
from hookcli.hooks.session import HookSession
from hookcli.probes.grads import GradsProbe
from hookcli.probes.graph import GraphProbe
from hookcli.probes.trace import TraceProbe

X = torch.tensor([[1.0, 2.0], [-1.0, 0.25]])


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
        with HookSession(
            model, edits=hookcli.engine.probing.parse_edits("part.0:output=noise(1)", model, True)
        ) as session:
            for kind in asked:
                session.on(kind, lambda event: None)
            model(X.clone()).backward()
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

    with HookSession(model, edits=hookcli.engine.probing.parse_edits("fails:input=zero", model, True)) as session:
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


def test_a_graph_of_the_callers_survives_a_step_and_a_round_trip() -> None:
    model = Hand()
    out = model(X).sum()
    hookcli.capture(model, X, [TraceProbe()], step=hookcli.Step(optimizer="adamw", state_dict=True))
    out.backward()
    grads = [p.grad for p in model.parameters()]
    model.zero_grad()
    model(X).sum().backward()
    assert equal(grads, [p.grad for p in model.parameters()])


def test_warning_filters_of_others_stay() -> None:
    with warnings.catch_warnings():
        with hookcli.watch(Hand(), [TraceProbe(FULL_BACKWARD)]):
            warnings.filterwarnings("ignore", "theirs")
        assert [f for f in warnings.filters if f[1] is not None and f[1].pattern == "theirs"]
        assert not [f for f in warnings.filters if f[1] is not None and "backward hook" in f[1].pattern.lower()]


def test_only_what_was_changed_is_called_edited() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2))
    rows = hookcli.capture(model, torch.tensor([1, 2]), ["inputs"], edits="*:input=zero")[0].rows
    assert {row.fqn: row.get("edited") for row in rows} == {"": None, "0": None, "1": "zero"}


def test_torchscript_is_refused_before_anything_else(cli: Any, net: Any) -> None:
    (net / "script.py").write_text("import torch\ndef make():\n    return torch.jit.script(torch.nn.Linear(3, 2))\n")
    for command in ("shapes", "activations", "graph", "trace"):
        ran = cli(command, "script.py:make", "-i", "2x3")
        assert ran.code == 2 and "is TorchScript, which takes no hooks" in ran.err and "Traceback" not in ran.err


def test_native_hooks_leave_those_of_python_in_place() -> None:
    if build.compiler() is None:
        pytest.skip("needs a C++ compiler")
    model, seen = Hand(), []
    model.out.weight.register_hook(lambda grad: seen.append("theirs"))
    report = hookcli.capture(model, X, [GraphProbe(True)], edits="first.weight:grad=zero")[0]
    zeroed = next(row for row in report.rows if row.fqn == "first.weight")
    assert seen == ["theirs"] and zeroed.stats is not None and zeroed.stats.zeros == 4
    model(X).sum().backward()
    assert seen == ["theirs"] * 2


def test_without_a_compiler_one_sentence(cli: Any, net: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(build, "_loaded", None)
    monkeypatch.setenv("CXX", "nonexistent")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ran = cli("graph", "net.py:Net", "-i", "2x3x4x4", "--native")
    assert ran.code == 2 and ran.out == "" and "Traceback" not in ran.err
    assert "CXX=nonexistent is not a program" in ran.err


def test_what_a_module_keeps_is_the_same_however_the_rows_are_narrowed() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sigmoid(), nn.Linear(3, 1))
    whole = hookcli.capture(model, X, [TraceProbe(SAVED_TENSOR)])[0]
    part = hookcli.capture(model, X, [TraceProbe(SAVED_TENSOR)], select=lambda fqn, m: fqn == "2")[0]
    kept = [[(row["shape"], row["kept"]) for row in r.rows if row.fqn == "2"] for r in (whole, part)]
    assert kept[0] == kept[1] and len(kept[0]) > 1
    twice = hookcli.capture(model, X, [TraceProbe(SAVED_TENSOR)], step=hookcli.Step(passes=2))[0]
    assert twice.totals["kept_bytes"] == whole.totals["kept_bytes"]  # of one pass: they are not held together


@pytest.mark.parametrize("obstacle", ["legacy", "state_dict", "func"])
def test_a_trace_goes_on_without_what_the_model_forbids(obstacle: str, cli: Any, net: Any) -> None:
    (net / "obstacle.py").write_text(OBSTACLES)
    ran = cli("trace", f"obstacle.py:{obstacle}", "-i", "2x3", "-f", "json")
    assert ran.code == 0, ran.err
    kinds = {"legacy": "full_backward", "state_dict": "state_dict_pre", "func": "saved_tensor_pack"}
    assert f'"path": "{kinds[obstacle]}"' in ran.out and '"kind": "post_accumulate_grad"' in ran.out
    insisted = cli("trace", f"obstacle.py:{obstacle}", "-i", "2x3", "--kinds", kinds[obstacle])
    assert insisted.code == (0 if obstacle == "func" else 2)  # hooks on saved tensors are off inside torch.func alone


OBSTACLES = """
import torch
from torch import nn

def legacy():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[1].register_backward_hook(lambda *a: None)
    return model

class state_dict(nn.Linear):
    def __init__(self):
        super().__init__(3, 2)
        self._register_state_dict_hook(lambda module, state, *rest: state.update(renamed=state.pop("weight")))

class func(nn.Linear):
    def __init__(self):
        super().__init__(3, 3)

    def forward(self, x):
        return super().forward(x) + torch.func.grad(lambda t: (t ** 2).sum())(x)
"""


def test_a_wrong_type_of_edit_is_told() -> None:
    with pytest.raises(UsageError, match="as text, not int"):
        hookcli.capture(Hand(), X, ["activations"], edits=[3])  # type: ignore[list-item]
