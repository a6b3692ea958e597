"""What the recorded steps of a model have shown so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

from torch import nn

from hookcli.capabilities.learn.forwards.batches import Batches
from hookcli.capabilities.learn.forwards.trial import Trial
from hookcli.capabilities.learn.graphs import Graphs
from hookcli.capabilities.learn.losses.class_shares import ClassShares
from hookcli.capabilities.learn.losses.labels import Labels
from hookcli.capabilities.learn.losses.lost_head import LostHead
from hookcli.capabilities.learn.weights.clones import Clones
from hookcli.capabilities.learn.weights.frozen_norms import FrozenNorms
from hookcli.capabilities.learn.weights.overwritten import Overwritten
from hookcli.capabilities.learn.weights.still import Still
from hookcli.capabilities.learn.weights.updates import GradientsAfter
from hookcli.capabilities.learn.weights.wiring import Wiring
from hookcli.capabilities.learn.weights.zeroed import Zeroed


@dataclass
class Course:
    """The recorded steps of a model: how many were judged, how many of these began with old gradients, and the rest."""

    batches: Batches
    module: ref[nn.Module]
    trial: Trial
    judged: int = 0
    left: int = 0
    knows_loss: bool = False
    classes: int = 0
    """The number of classes of the loss, if that is known."""
    alike: int = 0
    cleared: int = 0
    labels: Labels = field(default_factory=Labels)
    class_shares: ClassShares = field(default_factory=ClassShares)
    stepped: bool = False
    """True if an optimizer was about to make a step."""

    graphs: Graphs = field(default_factory=Graphs)
    still: Still = field(default_factory=Still)
    wiring: Wiring = field(default_factory=Wiring)
    hidden: int = 0
    """The last recorded steps in a row with a mask that hides the tokens, and shows the padding."""
    lost: list[bool] = field(default_factory=list)
    """For each recorded step whether it has batches that train nothing."""
    future: list[str] = field(default_factory=list)
    """For each of the first recorded steps whether attention sees the tokens that the loss asks for."""
    lost_head: LostHead = field(default_factory=LostHead)
    overwritten: Overwritten = field(default_factory=Overwritten)
    norms: FrozenNorms = field(default_factory=FrozenNorms)
    clones: Clones = field(default_factory=Clones)
    zeroed: Zeroed = field(default_factory=Zeroed)
    linear: list[int] = field(default_factory=list)
    """For each of the first recorded steps the layers with weights, if there is nothing else."""
    without_pass: int = 0
    """The recorded steps in which an optimizer made a step without any gradient or backward pass."""
    after: GradientsAfter = field(default_factory=GradientsAfter)

    def note_gradients(self, old: bool | None) -> None:
        """Note whether a recorded step began with old gradients; None: that is not known."""
        self.judged += old is not None
        self.left += bool(old)

    def note_level(self, of_step: Mapping[str, Any]) -> dict[str, Any]:
        """Note what is known of the level of guessing. Returns the fields of a line, those on classes once."""
        known = {"classes": 0, "items": 0} if self.knows_loss else {}
        self.knows_loss |= bool(of_step)
        return {**of_step, **known}

    def note_alike(self, of_step: bool | None) -> int:
        """Note whether all rows of each output were the same; None: not known. Returns the steps in a row with this."""
        self.alike = self.alike if of_step is None else self.alike + 1 if of_step else 0
        return self.alike
