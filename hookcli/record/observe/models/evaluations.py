"""Forwards without gradients of a model that is trained, which may have been left in training mode."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from hookcli.probes.shared.module_facts import acts_in_training
from hookcli.table.formatting import counted

_OFTEN = 0.5  # forwards without gradients for each step: a generator's are a part of the training


@dataclass
class Evaluations:
    """The forwards without gradients of a model, and the first module that acted in them as in training."""

    number: int = 0
    in_eval_mode: int = 0
    place: str = ""
    modules: int = 0
    """The modules that acted so."""

    def add(self, model: nn.Module) -> None:
        """Count a forward that is about to begin."""
        self.number += 1
        self.in_eval_mode += not model.training
        if model.training and not self.modules:
            acting = [(fqn, one) for fqn, one in model.named_modules() if one.training and acts_in_training(one)]
            self.modules = len(acting)
            self.place = next((f"{fqn or 'the model'} ({type(one).__name__})" for fqn, one in acting), "")

    def note(self, steps: int) -> str:
        """The note on a model that was trained for so many steps, and never in eval mode; "" if nothing is to say."""
        if not self.modules or self.in_eval_mode or self.number > _OFTEN * steps:
            return ""
        others = f" and {counted(self.modules - 1, 'more module')}" if self.modules > 1 else ""
        what = f"{counted(self.number, 'forward')} without gradients ran in training mode, in which"
        acts = f"{self.place}{others} {'act' if others else 'acts'} otherwise than in eval mode"
        return f"{what} {acts}: call model.eval() before evaluating, unless that is meant"
