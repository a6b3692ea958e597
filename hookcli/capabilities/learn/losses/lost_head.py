"""A loss that gets what the last layer receives, where it should get what this layer returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from weakref import ref

from torch import nn
from torch.autograd.graph import Node

from hookcli.capabilities.learn.graphs import Mark
from hookcli.capabilities.learn.losses.loss_facts import LabelRange
from hookcli.hooks.events import HookEvent
from hookcli.hooks.torch_private.losses import Choices
from hookcli.hooks.torch_private.modules import part_tables
from hookcli.hooks.torch_private.nodes import operator
from hookcli.probes.shared.doubled import ARRANGES
from hookcli.tensors import tree

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
DROPS = ("Mul", "NativeDropout")
_FAR = 4  # nodes on the way
_STEPS, _SURE = 5, 20.0  # recorded steps, and the logarithm of the chance that labels of as many classes are so small


@dataclass
class LastLayer:
    """The layer with a weight that ran last in a step, and whether the loss of the step gets what it receives."""

    fqn: str = ""
    returns: int = 0
    """The columns of what it returns."""
    classes: int = 0
    """The columns of what the loss gets, if that is what this layer receives; else 0."""
    passes: int = 0
    marks: Sequence[ref[Mark]] = ()
    """On the nodes of what it received, which live no longer for that."""

    def enter(self, event: HookEvent) -> None:
        """Note a layer that is about to run."""
        module = event.module
        parameters = part_tables(module)[0] if module is not None else {}
        if all(p is None for p in parameters.values()):
            return
        weight = parameters.get("weight") if isinstance(module, LAYERS) else None
        self.fqn, self.returns = event.fqn, len(weight) if weight is not None and weight.requires_grad else 0
        node = next((x.grad_fn for x in tree.received(event.args, event.kwargs) if x.grad_fn is not None), None)
        self.marks = [Mark.on(one) for one in way(node)] if self.returns else ()

    def look(self, choices: Sequence[Choices]) -> None:
        """Note what a loss of cross-entropies gets, as its backward pass begins."""
        mine = [mark for one in self.marks if (mark := one()) is not None]
        given = [one for one in choices if any(mark.is_on(node) for node in way(scores(one)) for mark in mine)]
        classes = given[0].classes if given and len(given) == len(choices) else 0
        self.classes = classes if not self.passes else min(self.classes, classes)
        self.passes += 1


def scores(choices: Choices) -> Node | None:
    """The node that made the scores of a cross-entropy."""
    softmax = choices.node.next_functions[0][0]
    while softmax is not None and operator(softmax) in ARRANGES:
        softmax = softmax.next_functions[0][0]
    return softmax.next_functions[0][0] if softmax is not None else None


def way(node: Node | None) -> Iterator[Node]:
    """This node, and those before it that only arrange or drop values of the next one."""
    for _ in range(_FAR):
        if node is None:
            return
        yield node
        before = [one for one, _ in node.next_functions if one is not None]
        if len(before) != 1 or operator(node) not in (*ARRANGES, *DROPS):
            return
        node = before[0]


@dataclass
class LostHead:
    """The recorded steps whose losses got what the last layer receives; `labels`: all labels of these steps."""

    steps: int = 0
    labels: int = 0
    largest: int = -1
    no_more: bool = False
    """True if a loss got something else, or the layer a gradient."""
    fqn: str = ""

    def words(
        self, last: LastLayer, labels: LabelRange | None, reached: Container[str], name: Callable[[str], str]
    ) -> str:
        """Words on this, with a further step and its labels; "" if it is not so, or not sure.

        `reached`: the parameters that any gradient has reached.
        """
        gets = last.classes > last.returns > 0 and self.fqn in ("", last.fqn)
        if labels is None or not gets or f"{last.fqn}.weight" in reached:
            self.no_more = True
        if labels is None or self.no_more:
            return ""
        self.steps, self.fqn = self.steps + 1, last.fqn
        self.largest, self.labels = max(self.largest, labels.largest), self.labels + labels.counted
        sure = self.labels * math.log(last.classes / last.returns) >= _SURE
        if self.steps < _STEPS or self.largest >= last.returns or not sure:
            return ""
        head = name(last.fqn)
        what = f"the {last.classes:,} columns that {head} receives, not the {last.returns:,} that it returns"
        return f"cross_entropy gets {what}: no gradient reaches {head}"
