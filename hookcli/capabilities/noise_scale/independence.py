"""Refuses models and losses whose samples depend on each other: the noise scale is of a mean over samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, stdev

import torch
from torch import nn

from hookcli.capabilities.noise_scale.gradients import Gradients
from hookcli.capabilities.noise_scale.parts import micro_batches, part_of_batch
from hookcli.engine.batches import Batch
from hookcli.engine.eval_mode import in_eval
from hookcli.engine.prepare import PreparedRun
from hookcli.errors import ModelError, UsageError
from hookcli.hooks.torch_private.modules import BatchNorm
from hookcli.table.formatting import number
from hookcli.tensors.tree import type_text

_DRAWS = 16  # runs of a loss that draws random numbers
_SURE = 4.0  # standard errors: a mean is taken for another in 1 of 1000 cases, by Student's t for so many runs
_PARTS = 4  # of a batch that are compared with all of them together
_ROUNDING = 1e-3
_APART = 0.05  # of the loss: if its parts differ by less it is nearly a mean, as one over tokens with padding
_APART_IN_TRAINING = 0.5  # where dropout moves the losses as well


def require_independent(model: nn.Module) -> None:
    """Raises UsageError for batch normalization by the statistics of the batch."""
    for fqn, module in model.named_modules():
        if isinstance(module, BatchNorm) and (module.training or module.running_mean is None):
            why = "normalizes over the batch, so a sample's gradient depends on the others"
            way = "use --eval" if module.running_mean is not None else "it has no noise scale"
            raise UsageError(f"{fqn or 'the model'} ({type_text(module)}) {why}: {way}")


def require_mean(gradients: Gradients, run: PreparedRun, first: Batch, samples: int) -> str:
    """A remark if the loss of the first samples of a batch is only about the mean of its parts' losses; "" if it is.

    They are compared in eval mode, or where the model has no loss there, in its own; a loss that draws random numbers,
    as a diffusion model's, by its mean over several runs. Raises UsageError for a loss that is a sum, or no mean.
    """
    parts = [*islice(micro_batches(first, samples, gradients.size), _PARTS)]
    if len(parts) < 2:
        return ""
    used = part_of_batch(first, samples, slice(0, len(parts) * gradients.size))
    most = _APART
    try:
        with in_eval(run.model, gradients=True):
            losses = Losses.of(gradients, used, parts)
    except (ModelError, UsageError):
        most = _APART_IN_TRAINING
        losses = Losses.of(gradients, used, parts)
    if losses.are_of_mean():
        return ""
    name = run.info.get("loss")
    if name == "sum" or losses.are_of_sum():
        of_sum = "a sum over samples, so its noise scale says nothing"
        what = of_sum if losses.are_of_sum() else "not a mean over samples"
        better = "give one that averages (--loss mean, cross-entropy, file.py:fn)"
        raise UsageError(f"the loss ({name}) is {what}; {better}")
    differ = f"{number(losses.whole)} for {len(parts) * gradients.size} samples, {number(losses.mean)} as the mean over"
    differ += f" their parts{f', in {_DRAWS} runs with other random numbers' * (losses.noise > 0)}"
    if not losses.are_of_mean(most):
        raise UsageError(f"the loss ({name}) is not a mean over samples: {differ}")
    return f"the loss is only about a mean over samples, as with padding: {differ}"


@dataclass(frozen=True)
class Losses:
    """The loss of a batch, `whole`, and the losses of its parts, `each`; means over several runs if they are random.

    `rounding`: relative, of their dtype. `noise`: the standard error of the difference between the whole and the mean
    over parts; 0 for losses that are the same each time.
    """

    whole: float
    each: Sequence[float]
    rounding: float
    noise: float = 0.0

    @classmethod
    def of(cls, gradients: Gradients, whole: Batch, parts: Sequence[Batch]) -> Losses:
        """Run the batch and its parts, several times if the loss of the batch is another the second time."""
        first, *each = (gradients.loss(one)[0].detach() for one in (whole, *parts))
        rounding = max(_ROUNDING, 4 * torch.finfo(first.dtype).eps)
        once = cls(float(first), [float(x) for x in each], rounding)
        again = float(gradients.loss(whole)[0].detach()) if not once.are_of_mean() else once.whole
        if not abs(again - once.whole) > rounding / 100 * abs(once.whole):
            return once
        runs = [[float(gradients.loss(one)[0].detach()) for one in (whole, *parts)] for _ in range(_DRAWS)]
        of_whole, *of_parts = (fmean(column) for column in zip(*runs, strict=True))
        differences = [first - fmean(rest) for first, *rest in runs]
        return cls(of_whole, of_parts, rounding, stdev(differences) / math.sqrt(_DRAWS))

    @property
    def mean(self) -> float:
        """The mean over parts."""
        return fmean(self.each)

    def are_of_mean(self, most: float = 0.0) -> bool:
        """True if the batch has the mean of its parts' losses, up to rounding, noise and `most`, relative."""
        difference = self.whole - self.mean
        return self.is_near(difference, max(most, self.rounding)) or not math.isfinite(difference)

    def are_of_sum(self) -> bool:
        """True if the batch has about the sum of its parts' losses."""
        return self.is_near(self.whole - sum(self.each), _APART)

    def is_near(self, difference: float, most: float) -> bool:
        """True for a difference that is at most this share of the largest loss, or that noise can make."""
        return abs(difference) <= max(most * max(map(abs, self.each)), _SURE * self.noise)
