"""Parameters whose gradient is zero everywhere in every recorded step, as before a round() or a dead layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import islice

from torch import Tensor, nn
from torch.autograd.graph import Node

from hookcli.capabilities.learn.lines import ONE_NUMBER
from hookcli.capabilities.learn.weights.reach import saturated, vanished
from hookcli.checks.zero_gradients import is_zero
from hookcli.hooks.node_hooks import nodes_of, walk
from hookcli.hooks.torch_private.losses import normalized_dimension
from hookcli.hooks.torch_private.nodes import operator, returned_shape
from hookcli.record.file.record_lines import RecordedStep
from hookcli.table import Row
from hookcli.table.formatting import shape as shape_text

_STEPS, _SHARE = 3, 0.1  # recorded ones; of the elements of all gradients
_LOOKS = 4  # backward passes, of which the first may be of another loss
_NODES = 20_000  # of a graph
_FLAT = {"Sign": "sign", "Round": "round", "Floor": "floor", "Ceil": "ceil", "Trunc": "trunc"}
"""The functions of torch whose derivative is 0 wherever there is one, by the names of their nodes."""


@dataclass
class Zeroed:
    """The parameters whose gradient was zero in all recorded steps so far; None before the first."""

    names: set[str] | None = None
    steps: int = 0
    flat: str = ""
    """Words on what lets no gradient through on the way to one of them."""
    _looks: int = 0

    @property
    def asks(self) -> bool:
        """True if gradients were zero in the last recorded steps, and it is not known yet why."""
        return bool(self.names) and self.steps >= _STEPS - 1 and not self.flat and self._looks < _LOOKS

    def look(self, roots: Sequence[Tensor], module: nn.Module) -> None:
        """Look for what lets no gradient through, as a backward pass begins. Waits for nothing."""
        self._looks += 1
        names, ends = self.names or (), nodes_of(root for root in roots if root.requires_grad)
        zero = set(nodes_of(p for fqn, p in module.named_parameters() if fqn in names and p.requires_grad))
        hidden = zero.difference(islice(walk(ends, lambda node: not words_on(node)), _NODES))
        flat = (node for node in islice(walk(ends), _NODES if hidden else 0) if words_on(node))
        self.flat = next((words_on(node) for node in flat if leads_to(node, hidden)), "")

    def fields(self, step: RecordedStep) -> dict[str, str]:
        """Note a step's gradients. Returns the fields of a line on what holds gradients up."""
        words = self.words(step)
        return {"flat": words if self.flat else "", "held_up": saturated(step) or words or vanished(step)}

    def words(self, step: RecordedStep) -> str:
        """Note a step's gradients. Returns words on those that have always been zero, if they are a good part of all
        and others are not, or if it is known why; else "".
        """
        rows = [row for row in step.parameter_grads() if row.stats]
        zero = {row.fqn for row in rows if is_zero(row)}
        self.names = zero if self.names is None else self.names & zero
        self.steps += 1
        always = [row.fqn for row in rows if row.fqn in self.names]
        share = elements(row for row in rows if row.fqn in self.names) / max(elements(rows), 1)
        if self.steps < _STEPS or not always or not (self.flat or _SHARE <= share < 1):
            return ""
        more = f" and {len(always) - 1:,} more" * bool(always[1:])
        zeros = f"the gradients of {always[0]}{more} ({share:.0%} of the weights) are zero in all recorded steps"
        return f"{self.flat}: {zeros}" if self.flat else zeros


def elements(rows: Iterable[Row]) -> int:
    """The number of elements of the tensors of these rows."""
    return sum(row.stats.numel for row in rows if row.stats)


def words_on(node: Node) -> str:
    """Words on a function whose derivative is 0 everywhere; "" for other nodes."""
    kind = operator(node)
    if name := _FLAT.get(kind):
        return f"torch.{name} lets no gradient through (x + (torch.{name}(x) - x).detach() does)"
    dim, shape = normalized_dimension(node), returned_shape(node)
    if kind == "Softmax" and dim is not None and shape[dim : dim + 1] == (1,):
        where = f"dimension {dim} of {shape_text(shape)}"
        return f"{ONE_NUMBER} ({where}) always returns 1, and lets no gradient through"
    return ""


def leads_to(node: Node, wanted: Set[Node]) -> bool:
    """True if one of these nodes is reached from a node."""
    return any(one in wanted for one in islice(walk([node]), _NODES))
