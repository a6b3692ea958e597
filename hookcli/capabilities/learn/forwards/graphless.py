"""Backward passes from losses that have no graph, and so reach no parameter: from one step of a training to its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hookcli.capabilities.learn.lines import GRAPHLESS, Untrained
from hookcli.record.observe.models.model import ObservedModel

_PASSES, _END = 5, 0.1  # the last backward passes in a row, and the share of all: a batch may have no targets
_VALUES = "the loss is computed from values alone (item(), numpy(), argmax, a comparison)"
_NO_GRAD = "the model runs without gradients (no_grad, set_grad_enabled(False))"


@dataclass
class Graphless:
    """The last backward passes in a row that began from losses without a graph, and what the model did meanwhile."""

    passes: int = 0
    row: int = 0
    since: int = 0
    """The step of the first of them."""
    models: list[Untrained] = field(default_factory=list)
    """A line on each model that an optimizer has, as of the last of them."""
    _before: dict[str, int] = field(default_factory=dict)
    _now: bool = False

    def note_no_graph(self, models: Iterable[ObservedModel]) -> None:
        """The pass that begins has no graph; these models are alive."""
        trained = [one for one in models if one.has_optimizer]
        if not self.row:
            self.since = max((one.step() for one in trained), default=0)
            self._before = {one.name: one.counts.forwards for one in trained}
        self._now = bool(trained)
        if self.row in (0, _PASSES - 1):
            self.models = [self.line(one) for one in trained]

    def note_pass(self) -> None:
        """A backward pass begins."""
        self.passes += 1
        self.row = self.row + 1 if self._now else 0
        self._now = False

    def line(self, model: ObservedModel) -> Untrained:
        """The line on a model that no gradient reaches."""
        module = model.module
        number = sum(len(group["params"]) for one in model.optimizers() for group in one.param_groups)
        blind = self.row and model.counts.forwards == self._before.get(model.name)
        mode = " and in eval mode" if module is not None and not module.training else ""
        when = f"since step {self.since:,}" if self.since else "in any step"
        detail = f"{when}: {_NO_GRAD + mode if blind else _VALUES}"
        return Untrained(model.name, self.since, GRAPHLESS, [""], number, detail)

    def at_end(self) -> list[Untrained]:
        """The lines on models that nothing trained from some step on; none if gradients reached one at the end."""
        return self.models if self.row >= max(_PASSES, _END * self.passes) else []
