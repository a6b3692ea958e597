"""Parameters without a gradient in a running program: left out by the loss, or cut off from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from observing import observed, observing
from record.observe.measurements.judged import found
from support import hooks_on, swept
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from hookcli.table import Finding

pytestmark = pytest.mark.usefixtures("nothing_compiled")
Use = Callable[[Tensor, Tensor], Tensor]


class Sided(nn.Module):
    """A body whose second half, `side`, reaches the loss as `use` has it."""

    def __init__(self, use: Use) -> None:
        super().__init__()
        self.body, self.side, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.use = use

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x)
        side = self.side(x.detach())
        return self.head(self.use(x, side)), side


def steps(use: Use, loss: Use = lambda y, side: y.square().mean(), compiled: bool = False) -> nn.Module:
    torch.manual_seed(0)
    model = Sided(use)
    called = torch.compile(model, backend="eager") if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(8):
        optimizer.zero_grad()
        loss(*called(torch.randn(16, 8))).backward()
        optimizer.step()
    return model


def judged(program: Callable[[], nn.Module], **plan: int) -> Finding | None:
    made: list[nn.Module] = []

    def run() -> nn.Module:
        made.append(program())
        return made[0]

    finding = found(run, **plan).get("HK008")
    weights = [x.clone() for x in made[0].parameters()]
    assert not _get_current_function_mode_stack() and not any(hooks_on(made[0]).values())
    assert all(map(torch.equal, weights, program().parameters()))  # as without hookcli
    return finding


UNUSED = "the loss does not use it"
UNKNOWN = "unused by the loss, or cut off from it"


@pytest.mark.parametrize(
    ("use", "loss", "severity", "said"),
    [
        (lambda x, side: x, lambda y, side: y.square().mean(), "warning", UNUSED),  # a head for another task
        swept(lambda x, side: x + side.detach(), lambda y, side: y.square().mean(), "error", ""),
        (lambda x, side: x + side.relu().data.mean(), lambda y, side: y.square().mean(), "error", ""),
        swept(lambda x, side: x * (side.argmax() % 2), lambda y, side: y.square().mean(), "error", ""),
        swept(lambda x, side: x, lambda y, side: y.square().mean() + side.detach().exp().mean(), "error", ""),
        (lambda x, side: x, lambda y, side: y.square().mean() + side.mean().item(), "warning", UNKNOWN),
    ],
)
def test_what_the_loss_uses_past_a_detach_is_an_error(use: Use, loss: Use, severity: str, said: str) -> None:
    finding = judged(lambda: steps(use, loss), every=1)
    assert finding is not None and (finding.fqn, finding.severity) == ("side", severity)
    assert finding.message == "no gradient reached weight, bias" + (f": {said}" if said else "")


@pytest.mark.sweep
def test_a_model_that_runs_after_it_is_followed_through() -> None:
    """A body whose second half goes nowhere, or past a detach, and a head that is a model of its own."""
    for use, severity in ((lambda x, side: x, "warning"), (lambda x, side: x + side.detach(), "error")):

        def two(use: Use = use) -> nn.Module:
            torch.manual_seed(0)
            body, head = Sided(use), nn.Linear(1, 1)
            optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.01)
            for _ in range(8):
                optimizer.zero_grad()
                head(body(torch.randn(16, 8))[0]).square().mean().backward()
                optimizer.step()
            return body

        seen = observed(two, check=True, every=1)
        last = next(one for one in reversed(seen.recorded) if one.model == "Sided")
        (finding,) = (one for report in last.reports for one in report.findings if one.check == "HK008")
        assert (finding.fqn, finding.severity) == ("side", severity)


@pytest.mark.sweep
def test_what_is_not_followed_is_no_error() -> None:
    """In compiled code, which a mode would have compiled again, and in a first step alone."""
    program = lambda: steps(lambda x, side: x + side.detach(), compiled=True)  # noqa: E731
    for finding in (judged(program, every=1), judged(lambda: steps(lambda x, side: x), stop=1)):
        assert finding is not None and finding.severity == "warning" and finding.message.endswith(UNKNOWN)


@pytest.mark.sweep
def test_a_compiled_function_that_a_forward_calls_is_compiled_once() -> None:
    made: list[object] = []

    def backend(graph: Any, inputs: object) -> Any:
        made.append(graph)
        return graph.forward

    halved = torch.compile(lambda x: x / 2, backend=backend)
    finding = judged(lambda: steps(lambda x, side: halved(x)), every=1)
    assert finding is not None and finding.severity == "warning" and len(made) == 1


def test_a_failure_to_follow_is_none_of_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters are not followed any further, which is said; the program and all else that is recorded go on."""

    def fail(*args: object) -> None:
        raise ValueError("odd")

    with monkeypatch.context() as broken, observing(check=True, every=1) as seen:
        broken.setattr("hookcli.hooks.parameter_reach.given_tensors", fail)
        model = steps(lambda x, side: x)
    assert [str(error) for error in seen.errors] == ["odd"]
    assert not _get_current_function_mode_stack() and not any(hooks_on(model).values())
    assert all(map(torch.equal, model.parameters(), steps(lambda x, side: x).parameters()))
    (finding,) = (one for report in seen.recorded[-1].reports for one in report.findings if one.check == "HK008")
    assert len(seen.recorded) == 8 and finding.message.endswith(UNKNOWN)
