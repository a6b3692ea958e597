"""How often each class is a label: always naming these shares is the best guess without looking at the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hookcli.hooks.torch_private.losses import Choices, class_weights, ignored_label, labels_in
from hookcli.tensors import tree

_CLASSES = 128  # of more, the rare ones are hardly known after some steps


def counts_of(choices: Choices) -> Tensor | None:
    """How often each class is a label that counts, times the weight of the class. Waits for nothing.

    None for many classes, and where the labels are not known.
    """
    labels, weights = labels_in(choices.node), class_weights(choices.node)
    if labels is None or not tree.is_plain(labels) or choices.classes > _CLASSES:
        return None
    with torch.no_grad():
        known = labels.detach().long().flatten()
        counts = torch.zeros(choices.classes, dtype=torch.long, device=known.device)
        counts.index_add_(0, known.clamp(0, choices.classes - 1), (known != ignored_label(choices.node)).long())
        return counts if weights is None else counts * weights.detach()


class ClassShares:
    """The labels of all recorded steps up to now."""

    def __init__(self) -> None:
        self._counts: Tensor | None = None

    def fields(self, of_step: Sequence[Tensor]) -> dict[str, Any]:
        """Add the counts of each loss of a recorded step. Returns the fields of a line; none if a class is unknown.

        The loss is the mean of -log(share) of the step's labels (Shannon's cross-entropy). Waits for an accelerator.
        """
        if not of_step or len({len(counts) for counts in of_step}) > 1:
            return {}
        now = torch.stack([counts.double().cpu() for counts in of_step]).sum(0)
        if self._counts is not None and len(self._counts) != len(now):
            return {}
        self._counts = now if self._counts is None else self._counts + now
        if not float(now.sum()):
            return {}
        shares = self._counts / self._counts.sum()
        common = int(shares.argmax())
        guessed = float(-torch.xlogy(now, shares).sum() / now.sum())
        return {"guessed": guessed, "common": common, "common_share": float(shares[common])}
