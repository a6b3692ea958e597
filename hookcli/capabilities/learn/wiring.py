"""Parts of a model that a training leaves as they are: frozen, in eval mode, without gradients, in no optimizer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from hookcli.capabilities.learn.lines import EVAL, FROZEN, UNHELD, UNREACHED, Untrained
from hookcli.capabilities.learn.still import first_values
from hookcli.hooks.torch_private.modules import BatchNorm
from hookcli.probes.shared.module_facts import acts_in_training
from hookcli.record.observe.parts import BegunStep
from hookcli.table.names import is_within, owner_of
from hookcli.tensors import tree

_STEPS = 3  # recorded ones
_NAMED = 4
_SHARE = 0.1  # of the parameters: fewer without a gradient may be an output that the loss does not use


@dataclass
class Wiring:
    """The facts about a model's modules and parameters that its recorded steps have shown."""

    steps: int = 0
    reached: set[str] = field(default_factory=set)
    """Parameters that had a gradient in some step."""
    ran: list[str] | None = None
    """The modules that ran in every step, in the order of their first calls."""
    values: dict[str, Tensor] = field(default_factory=dict)
    """Some values of parameters that no optimizer has."""
    trained_at: int = -1
    """The last step with the model in training mode."""
    evals: int = 0
    """The recorded steps since then, all in eval mode."""
    eval_at: int = 0
    said: dict[str, Untrained] = field(default_factory=dict)
    trained: list[bool] = field(default_factory=list)
    """For each parameter whether it was trained when `between`, the frozen modules between trained ones, was found."""
    between: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, begun: BegunStep, step: int, seen: SeenParts) -> list[Untrained]:
        """Add a recorded step. Returns the lines on what is new. May wait for an accelerator."""
        self.steps += 1
        self.reached |= seen.reached
        self.ran = [fqn for fqn in (self.ran if self.ran is not None else seen.ran) if fqn in seen.ran]
        self.note_mode(step, seen)
        found = {
            FROZEN: self.frozen(begun),
            EVAL: self.in_eval(begun, step, seen),
            UNREACHED: self.unreached(begun, step, seen),
            UNHELD: self.unheld(begun, step, seen),
        }
        new = []
        for why, places in found.items():
            line = places or Untrained(begun.model, step, why)
            before = self.said.get(why)
            if (before.places if before else ()) != line.places:
                self.said[why] = line
                new.append(line)
        return new

    def note_mode(self, step: int, seen: SeenParts) -> None:
        if seen.training:
            self.trained_at, self.evals = step, 0
        elif self.trained_at >= 0:
            self.evals += 1
            self.eval_at = step if self.evals == 1 else self.eval_at

    def frozen(self, begun: BegunStep) -> Untrained | None:
        trained = [p.requires_grad for p in begun.module.parameters()]
        if trained != self.trained:
            self.trained, self.between = trained, frozen_between(begun.module)
        ran = self.ran or ()
        between = {fqn: near for fqn, near in self.between.items() if any(is_within(one, fqn) for one in ran)}
        if not between:
            return None
        first = begun.name(next(iter(between)))
        before, after = (begun.name(fqn) for fqn in between[next(iter(between))])
        return Untrained(begun.model, 0, FROZEN, [first], len(between), f"between {before} and {after}")

    def in_eval(self, begun: BegunStep, step: int, seen: SeenParts) -> Untrained | None:
        if self.evals >= _STEPS:
            modules = [fqn for fqn, module in begun.module.named_modules() if acts_in_training(module)]
            since = f"since step {self.eval_at:,}"
            return Untrained(begun.model, step, EVAL, [""], len(modules), since) if modules else None
        norms = [fqn for fqn in seen.in_eval or () if fqn]
        untouched = [fqn for fqn in norms if is_untouched(begun.module.get_submodule(fqn))]
        if not untouched:
            return None
        kind = type(begun.module.get_submodule(untouched[0])).__name__
        return Untrained(begun.model, step, EVAL, [begun.name(untouched[0])], len(untouched), kind)

    def unreached(self, begun: BegunStep, step: int, seen: SeenParts) -> Untrained | None:
        """Parameters before the first module that gets a gradient, if a good part of all have none."""
        ran, owners = self.ran or [], {owner_of(fqn) for fqn in self.reached}
        before = set(takewhile(lambda fqn: fqn not in owners, ran))
        if self.steps < _STEPS or len(before) == len(ran):
            return None
        held = {fqn: p for fqn, p in begun.module.named_parameters() if p.requires_grad and id(p) in seen.held}
        left = [fqn for fqn in held if fqn not in self.reached and owner_of(fqn) in before]
        if sum(held[fqn].numel() for fqn in left) < _SHARE * sum(p.numel() for p in held.values()):
            return None
        return Untrained(begun.model, step, UNREACHED, top_modules(map(begun.name, left)), len(left), f"{len(held)}")

    def unheld(self, begun: BegunStep, step: int, seen: SeenParts) -> Untrained | None:
        """Parameters with a gradient that nothing moves, if an optimizer has others that belong to no module."""
        left = {fqn: p for fqn, p in begun.module.named_parameters() if fqn in seen.reached and id(p) not in seen.held}
        stale = begun.stale() if left else ""
        if not stale:
            self.values.clear()
            return None
        now = {fqn: first_values(p) for fqn, p in left.items()}
        still = [fqn for fqn, values in now.items() if torch.equal(self.values.setdefault(fqn, values), values)]
        if self.steps < _STEPS or not still:
            return None
        return Untrained(begun.model, step, UNHELD, top_modules(map(begun.name, still)), len(still), stale)


