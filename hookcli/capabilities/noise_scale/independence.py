"""Refuses models and losses whose samples depend on each other: the noise scale is of a mean over samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

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

    They are compared in eval mode, or where the model has no loss there, in its own. Raises UsageError for a loss that
    is a sum, or no mean.
    """
    parts = [*islice(micro_batches(first, samples, gradients.size), _PARTS)]
    if len(parts) < 2:
        return ""
    used = part_of_batch(first, samples, slice(0, len(parts) * gradients.size))
    most = _APART
    try:
        with in_eval(run.model, gradients=True):
            whole, each, eps = losses_of(gradients, used, parts)
    except (ModelError, UsageError):
        most = _APART_IN_TRAINING
        whole, each, eps = losses_of(gradients, used, parts)
    name = run.info.get("loss")
    mean, scale = sum(each) / len(each), max(map(abs, each))
    if abs(whole - mean) <= max(_ROUNDING, 4 * eps) * scale or not math.isfinite(whole + mean):
        return ""
    if abs(whole - sum(each)) <= _APART * scale:
        better = "give one that averages (--loss mean, cross-entropy, file.py:fn)"
        raise UsageError(f"the loss ({name}) is a sum over samples, so its noise scale says nothing; {better}")
    differ = f"{number(whole)} for {len(parts) * gradients.size} samples, {number(mean)} as the mean over their parts"
    if abs(whole - mean) > most * scale:
        raise UsageError(f"the loss ({name}) is no mean over samples: {differ}")
    return f"the loss is only about a mean over samples, as with padding: {differ}"


def losses_of(gradients: Gradients, whole: Batch, parts: Sequence[Batch]) -> tuple[float, list[float], float]:
    """The loss of a batch, those of its parts, and the precision of their dtype."""
    first, *each = (gradients.loss(one)[0].detach() for one in (whole, *parts))
    return float(first), [float(x) for x in each], torch.finfo(first.dtype).eps
