"""Noise scales of models, against per-sample gradients in float64; and what has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from capabilities.noise_scale.test_estimate import by_vectors
from support import hooks_on, untouched
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F  # noqa: N812

from hookcli import Step
from hookcli.capabilities.noise_scale.measure import NoiseScaleRun
from hookcli.engine.prepare import PreparedRun
from hookcli.errors import ModelError, UsageError
from hookcli.table import Report


def measured(model: nn.Module, *inputs: Any, target: Any = None, loss: Any = "cross-entropy", **plan: Any) -> Report:
    step = Step(backward=True, loss=loss, target=target)
    return NoiseScaleRun(PreparedRun.of(model, inputs, step), **plan).report()


class Net(nn.Module):
    """An embedding with sparse gradients, two layers, one of them frozen, and one that is never used."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(7, 6, sparse=True)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(drop), nn.Linear(8, 5))
        self.frozen, self.unused = nn.Linear(5, 3), nn.Linear(2, 2)
        self.frozen.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.frozen(self.body(self.embed(tokens).mean(1)))  # type: ignore[no-any-return]


X = torch.randint(7, (48, 4), generator=torch.Generator().manual_seed(1))
Y = torch.randint(3, (48,), generator=torch.Generator().manual_seed(2))


def per_sample(model: Net) -> dict[str, Tensor]:
    """The gradient of each sample, by torch.func."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.sparse = False
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, values, (x[None],)), y[None])

    found: dict[str, Tensor] = vmap(grad(loss), (None, 0, 0))(parameters, X, Y)
    return {name: g.flatten(1) for name, g in found.items()}


@pytest.mark.parametrize("size", [1, 4])
def test_figures_are_those_of_per_sample_gradients(size: int) -> None:
    model = Net().double()
    with untouched(model):
        report = measured(model, X, target=Y, micro_batch=size)
    gradients = {name: g.unflatten(0, (-1, size)).mean(1) for name, g in per_sample(model).items()}
    of_rows = {row.fqn: row for row in report.rows}
    assert list(of_rows) == ["", "embed", "body.0", "body.3"] or list(of_rows) == ["", "embed", "body"]
    for fqn, row in of_rows.items():
        of = [g for name, g in gradients.items() if not fqn or name.startswith(f"{fqn}.")]
        grad_sq, variance = by_vectors(torch.cat(of, 1), size)
        assert (row["grad_sq"], row["grad_variance"]) == pytest.approx((grad_sq, variance), rel=1e-9), fqn
        if row["noise_scale"] is not None:
            assert row["noise_scale"] == pytest.approx(variance / grad_sq, rel=1e-9)
    assert sorted(item.fqn for item in report.skipped) == ["unused.bias", "unused.weight"]
    assert report.totals["samples"] == 48 and not sum(hooks_on(model).values())


class Mean(nn.Module):
    """The gradient of each sample is the sample itself: a known |G|² and tr Σ."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(10))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def test_a_problem_with_a_known_noise_scale() -> None:
    """Samples of N(1/2, 1) in 10 dimensions: |G|² = 2.5 and tr Σ = 10, so the noise scale is 4."""
    x = 0.5 + torch.randn(4000, 10, generator=torch.Generator().manual_seed(0))
    row = measured(Mean(), x, loss="mean", micro_batch=40).rows[0]
    assert abs(row["noise_scale"] - 4) < 4 * row["noise_scale_error"] < 2
    assert row["noise_scale_low"] < 4 < row["noise_scale_high"]


def test_half_precision_and_lazy_layers() -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    plain = measured(model, x, loss="mean").rows[0]
    half = measured(model.bfloat16(), x.bfloat16(), loss="mean")
    assert half.rows[0]["noise_scale"] == pytest.approx(plain["noise_scale"], rel=0.1)
    assert not any("only about a mean" in note for note in half.meta["notes"])
    lazy = measured(nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.Linear(8, 3)), x, loss="mean")
    assert lazy.rows[0]["params"] == 4 * 8 + 8 + 8 * 3 + 3


def test_dropout_draws_the_same_in_both_passes() -> None:
    report = measured(Net(0.5).train(), X, target=Y)
    assert report.totals["samples"] == 48 and report.rows[0]["noise_scale_low"] > 0


