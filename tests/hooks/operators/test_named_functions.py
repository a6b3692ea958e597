"""Calls of named functions: each is seen once, with its module, wherever it runs, and nothing changes."""

from __future__ import annotations

import pytest
import torch
from support import equal, untouched
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

import hookcli
from hookcli.errors import PluginError
from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.overrides import innermost_function_mode
from hookcli.probes.base import Probe
from hookcli.table import Column, Row

NAMES = ("softmax", "scaled_dot_product_attention", "flex_attention")


class CallsProbe(Probe):
    """The calls of functions, with the shapes of their first argument and output."""

    name = "calls"
    columns = (Column("fqn", "Layer"), Column("call", "Call"))

    def attach(self, session: HookSession) -> None:
        self.found: list[Row] = []
        session.functions(self.see, *NAMES)

    def see(self, event: HookEvent) -> None:
        assert event.operator
        output = event.output if isinstance(event.output, Tensor) else event.output[0]
        values = {"fqn": event.fqn, "call": event.call, "index": event.index, "name": event.operator.name}
        values |= {"given": [*event.args[0].shape], "made": [*output.shape], "line": event.operator.source}
        self.found.append(Row(values))

    def rows(self) -> list[Row]:
        return self.found


class Three(nn.Module):
    """The same softmax in three spellings, once inside a layer of torch.nn, and once in a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.layer = nn.Linear(4, 4), nn.Softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.softmax(torch.softmax(self.linear(x), -1).softmax(-1), -1)
        return self.layer(x) + checkpoint(lambda y: self.linear(y).softmax(-1), x, use_reentrant=False)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.part(x, x, x)[0] + self.part(x, x, x, need_weights=False)[0]
        q = x.unflatten(-1, (2, 4)).transpose(1, 2)
        return flex_attention(q, q, q)


def found(model: nn.Module, x: Tensor, **options: object) -> list[Row]:
    return list(hookcli.capture(model, x, CallsProbe(), **options)[0].rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("ops", [None, "functions"])
def test_every_spelling_is_one_call_of_the_module_that_runs(ops: str | None) -> None:
    rows = found(nn.Sequential(Three(), Three()), torch.rand(2, 4), ops=ops)
    assert [row.fqn for row in rows] == [name for n in "01" for name in (n, n, n, f"{n}.layer", n)]
    assert {(row["name"], row["call"], *row["given"]) for row in rows} == {("softmax", 0, 2, 4)}
    assert all("test_named_functions.py:" in row["line"] for row in rows)
    assert rows[0]["index"] < rows[3]["index"] < rows[5]["index"]


@pytest.mark.sweep
def test_attention_is_seen_inside_torch_nn_and_as_flex_attention() -> None:
    rows = found(Attends(), torch.rand(3, 5, 8))
    assert [(row.fqn, row["name"]) for row in rows] == [("part", NAMES[0]), ("part", NAMES[1]), ("", NAMES[2])]
    assert rows[0]["given"] == [6, 5, 5] and rows[1]["made"] == [3, 2, 5, 4] == rows[2]["made"]
    assert [row["call"] for row in rows] == [0, 1, 0]


def test_a_training_run_is_bit_identical_and_nothing_stays_behind() -> None:
    def train(observed: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(Three(), nn.Unflatten(-1, (1, 4)), nn.TransformerEncoderLayer(4, 2, 8, batch_first=True))
        probe, optimizer = CallsProbe(), torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            if observed:
                with hookcli.watch(model, [probe]):
                    model(x).square().sum().backward()
                names = [(row.fqn, row["name"]) for row in probe.rows()]
                assert len(names) == 6 and names[-1] == ("2.self_attn", NAMES[1])  # no repeats from the checkpoint
            else:
                model(x).square().sum().backward()
            optimizer.step()
        return [*model.parameters(), *(p.grad for p in model.parameters() if p.grad is not None), torch.rand(3)]

    x = torch.rand(2, 4)
    applied = torch.autograd.Function.apply
    assert all(map(equal, train(False), train(True)))
    assert innermost_function_mode() is None and torch.autograd.Function.apply == applied


def test_an_error_in_the_callback_is_the_probes() -> None:
    class Fails(CallsProbe):
        def see(self, event: HookEvent) -> None:
            raise ValueError("no")

    with pytest.raises(PluginError, match="Fails failed at 0: ValueError: no"):
        hookcli.capture(nn.Sequential(nn.Softmax(-1)), torch.rand(2, 2), Fails())


class _Changes:
    """Adds one to what softmax returns, and counts its calls."""

    calls = 0

    def __call__(self, event: HookEvent) -> object:
        self.calls += 1
        assert event.operator and event.operator.name == "softmax"
        return event.output + 1


def test_a_change_stands_in_place_of_each_output_and_nothing_stays_behind() -> None:
    model, x = Three(), torch.rand(2, 4)
    before, change, after = model(x), _Changes(), list[Tensor]()
    with untouched(model):
        with HookSession(model) as session:
            session.change_functions(change, "softmax")
            session.functions(lambda event: after.append(event.output), "softmax")
            changed = model(x)
        assert equal(model(x), before)
    assert innermost_function_mode() is None and change.calls == len(after) == 5
    y = model.linear(x)
    for _ in range(3):
        y = y.softmax(-1) + 1
    torch.testing.assert_close(changed, (y.softmax(-1) + 1) + (model.linear(y).softmax(-1) + 1))


def test_an_error_of_a_change_is_the_runs() -> None:
    def refuse(event: HookEvent) -> object:
        raise ValueError("no such head")

    with HookSession(model := Three()) as session:
        session.change_functions(refuse, "softmax")
        with pytest.raises(ValueError, match="no such head"):
            model(torch.rand(2, 4))
    assert innermost_function_mode() is None
