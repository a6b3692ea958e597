"""How much of a model is trained, and how much of what it computes a dropout leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookcli.hooks.events import HookEvent

_DROPS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_MOST = 0.9  # of the values


@dataclass
class Shares:
    """The dropouts of a step that drop nearly all, each with its share; and how many weights are trained."""

    dropped: dict[str, float] = field(default_factory=dict)

    def enter(self, event: HookEvent) -> None:
        """Note a dropout that is about to run."""
        module = event.module
        if isinstance(module, _DROPS) and module.training and module.p >= _MOST:
            self.dropped[event.fqn] = module.p

    def fields(self, parameters: Iterable[Tensor], name: Callable[[str], str]) -> dict[str, Any]:
        """The fields of a line on a model with these parameters."""
        words = (f"{name(fqn)} drops {share:.0%} of the values" for fqn, share in self.dropped.items())
        made = [p for p in parameters if not is_lazy(p)]
        trained = sum(p.numel() for p in made if p.requires_grad)
        return {"dropped": next(words, ""), "trained": trained, "numel": sum(p.numel() for p in made)}