def test_parts_of_lists_mappings_and_what_is_not_batched() -> None:
    class Of(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, batch: Any, scale: Tensor) -> Tensor:
            rows = batch["x"] if isinstance(batch, dict) else torch.stack(batch)
            return (rows * self.w * scale).tanh()  # type: ignore[no-any-return]

    x, scale = torch.randn(20, 3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    model = Of().double()
    rows = measured(model, {"x": x, "names": ["a"] * 20}, scale, loss="mean").rows
    listed = measured(model, list(x), scale, loss="mean", batched=False).rows
    of_sample = vmap(grad(lambda w, row: (row * w * scale).tanh().mean()), (None, 0))(model.w.detach(), x)
    for row in (rows[0], listed[0]):
        assert (row["grad_sq"], row["grad_variance"]) == pytest.approx(by_vectors(of_sample, 1), rel=1e-9)


def test_a_loss_over_tokens_is_about_a_mean_and_a_note_says_so() -> None:
    """Of the first samples some have fewer tokens that count."""
    target = torch.zeros(16, 5, dtype=torch.long)
    target[0, 2:] = -100

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.transpose(1, 2), target)

    torch.manual_seed(0)
    report = measured(nn.Linear(4, 3), torch.randn(16, 5, 4), target=target, loss=loss)
    assert any("only about a mean over samples, as with padding" in note for note in report.meta["notes"])


def contrastive(output: Tensor) -> Tensor:
    return F.cross_entropy(output @ output.T, torch.arange(len(output)))


@pytest.mark.parametrize(
    ("model", "loss", "said"),
    [
        (lambda: nn.Linear(4, 3), "sum", r"the loss \(sum\) is a sum over samples"),
        (lambda: nn.Linear(4, 3), contrastive, r"the loss \(contrastive\) is not a mean over samples"),
        (
            lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
            "mean",
            r"1 \(BatchNorm1d\) normalizes over the batch.*--eval",
        ),
        (lambda: nn.BatchNorm1d(4, track_running_stats=False).eval(), "mean", "the model .* has no noise scale"),
        (lambda: nn.Linear(4, 3).requires_grad_(False), "mean", "no parameter requires grad"),
    ],
)
def test_what_has_no_noise_scale_is_refused(model: Callable[[], nn.Module], loss: Any, said: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(UsageError, match=said):
        measured(model(), torch.randn(16, 4), loss=loss)


class Denoiser(nn.Module):
    """A loss that draws random numbers in either mode, as diffusion models have it; `power`: of the batch size."""

    def __init__(self, power: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.power = nn.Linear(4, 4), power

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn_like(x)
        return F.mse_loss(self.layer(x + noise), noise) * len(x) ** self.power


def test_a_loss_that_draws_random_numbers_has_a_noise_scale() -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 4)
    report = measured(Denoiser(), x, loss="mean")
    assert report.rows[0]["grad_variance"] > 0
    assert not any("about a mean" in note for note in report.meta["notes"])
    with pytest.raises(UsageError, match="is a sum over samples"):
        measured(Denoiser(power=1), x, loss="mean")
    with pytest.raises(UsageError, match=r"not a mean over samples: .* in 16 runs with other random numbers"):
        measured(Denoiser(power=3), x, loss="mean")


class SumAndMean(nn.Module):
    """Returns two numbers, a mean over samples and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer(x).exp()
        return 9 * y.mean(), y.sum()


def test_the_sum_of_an_output_asks_for_a_loss() -> None:
    torch.manual_seed(0)
    with pytest.raises(UsageError, match=r"\(sum\) is not a mean over samples; give one that averages \(--loss"):
        measured(SumAndMean(), torch.randn(16, 4), loss="sum")


def test_batch_normalization_in_eval_mode_has_one() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh()).eval()
    assert measured(model, torch.randn(16, 4), loss="mean").rows[0]["grad_variance"] > 0


def test_too_few_or_broken_samples_are_said() -> None:
    x = torch.randn(16, 4)
    with pytest.raises(UsageError, match="only 5 micro-batches of 3 samples: 8 are needed"):
        measured(nn.Linear(4, 3), x, loss="mean", micro_batch=3)
    with pytest.raises(UsageError, match="--micro-batch 17: a batch has only 16 samples"):
        measured(nn.Linear(4, 3), x, loss="mean", micro_batch=17)
    with pytest.raises(UsageError, match=r"only 4 micro-batches of 1 sample: .*--batch-size\)$"):
        measured(nn.Linear(4, 3), x[:4], loss="mean")
    x[3] = float("nan")
    with pytest.raises(UsageError, match="the gradients are not finite"):
        measured(nn.Linear(4, 3), x, loss="mean")
    with pytest.raises(ModelError, match=r"takes \d+ features, got \d+"):
        measured(nn.Linear(5, 3), x, loss="mean")


class Counting(nn.Module):
    """Another model in each call, whatever the random numbers are."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        Counting.calls += self.training
        return x * self.w * (1 + Counting.calls)


def test_a_model_that_does_not_repeat_itself_is_refused() -> None:
    with pytest.raises(UsageError, match="a second pass over the data had other gradients"):
        measured(Counting(), torch.randn(16, 4), loss="mean")
