"""A gradient that jumps or is not finite: the passes and rows that made it, against torch.func's gradients of rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from observing import Seen, observed, observing
from support import equal
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from hookcli.capabilities.blame.lines import Blame

BAD, STEPS, ROWS = 12, 14, 8


class Tokens(nn.Module):
    """Positions within rows, an embedding, a normalization, and a mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up, self.norm, self.head = (
            nn.Embedding(9, 6),
            nn.Linear(6, 6),
            nn.LayerNorm(6),
            nn.Linear(6, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.norm(self.up(self.embed(x)))).mean(1)
        return y


NETS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(
        nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4, bias=False), nn.Tanh(), nn.Linear(4, 1)
    ),
    "tokens": Tokens,
    "convolutions": lambda: nn.Sequential(
        nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Conv1d(3, 2, 2), nn.Flatten(), nn.Linear(6, 1)
    ),
}


def batch(kind: str, step: int, part: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(10 * step + part)
    x = torch.randn(ROWS, 5, generator=generator, dtype=torch.float64)
    y = x.sum(1, keepdim=True)
    x = x.gt(0).long() + torch.arange(5) if kind == "tokens" else x[:, None] if kind == "convolutions" else x
    return x, y


def blames(seen: Seen) -> list[Blame]:
    return [line for line in seen.of_parts if isinstance(line, Blame)]


def train(kind: str, spoil: Callable[[Tensor, Tensor], None], parts: int = 1, **plan: object) -> tuple[Seen, nn.Module]:
    """Train on `parts` micro-batches a step, of which the last of step BAD is spoiled; also the model before that."""
    with observing(**plan) as seen:
        _, kept = trained(kind, spoil, parts)
    return seen, kept


def trained(kind: str, spoil: Callable[[Tensor, Tensor], None], parts: int) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model, kept = NETS[kind]().double(), NETS[kind]().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(parts):
            x, y = batch(kind, step, part)
            if step == BAD and part == parts - 1:
                kept.load_state_dict(model.state_dict())
                spoil(x, y)
            ((model(x) - y).square().mean() / parts).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model, kept


def squares(model: nn.Module, x: Tensor, y: Tensor, parts: int = 1) -> Tensor:
    """The square of the norm of each row's own gradient, over all parameters."""

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return (functional_call(model, parameters, (x[None],)) - y[None]).square().sum() / ROWS / parts

    grads = vmap(grad(loss), (None, 0, 0))(dict(model.named_parameters()), x, y)
    return torch.stack([one.flatten(1).square().sum(1) for one in grads.values()]).sum(0).detach()


def far(x: Tensor, y: Tensor) -> None:
    y[5] += 1e4
    y[2] -= 5e3


@pytest.mark.sweep
@pytest.mark.parametrize("kind", NETS)
def test_the_rows_of_a_jump(kind: str) -> None:
    seen, model = train(kind, far)
    (blame,) = blames(seen)
    x, y = batch(kind, BAD, 0)
    far(x, y)
    exact = squares(model, x, y)
    assert (blame.step, blame.rows, blame.size) == (BAD, [5, 2], ROWS) and blame.norm and blame.usual
    assert blame.norm > 10 * blame.usual
    if kind == "linear":
        assert blame.passes == pytest.approx([float(exact.sum())], rel=1e-12)
        assert blame.share == pytest.approx(float(exact[[5, 2]].sum() / exact.sum()), rel=1e-9)
    else:  # |received| |gradient| is an upper bound of all rows but those of the normalization and the embedding
        assert blame.passes[0] > 0.9 * float(exact.sum()) and blame.share == pytest.approx(1, abs=0.01)
    assert blame.fqn in dict(model.named_modules())


@pytest.mark.sweep
def test_the_pass_of_a_jump() -> None:
    """Each pass has the squares of its own rows; where all rows are far out, none stands out."""
    seen, model = train("linear", lambda x, y: y.add_(1e4), parts=3)
    (blame,) = blames(seen)
    batches = [batch("linear", BAD, part) for part in range(3)]
    batches[2][1].add_(1e4)
    exact = [float(squares(model, x, y, 3).sum()) for x, y in batches]
    assert blame.passes == pytest.approx(exact, rel=1e-12) and (blame.rows, blame.size) == ([], ROWS)


@pytest.mark.sweep
def test_a_row_that_is_not_finite_is_found_where_backward_met_it_first() -> None:
    def spoil(x: Tensor, y: Tensor) -> None:
        x[3, 0] = torch.nan

    seen, _ = train("linear", spoil, parts=2)
    (blame,) = blames(seen)  # the next step, whose weights are NaN, says nothing more
    assert (blame.step, blame.norm, blame.rows, blame.size, blame.fqn) == (BAD, None, [3], ROWS, "4")
    assert blame.passes[0] < float("inf") == blame.passes[1]
    (searched,) = train("linear", spoil, parts=2, first_bad="report")[0].non_finites
    assert searched.cause.endswith("in micro-batch 1 of 2 (counted from 0)") and "only in row 3 of 8" in searched.cause


@pytest.mark.sweep
def test_training_is_bit_identical_and_healthy_runs_blame_nobody() -> None:
    with observing() as seen:
        observed, _ = trained("linear", far, 1)
    assert equal(list(observed.parameters()), list(trained("linear", far, 1)[0].parameters()))
    assert len(blames(seen)) == 1
    healthy, _ = train("linear", lambda x, y: None)
    assert blames(healthy) == [] and not healthy.errors
    assert blames(train("linear", far, probes=("activations",))[0]) == []  # nothing tells of gradients


def test_an_overflow_is_a_scalers_business() -> None:
    with observing() as seen:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer, scaler = (
            torch.optim.SGD(model.parameters(), lr=1e-3),
            torch.amp.GradScaler("cpu", init_scale=2.0**126),
        )
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.full((8, 4), 1e4)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert blames(seen) == []


@pytest.mark.parametrize(("mixing", "size", "mixed"), [(nn.BatchNorm1d(7), ROWS, "1"), (nn.Flatten(0), 0, "")])
def test_rows_that_are_mixed_or_no_samples_are_said(mixing: nn.Module, size: int, mixed: str) -> None:
    torch.manual_seed(0)
    width = 1 if size == 0 else 7
    first = nn.Linear(5, 7).double() if size else nn.Flatten(0)
    model = nn.Sequential(first, mixing.double(), nn.Unflatten(0, (-1, width)) if not size else nn.Tanh())
    model.append(nn.Linear(width, 1).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with observing() as seen:
        for step in range(STEPS):
            optimizer.zero_grad()
            x, _ = batch("linear", step, 0)
            out = model(x)
            (out.square().mean() + (1e4 * out[5].square().sum() if step == BAD else 0)).backward()
            optimizer.step()
    blame: Blame = blames(seen)[0]
    assert (blame.size, blame.mixed) == (size, mixed)


@pytest.mark.sweep
def test_gradients_that_are_often_large_jump_as_seldom_as_they_exceed_the_largest_before() -> None:
    """As those of one sample a step, most of which the model knows by now."""
    net = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    with observing(every=1) as seen:
        for step in range(60):
            optimizer.zero_grad()
            net(torch.tensor([[{40: 500.0, 50: 3000.0}.get(step, 20.0 if step % 5 == 0 else 1.0)]])).sum().backward()
            optimizer.step()
    assert [(one.step, one.norm, one.usual) for one in blames(seen)] == [(40, 500, 1), (50, 3000, 1)]


def test_gradients_that_grow_from_step_to_step_do_not_jump() -> None:
    """As those of LoRA, whose second factor begins at zero; 2.5 times the step before is 15.6 times the median."""
    net = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    with observing(every=1) as seen:
        for step in range(14):
            optimizer.zero_grad()
            net(torch.tensor([[2.5 ** max(step - 9, 0)]])).sum().backward()
            optimizer.step()
    assert blames(seen) == []


def test_rows_of_nested_tensors_are_not_looked_for_and_nothing_fails() -> None:
    """A strided one tells its sizes only one by one, and of these only those that do not differ."""

    def program() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(2):
            rows = [torch.full((3, 4), 1.0 + step), torch.eye(5, 4)]
            y = model(torch.nested.nested_tensor(rows, layout=torch.strided))
            torch.cat(y.unbind()).square().sum().backward()
            optimizer.step()
        return model

    seen = observed(program)
    assert len(seen.of()) == 2 and not blames(seen)
