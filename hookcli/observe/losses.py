"""The losses of a step: what backward passes were of whose gradients the optimizer gets."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hookcli import tree


class Losses:
    """Those of passes through one model. Holds copies, which on an accelerator wait for nothing."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._values: list[Tensor] = []
        self._told = 0
        self._left_gradients = False

    def add(self, tensors: Any) -> None:
        """A pass of these is over. Of a lone number the value is kept."""
        self._left_gradients = any(p.grad is not None for p in self._model.parameters())
        found = [x for _, x in tree.leaves(tensors)]
        if len(found) == 1 and found[0].numel() == 1:
            self._values.append(found[0].detach().clone())

    def forget_cleared(self) -> None:
        """Before a pass: those until now are of no step where the program has cleared their gradients.

        As a GAN does with those that its generator's pass leaves in the discriminator. Gradients that were set to zero
        and not to None are not told from others.
        """
        if self._left_gradients and all(p.grad is None for p in self._model.parameters()):
            self._values.clear()
            self._told = 0

    def new(self) -> list[float]:
        """Those since it was last asked for them."""
        told, self._told = self._told, len(self._values)
        return [float(loss) for loss in self._values[told:]]

    def all(self) -> list[float]:
        """All of them."""
        return [float(loss) for loss in self._values]