@dataclass
class SeenParts:
    """What one recorded step has shown of the modules and parameters of a model."""

    training: bool = False
    ran: dict[str, None] = field(default_factory=dict)
    in_eval: list[str] | None = None
    """The normalizations that were in eval mode in each forward, with weights that are trained."""
    reached: set[str] = field(default_factory=set)
    held: set[int] = field(default_factory=set)

    def look(self, module: nn.Module) -> None:
        """Note the modes of modules, as a forward of the model begins: some may be in eval mode, as in an attack."""
        before, self.training = self.in_eval, self.training or module.training
        norms = ((fqn, one) for fqn, one in module.named_modules() if isinstance(one, BatchNorm) and not one.training)
        now = [fqn for fqn, one in norms if any(p.requires_grad for p in one.parameters(recurse=False))]
        self.in_eval = now if before is None else [fqn for fqn in now if fqn in before]

    def hold(self, optimizers: Iterable[Optimizer]) -> None:
        self.held |= {id(p) for one in optimizers for group in one.param_groups for p in group["params"]}

    def reach(self, module: nn.Module) -> None:
        self.reached |= {fqn for fqn, p in module.named_parameters() if p.grad is not None}


def is_untouched(norm: nn.Module) -> bool:
    """True if a BatchNorm has the running statistics that it was made with. Waits for an accelerator."""
    mean, var = (getattr(norm, name, None) for name in ("running_mean", "running_var"))
    if not (isinstance(mean, Tensor) and isinstance(var, Tensor)) or mean.is_meta:
        return False
    return bool(not mean.any() and (var == 1).all())


def frozen_between(model: nn.Module) -> dict[str, tuple[str, str]]:
    """Frozen modules between trained ones of the same class and shape in one container, with these two neighbours.

    Fewer of them than of the trained ones: in a model with adapters, or one whose blocks alternate on purpose, the
    frozen ones are no exception.
    """
    found = {}
    for alike in siblings(model):
        trained = [number for number, (_, trains) in enumerate(alike) if trains]
        frozen = [n for n in range(trained[0], trained[-1]) if n not in trained] if trained else []
        for n in frozen if 2 * len(frozen) <= len(trained) else ():
            before, after = max(t for t in trained if t < n), min(t for t in trained if t > n)
            found[alike[n][0]] = alike[before][0], alike[after][0]
    return found


def siblings(model: nn.Module) -> Iterator[list[tuple[str, bool]]]:
    """The modules of one class and shape in each container, each with whether any of its parameters is trained."""
    for owner, module in model.named_modules():
        kinds: dict[object, list[tuple[str, bool]]] = defaultdict(list)
        for name, child in module.named_children():
            parameters = [*child.parameters()]
            kind = type(child), tuple(tree.shape_text(p) for p in parameters)
            if parameters:
                kinds[kind].append((f"{owner}.{name}".lstrip("."), any(p.requires_grad for p in parameters)))
        yield from kinds.values()


def top_modules(names: Iterable[str]) -> list[str]:
    """The outermost modules of these parameters, in order, each once."""
    return [*dict.fromkeys(name.partition(".")[0] for name in names)][:_NAMED]
