"""Frozen normalizations whose running statistics move, beside those that should move, or do not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from capabilities.learn.test_parts import measured
from observing import observed
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from hookcli.capabilities.learn.judging.checks import FrozenStatistics, learned
from hookcli.capabilities.learn.judging.headline import faults
from hookcli.checks.measurements import Measurements

STEPS = 12
Change = Callable[["Net"], object]


class Net(nn.Module):
    """A backbone that has gathered statistics of inputs with mean 0, frozen; and a head.

    `blind`: the backbone runs under no_grad. Its second norm gets what the first one has made alike: it hardly drifts.
    """

    def __init__(self, norm: Callable[[], nn.Module] = lambda: nn.BatchNorm1d(8), gathers: bool = True) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 8), norm(), nn.ReLU(), nn.Sequential(nn.Linear(8, 8), norm()))
        self.head = nn.Linear(8, 4)
        self.blind = self.recomputed = False
        if gathers:
            with torch.no_grad():
                for _ in range(40):
                    self.backbone(torch.randn(64, 6))
        self.backbone.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.recomputed:
            x = checkpoint(self.backbone, x, use_reentrant=True)  # type: ignore[no-untyped-call]
        else:
            with torch.set_grad_enabled(not self.blind):
                x = self.backbone(x)
        scores: Tensor = self.head(x)
        return scores


class PerItem(nn.InstanceNorm1d):
    """Of each value and twice the value, of which the first comes back."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.stack([x, 2 * x], 2))[:, :, 0]


def train(make: Callable[[], nn.Module] = Net, change: Callable[..., object] | None = None, mean: float = 1.0) -> Net:
    """Train on inputs with this mean; `change` is called before each step with the model."""
    model = make()
    assert isinstance(model, Net)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(STEPS):
        model.train()
        if change:
            change(model)
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(32, 6) + mean), torch.randint(4, (32,))).backward()
        optimizer.step()
    return model


def drift_by_hand() -> float:
    """The drift of the first normalization, as its statistics were and are: it gets the same without hookcli."""
    torch.manual_seed(0)
    before = copy.deepcopy(model := Net()).backbone[1]
    torch.manual_seed(0)
    after = train().backbone[1]
    del model
    scale = (before.running_var.double() + before.eps).sqrt()
    mean = (after.running_mean.double() - before.running_mean) / scale
    log = ((after.running_var.double() + after.eps).sqrt() / scale).log()
    return float(max(mean.square().mean(), log.square().mean()).sqrt())


def test_a_frozen_backbone_in_training_mode_is_named_with_its_drift() -> None:
    """With train() alone, the classical fault of fine-tuning."""
    facts = measured(observed(train))
    last = learned(facts.lines)[-1]
    assert (last.norm, last.norms) == ("backbone.1 (BatchNorm1d)", 1)
    assert last.drift == pytest.approx(drift_by_hand(), rel=1e-4) and last.drift > 0.2
    moved = f"running statistics have moved by up to {last.drift:.2g} standard deviations since step 0"
    assert next(faults(facts)) == f"backbone.1 (BatchNorm1d) is frozen, but in training mode: {moved}"
    several = Measurements(lines={"learning": [replace(last, norms=3)]})
    (finding,) = FrozenStatistics().judge(several)
    assert finding.severity == "warning" and ", as are 2 more: " in finding.message


def blind(model: Net) -> None:
    model.blind = True


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("make", "change"),
    [
        (Net, blind),
        swept(partial(Net, lambda: nn.SyncBatchNorm(8)), None),
        swept(partial(Net, lambda: PerItem(8, affine=True, track_running_stats=True)), None),
    ],
)
def test_other_frozen_normalizations_are_named(make: Callable[[], nn.Module], change: Change | None) -> None:
    """Under no_grad; those whose statistics are of all ranks, or of each item."""
    assert "is frozen, but in training mode" in next(faults(measured(observed(partial(train, make, change)))), "")


def in_eval(model: Net) -> None:
    model.backbone.eval()


def adapted(model: Net) -> None:
    """AdaBN: normalizations alone in training mode, to gather statistics of other data."""
    model.eval()
    for module in model.modules():
        module.train(isinstance(module, nn.BatchNorm1d))
    model.training = True


def trained(model: Net) -> None:
    model.backbone.requires_grad_()


def only_weights_of_norms(model: Net) -> None:
    """The layers before them are trained, so that their statistics must follow."""
    for module in model.backbone.modules():
        module.requires_grad_(not isinstance(module, nn.BatchNorm1d)) if not [*module.children()] else None


def by_turns(model: Net) -> None:
    model.backbone.requires_grad_(not model.backbone[0].weight.requires_grad)


def checkpointed(model: Net) -> None:
    """A trained layer below, in a region that autograd does not record."""
    model.recomputed = True
    model.backbone[0].requires_grad_()


class Follower(Net):
    """A teacher inside the model, whose weights follow those of the student."""

    def __init__(self) -> None:
        super().__init__()
        self.student = copy.deepcopy(self.backbone).requires_grad_()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = self.backbone(x)
        scores: Tensor = self.head(self.student(x) - wanted)
        return scores


def follow(model: Follower) -> None:
    with torch.no_grad():
        for old, new in zip(model.backbone.parameters(), model.student.parameters(), strict=True):
            old.lerp_(new, 0.01)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("make", "change", "mean"),
    [
        (Net, None, 0.0),  # the same data as before
        (Net, in_eval, 1.0),
        (Net, adapted, 1.0),
        swept(Net, trained, 1.0),
        swept(Net, only_weights_of_norms, 1.0),
        (Net, by_turns, 1.0),
        (Net, checkpointed, 1.0),
        (Follower, follow, 1.0),
        (partial(Net, gathers=False), None, 1.0),  # a random backbone, which has to gather some
        swept(partial(Net, lambda: nn.BatchNorm1d(8, affine=False)), trained, 1.0),
        swept(partial(Net, lambda: nn.BatchNorm1d(8, momentum=None)), None, 1.0),
        swept(partial(Net, lambda: nn.BatchNorm1d(8, track_running_stats=False)), None, 1.0),
    ],
)
def test_statistics_that_should_move_or_do_not_are_not_named(
    make: Callable[[], nn.Module], change: Change | None, mean: float
) -> None:
    seen = measured(observed(partial(train, make, change, mean)))
    assert {line.norms for line in learned(seen.lines)} == {0}
