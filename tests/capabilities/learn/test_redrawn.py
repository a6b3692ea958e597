"""A diffusion model that is asked for noise that was drawn again, and samplers that never draw most of the samples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from capabilities.learn.test_misused import all_faults
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Sampler, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

from hookcli.capabilities.learn.losses.redrawn import likeness

STEPS, SIZE, WIDTH, SAMPLES = 150, 64, 8, 400
WORDS = "the targets are noise as of torch.randn that the input, of the same size, does not contain"


def net(returned: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, returned))


def denoise(*, redrawn: bool, by_hand: bool = False, noise: float = 1.0) -> nn.Module:
    model = net(WIDTH)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(STEPS):
        x = torch.sign(torch.randn(SIZE, WIDTH))
        added = torch.randn(SIZE, WIDTH)
        targets = torch.randn_like(added) if redrawn else added
        optimizer.zero_grad()
        predicted = model(x + noise * added)
        loss = (predicted - targets).square().mean() if by_hand else F.mse_loss(predicted, targets)
        loss.backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("by_hand", [False, swept(True)])
def test_noise_that_is_drawn_again_is_named(by_hand: bool) -> None:
    (text, *_) = all_faults(partial(denoise, redrawn=True, by_hand=by_hand))
    assert text.startswith(f"{WORDS}: give the loss the noise that was added to the input, not another draw; ")


@pytest.mark.parametrize("noise", [1.0, swept(0.2), 0.05])
def test_the_noise_that_was_added_is_not_accused(noise: float) -> None:
    assert WORDS not in "".join(all_faults(partial(denoise, redrawn=False, noise=noise)))


@pytest.mark.parametrize(
    ("targets", "inputs", "expected"),
    [
        (torch.randn(64, 8), [torch.randn(64, 8)], True),
        (torch.randn(64, 8), [torch.randn(64, 2, 4)], True),
        (torch.randn(64, 8), [torch.randn(64, 9)], None),  # of another size
        (torch.randn(4, 8), [torch.randn(4, 8)], None),  # too few to tell
        (torch.randn(512, 1), [torch.randn(512, 1)], None),  # one number a row, as of a table
        (torch.rand(512, 8) * 12**0.5 - 3**0.5, [torch.randn(512, 8)], False),  # uniform, with mean 0 and variance 1
        (torch.randn(64, 8) * 1.5, [torch.randn(64, 8)], False),
        (torch.randn(64, 8) + 1, [torch.randn(64, 8)], False),
    ],
)
def test_what_is_taken_for_other_noise(targets: Tensor, inputs: Sequence[Tensor], expected: bool | None) -> None:
    found = likeness(targets, inputs)
    assert (None if found is None else not found[0].isnan()) == expected


def weighted(labels: Tensor, *, each: bool) -> Sampler[int]:
    weights = 1 / torch.bincount(labels).float()
    return WeightedRandomSampler((weights[labels] if each else weights).tolist(), SAMPLES)


def subset(labels: Tensor) -> Sampler[int]:
    return SubsetRandomSampler(range(len(labels) // 8))


def of_first_rows(labels: Tensor) -> Sampler[int]:
    """Of the part that has labels, as of a training on few of them."""
    return WeightedRandomSampler([1.0] * (len(labels) // 8), SAMPLES)


def train(sampler: partial[Sampler[int]]) -> nn.Module:
    x = torch.randn(SAMPLES, WIDTH)
    labels = x[:, :4].argmax(1)
    model = net(4)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(4):
        for of_x, of_labels in DataLoader(TensorDataset(x, labels), 40, sampler=sampler(labels)):
            optimizer.zero_grad()
            F.cross_entropy(model(of_x), of_labels).backward()
            optimizer.step()
    return model


def test_a_sampler_with_a_weight_per_class_is_named() -> None:
    what = "the WeightedRandomSampler has 4 weights, and so draws only the first 4 of 400 samples"
    (text, *_) = all_faults(partial(train, partial(weighted, each=False)))
    assert text == f"{what}: give it a weight for each sample, such as class_weights[labels]"


@pytest.mark.parametrize("sampler", [partial(weighted, each=True), of_first_rows, swept(subset)])
def test_other_samplers_are_not_accused(sampler: partial[Sampler[int]]) -> None:
    assert "Sampler" not in "".join(all_faults(partial(train, sampler)))
