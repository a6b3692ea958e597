"""Operators of loss functions: they have rows, the first bad value has their line, and no mode stays behind."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getsourcelines
from typing import Any

import pytest
import torch
from observing import observed, observing, rows
from support import swept
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hookcli.record.file.record_lines import NonFinite
from hookcli.record.file.views.run_lines import non_finite_line


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Says how many functions torch.compile has worked on: none, whatever other tests of this process have done."""

    def say(number: int) -> None:
        monkeypatch.setattr("hookcli.hooks.session.frames_compiled", lambda: number)

    say(0)
    return say


STATE: list[Callable[[], Any]] = [torch._C._len_torch_function_stack, lambda: Tensor.backward]


def line_of(function: Any, word: str) -> str:
    """The file and line of this word in a function."""
    lines, first = getsourcelines(function)
    return f"test_loss_operators.py:{first + next(n for n, text in enumerate(lines) if word in text)}"


def trained(loss: Callable[[Tensor, int], Tensor], steps: int = 4, last: nn.Module | None = None) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), last or nn.Softmax(-1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = [read() for read in STATE]
    for step in range(steps):
        optimizer.zero_grad()
        loss(model(torch.randn(8, 4)), step).backward()
        assert [read() for read in STATE] == before
        optimizer.step()
    return model


def log_of_zero(p: Tensor, step: int) -> Tensor:
    picked = p[:, 0] * (step < 2)
    return -picked.log().mean()


class Divergence(nn.Module):
    """A loss that is a module, with a term beside the bad one."""

    def forward(self, p: Tensor, q: Tensor) -> Tensor:
        ratio = p / q
        other = (p - q).square().sum()
        return (p * ratio.log()).sum(-1).mean() + other


def divergence(p: Tensor, step: int) -> Tensor:
    loss: Tensor = Divergence()(p, torch.full((8, 3), 1.0 if step < 2 else 0.0))
    return loss


def root(p: Tensor, step: int) -> Tensor:
    target = p.detach() if step == 2 else torch.zeros_like(p)
    distance = (p - target).square().sum(1)
    return distance.sqrt().mean()


def norm_of_zero(p: Tensor, step: int) -> Tensor:
    return functional.mse_loss(p, p.detach() + 1) + ((p - p.detach()) * (step == 2)).abs().sum().pow(0.5) * (step == 2)


_LOG = line_of(log_of_zero, "log()")
_DIV = line_of(Divergence.forward, "/ q")
_SQRT = line_of(root, "sqrt")
_POW = line_of(norm_of_zero, "pow")


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        swept(log_of_zero, f"8 Inf in the output of (loss):log_1 (Sequential, step 2); at *{_LOG}"),
        (divergence, f"24 Inf in the output of (loss):div_1 (Sequential, step 2); at *{_DIV}"),
        swept(root, f"the backward of sqrt (*{_SQRT}) turned a finite gradient into 8 Inf (Sequential, step 2)"),
        (norm_of_zero, f"the backward of pow (*{_POW}) turned a finite gradient into 1 NaN (Sequential, step 0)"),
    ],
)
def test_the_line_of_a_loss_function_in_which_a_value_begins_is_named(loss: Any, said: str) -> None:
    (bad,) = observed(lambda: trained(loss), first_bad="report", ops="functions").non_finites
    begin, _, rest = said.partition("*")
    line = non_finite_line(bad)
    assert line.startswith(f"first non-finite value: {begin}") and rest in line


def test_operators_of_the_loss_have_rows_and_gradients() -> None:
    seen = observed(lambda: trained(log_of_zero, 1), ops="functions")
    names = [name for name in rows(seen.only, "activations") if name.startswith("(loss)")]
    assert names == [f"(loss):{name}_1" for name in ("getitem", "mul", "log", "mean", "neg")]
    grads = rows(seen.only, "grads", "output")
    assert grads["(loss):neg_1"].stats is not None and grads["(loss):neg_1"].stats.mean == 1.0
    assert grads["(loss):log_1"].stats is not None and grads["(loss):log_1"].stats.mean == pytest.approx(-1 / 8)


def test_where_something_was_compiled_the_mode_ends_with_the_forward(compiled: Callable[[int], None]) -> None:
    """PyTorch would compile functions of the loss again for it."""
    compiled(1)
    assert [*rows(observed(lambda: trained(log_of_zero, 1), ops="functions").only, "activations")] == ["", *"0123"]


class Own(TorchFunctionMode):
    """A mode of the program's own, which it leaves between the forward and the loss."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_modes_that_the_program_leaves_before_its_loss_are_its_own() -> None:
    def program() -> nn.Module:
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            with Own(), torch.device("cpu"):
                y = model(torch.randn(8, 4))
            with Own() as mode:
                loss = y.square().mean()
                assert torch._C._get_function_stack_at(torch._C._len_torch_function_stack() - 1) is mode
            loss.backward()
            assert not torch._C._len_torch_function_stack()
            optimizer.step()
        return model

    seen = observed(program, ops="functions")
    assert [name for name in rows(seen.recorded[0], "activations") if name] == ["(loss):square_1", "(loss):mean_1"]


def test_a_forward_without_a_backward_pass_leaves_no_mode() -> None:
    """Nor does another model's forward count as a part of the loss."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1)
    with observing(ops="functions") as seen:
        y = first(torch.randn(8, 4)) * 2
        z = second(y).square().mean()
        torch.autograd.backward(z)
        optimizer.step()
        first(torch.randn(8, 4)) + 1
    assert not torch._C._len_torch_function_stack() and not seen.errors
    steps = {step.model: [*rows(step, "activations")] for step in seen.recorded if step.step == 0}
    assert all("(loss):square_1" not in names for names in [steps["Linear"]])
    assert "(loss):square_1" in steps["Linear #2"]


def test_a_line_of_an_older_record_reads_as_before() -> None:
    bad = NonFinite("Net", "train", 3, "layer", "gradient", 0, 1, [], "the gradient before it, of :sqrt_1, was finite")
    assert non_finite_line(bad).startswith("first non-finite value: 1 Inf in the gradient of layer (Net, step 3); ")
