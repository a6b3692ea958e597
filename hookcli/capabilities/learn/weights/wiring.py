"""Parts of a model that a training leaves as they are: frozen, in eval mode, without gradients, in no optimizer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from hookcli.capabilities.learn.lines import (
    BLIND,
    EVAL,
    FROZEN,
    IDLE,
    MISSED,
    OUTSIDE,
    SHUT,
    UNFROZEN,
    UNHELD,
    UNREACHED,
    UNREGISTERED,
    UNUSED,
    VALUES,
    Untrained,
)
from hookcli.capabilities.learn.weights.adapters import frozen_zeros
from hookcli.capabilities.learn.weights.places import (
    NAMED,
    frozen_between,
    has_any,
    only,
    outermost,
    top_modules,
    unused_heads,
)
from hookcli.capabilities.learn.weights.still import first_values
from hookcli.hooks.node_hooks import walk
from hookcli.hooks.torch_private.modules import BatchNorm
from hookcli.probes.shared.module_facts import acts_in_training
from hookcli.probes.shared.unregistered import Unregistered, UnregisteredParts
from hookcli.record.observe.parts import BegunStep
from hookcli.table.names import is_within, owner_of
from hookcli.tensors import tree
from hookcli.tensors.torch_private import version

_STEPS, _MANY = 3, 5  # recorded ones
_SHARE = 0.1  # of the parameters: fewer without a gradient may be an output that the loss does not use


@dataclass
class Wiring:
    """The facts about a model's modules and parameters that its recorded steps have shown."""

    steps: int = 0
    reached: set[str] = field(default_factory=set)
    """Parameters that had a gradient in some step."""
    first_reached: set[str] = field(default_factory=set)
    """The parameters that had a gradient in the first step in which any had one."""
    ran: list[str] | None = None
    """The modules that ran in every step, in the order of their first calls."""
    blind: list[str] | None = None
    """The modules that ran in every step without gradients alone."""
    took: set[int] = field(default_factory=set)
    """The optimizers that have made a step."""
    asked: set[str] = field(default_factory=set)
    """Parameters without a gradient, of which is asked whether an output depends on them that the loss may not use."""
    cut: set[str] = field(default_factory=set)
    """The parameters in `asked` that no output depends on."""
    values: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """Some values of parameters that may be left as they are, by the reason."""
    trained_at: int = -1
    """The last step with the model in training mode."""
    evals: int = 0
    """The recorded steps since then, all in eval mode."""
    eval_at: int = 0
    changes: int = -1
    """The in-place changes of all weights until the last backward pass, if that was in eval mode; else -1."""
    in_eval_mode: int = 0
    """The last steps in a row, recorded or not, that changed weights in eval mode."""
    suspected: Untrained | None = None
    """The line on these."""
    graph: bool = False
    """True if a loss had a graph."""
    said: dict[str, Untrained] = field(default_factory=dict)
    trained: list[bool] = field(default_factory=list)
    """For each parameter whether it was trained when `between`, the frozen modules between trained ones, was found."""
    between: dict[str, tuple[str, str]] = field(default_factory=dict)
    zeros: Sequence[str] = ()
    """The frozen matrices that were all zeros then."""
    zeros_at: int = 0
    """The number of recorded steps at that time."""
    moving: set[str] = field(default_factory=set)
    """The parameters of these that have moved."""
    once_trained: set[str] = field(default_factory=set)
    """The parameters that were trained in any recorded step: blocks may be trained in turns."""

    def add(self, begun: BegunStep, step: int, seen: SeenParts) -> list[Untrained]:
        """Add a recorded step. Returns the lines on what is new. May wait for an accelerator."""
        self.steps += 1
        self.reached |= seen.reached
        self.first_reached = self.first_reached or {*seen.reached}
        self.took |= seen.took
        self.graph |= seen.graph
        self.note_runs(seen)
        self.note_mode(step, seen)
        found = {
            FROZEN: self.frozen(begun, seen),
            SHUT: self.at_zero(begun, step, seen),
            EVAL: self.in_eval(begun, step, seen),
            UNHELD: self.unheld(begun, step, seen),
            IDLE: self.idle(begun, step, seen),
            UNREGISTERED: self.unregistered(begun, step, seen),
            **dict.fromkeys((UNREACHED, BLIND, VALUES, UNUSED, OUTSIDE, MISSED, UNFROZEN)),
        }
        for line in (self.unreached(begun, step, seen), self.outside(begun, step, seen)):
            if line is not None:
                found[line.why] = line
        new = []
        for why, places in found.items():
            line = places or Untrained(begun.model, step, why)
            before = self.said.get(why)
            if (before.places if before else ()) != line.places:
                self.said[why] = line
                new.append(line)
        return new

    def note_runs(self, seen: SeenParts) -> None:
        """Note the modules that ran, with gradients and without, and the parameters that no output depends on."""
        self.ran = [fqn for fqn in (self.ran if self.ran is not None else seen.ran) if fqn in seen.ran]
        blind = [fqn for fqn in seen.blind if fqn not in seen.ran]
        self.blind = [fqn for fqn in (self.blind if self.blind is not None else blind) if fqn in blind]
        if seen.returned is not None:
            names = {id(p): fqn for fqn, p in seen.parameters.items()}
            self.cut = self.asked - {names.get(one, "") for one in seen.returned}

    def note_mode(self, step: int, seen: SeenParts) -> None:
        if seen.training:
            self.trained_at, self.evals = step, 0
        elif self.trained_at >= 0 and seen.took:
            self.evals += 1
            self.eval_at = step if self.evals == 1 else self.eval_at

    def note_pass(self, name: str, model: nn.Module) -> None:
        """Note the mode in which a backward pass finds the model."""
        if model.training or self.trained_at < 0:
            self.in_eval_mode, self.changes = 0, -1
            return
        trained = (p for p in model.parameters() if p.requires_grad and not p.is_inference())
        before, self.changes = self.changes, sum(map(version, trained))
        self.in_eval_mode += before not in (-1, self.changes)
        if self.in_eval_mode == _MANY:
            self.suspected = self.all_in_eval(name, model)

    def all_in_eval(self, name: str, model: nn.Module) -> Untrained | None:
        """The line on a model in eval mode, after it was trained; None if it acts as in training mode."""
        modules = [fqn for fqn, module in model.named_modules() if acts_in_training(module)]
        since = f"since step {self.eval_at:,}"
        if not self.evals:
            since = f"since one of the steps after {self.trained_at:,}"
        elif self.eval_at > self.trained_at + 1:
            since = f"since one of the steps {self.trained_at + 1:,} to {self.eval_at:,}"
        return Untrained(name, max(self.trained_at, self.eval_at), EVAL, [""], len(modules), since) if modules else None

    def at_end(self, *, alone: bool) -> Untrained | None:
        """The line on a model that all of the last steps trained in eval mode, of which few were recorded.

        `alone`: no other model was trained, so that backward passes went through this one.
        """
        many = self.in_eval_mode >= _MANY and self.evals < _STEPS
        return self.suspected if many and (alone or self.evals) else None

    def taken_back(self, name: str, model: nn.Module) -> Iterator[Untrained]:
        """Yield the lines that take back what was said of frozen parts, if they are trained as the run ends."""
        trained = [fqn for fqn, p in model.named_parameters() if p.requires_grad]
        for why, places in ((SHUT, self.zeros), (FROZEN, self.between)):
            said = self.said.get(why)
            if said and said.places and any(fqn == at or is_within(fqn, at) for fqn in trained for at in places):
                yield Untrained(name, said.step, why)

    def frozen(self, begun: BegunStep, seen: SeenParts) -> Untrained | None:
        trained = [p.requires_grad for p in seen.parameters.values()]
        if trained != self.trained:
            self.trained, self.between = trained, frozen_between(begun.module)
            self.zeros, self.zeros_at = frozen_zeros(seen.parameters), self.steps
            self.once_trained.update(fqn for fqn, p in seen.parameters.items() if p.requires_grad)
        ran, trained_once = self.ran or (), self.once_trained | self.moved(seen)
        between = {
            fqn: near for fqn, near in self.between.items() if has_any(fqn, ran) and not has_any(fqn, trained_once)
        }
        if not between:
            return None
        first = begun.name(next(iter(between)))
        before, after = (begun.name(fqn) for fqn in between[next(iter(between))])
        return Untrained(begun.model, 0, FROZEN, [first], len(between), f"between {before} and {after}")

    def at_zero(self, begun: BegunStep, step: int, seen: SeenParts) -> Untrained | None:
        """Frozen matrices of zeros in modules that ran, as adapters begin: they change nothing."""
        ran = {fqn: p for fqn, p in seen.parameters.items() if fqn in self.zeros and owner_of(fqn) in seen.ran}
        left = [begun.name(fqn) for fqn, p in ran.items() if not p.requires_grad and not first_values(p).any()]
        if self.steps - self.zeros_at < _STEPS or not left:
            return None
        return Untrained(begun.model, step, SHUT, left[:NAMED], len(left))

    def moved(self, seen: SeenParts) -> set[str]:
        """The parameters of frozen modules between trained ones that the program moves, as of a target network."""
        of = {fqn: p for fqn, p in seen.parameters.items() if any(is_within(fqn, module) for module in self.between)}
        before = {*self.values.get(FROZEN, ())}
        self.moving |= {fqn for fqn in of if fqn in before} - {*self.still(FROZEN, of)}
        return self.moving

    def in_eval(self, begun: BegunStep, step: int, seen: SeenParts) -> Untrained | None:
        if self.evals >= _STEPS:
            return self.all_in_eval(begun.model, begun.module)
        if not seen.in_eval:
            return None
        present = dict(begun.module.named_modules())  # without those that the program has removed by now
        untouched = [fqn for fqn in seen.in_eval if fqn and fqn in present and is_untouched(present[fqn])]
        if not untouched:
            return None
        kind = type(present[untouched[0]]).__name__
        return Untrained(begun.model, step, EVAL, [begun.name(untouched[0])], len(untouched), kind)

    def unreached(self, begun: BegunStep, step: int, seen: SeenParts) -> Untrained | None:
        """Parameters that an optimizer has and that never get a gradient, if they are a good part of all of these."""
        held = {fqn: p for fqn, p in seen.parameters.items() if p.requires_grad and id(p) in seen.held}
        ran = {*(self.ran or ()), *(self.blind or ())}
        idle = {fqn: p for fqn, p in held.items() if fqn not in self.reached and owner_of(fqn) in ran}
        heads = unused_heads(begun.module, idle, self.reached) if idle else {}
        silent = self.still(UNREACHED, good_part(idle, held) or heads)
        why, left = self.reason(silent, held, heads)
        if not left or self.steps < (_MANY if why in (UNUSED, VALUES) else _STEPS):
            return None
        places = [*map(begun.name, outermost(left, self.reached))][:NAMED]
        return Untrained(begun.model, step, why, places, len(left), f"{len(held)}")

    def reason(
        self, silent: Mapping[str, Tensor], held: Mapping[str, Tensor], heads: Collection[str]
    ) -> tuple[str, Mapping[str, Tensor]]:
        """Why no gradient reaches these, of all that an optimizer has, and for which of them that is known."""
        owners = {owner_of(fqn) for fqn in self.reached}
        before = takewhile(lambda fqn: fqn not in owners, self.ran or ())
        for why, places in ((UNREACHED, {*before} if owners else {}), (BLIND, self.blind or ())):
            if of := good_part({fqn: p for fqn, p in silent.items() if owner_of(fqn) in places}, held):
                return why, of
        if not self.reached:
            return UNUSED if self.graph else VALUES, silent
        self.asked = {*silent}
        cut = good_part(only(silent, self.cut), held)
        return UNUSED, cut or only(silent, heads)

    def unheld(self, begun: BegunStep, step: int, seen: SeenParts) -> Untrained | None:
        """Parameters with a gradient that nothing moves, if an optimizer has others that belong to no module."""
        left = {fqn: p for fqn, p in seen.trained().items() if id(p) not in seen.held}
        stale = begun.stale() if left else ""
        still = self.still(UNHELD, left if stale else {})
        if self.steps < _STEPS or not still:
            return None
        return Untrained(begun.model, step, UNHELD, top_modules(map(begun.name, still)), len(still), stale)

    def outside(self, begun: BegunStep, step: int, seen: SeenParts) -> Untrained | None:
        """Parameters with a gradient that no optimizer has, and nothing moves, if they are a good part of all."""
        reached = seen.trained()
        others = {fqn: p for fqn, p in reached.items() if id(p) not in seen.held} if seen.held else {}
        left = good_part(self.still(OUTSIDE, good_part(others, reached)), reached)
        if self.steps < _STEPS or not left:
            return None
        why = self.why_outside(left, reached)
        return Untrained(begun.model, step, why, [*map(begun.name, left)][:NAMED], len(left), f"{len(reached)}")

    def why_outside(self, left: Mapping[str, Tensor], reached: Mapping[str, Tensor]) -> str:
        """Why no optimizer has these, of those that a gradient reaches.

        A new head is often trained alone, and so are adapters, which have few of all parameters, without freezing the
        rest: that may be on purpose.
        """
        held = {fqn: p for fqn, p in reached.items() if fqn not in left}
        if self.first_reached & {*held} and not self.first_reached & {*left}:
            return UNFROZEN
        parents = {owner_of(fqn) for fqn in self.ran or ()}  # which return after what is in them
        order = {fqn: place for place, fqn in enumerate(self.ran or ()) if fqn not in parents}
        last = max((order.get(owner_of(fqn), -1) for fqn in left), default=-1)
        earlier = any(order.get(owner_of(fqn), last) < last for fqn in held)
        return MISSED if earlier and good_part(held, reached) else OUTSIDE

    def idle(self, begun: BegunStep, step: int, seen: SeenParts) -> Untrained | None:
        """Parameters with a gradient whose optimizer makes no step, while another one does."""
        idle = {fqn: p for fqn, p in seen.trained().items() if id(p) in seen.held}
        idle = {fqn: p for fqn, p in idle.items() if seen.held[id(p)][0] not in self.took}
        left = self.still(IDLE, idle if self.took else {})
        if self.steps < _MANY or not left:
            return None
        _, name = seen.held[id(next(iter(left.values())))]
        return Untrained(begun.model, step, IDLE, [*map(begun.name, left)][:NAMED], len(left), name)

    def unregistered(self, begun: BegunStep, step: int, seen: SeenParts) -> Untrained | None:
        """Parameters with a gradient of which neither PyTorch nor an optimizer knows."""
        parts = [one for one in seen.unregistered() if one.trainable and not one.deliberate]
        if self.steps < _STEPS or not parts:
            return None
        if all(tree.gradient(p) is None for p in UnregisteredParts(begun.module).parameters()):
            return None
        return Untrained(begun.model, step, UNREGISTERED, [begun.name(parts[0].fqn)], len(parts), parts[0].said)

    def still(self, why: str, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parameters that have kept their values since the first of several steps in a row that asked for them."""
        before = self.values.get(why, {})
        now = {fqn: first_values(p) for fqn, p in parameters.items()}
        self.values[why] = {fqn: before.get(fqn, values) for fqn, values in now.items()}
        return {fqn: p for fqn, p in parameters.items() if fqn in before and torch.equal(before[fqn], now[fqn])}


@dataclass
class SeenParts:
    """What one recorded step has shown of the modules and parameters of a model."""

    unregistered: Callable[[], Sequence[Unregistered]] = list
    training: bool = False
    graph: bool = False
    ran: dict[str, None] = field(default_factory=dict)
    blind: dict[str, None] = field(default_factory=dict)
    """The modules that ran without gradients."""
    in_eval: list[str] | None = None
    """The normalizations that were in eval mode in each forward, with weights that are trained."""
    reached: set[str] = field(default_factory=set)
    held: dict[int, tuple[int, str]] = field(default_factory=dict)
    """The optimizer of each parameter, both by their ids, and its name."""
    took: set[int] = field(default_factory=set)
    """The optimizers that were about to step, by their ids."""
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    """The model's parameters, as the step has ended."""
    returned: set[int] | None = None
    """The parameters on which what the model returned depends, by their ids; None if that was not asked."""

    def note_run(self, fqn: str) -> None:
        (self.ran if torch.is_grad_enabled() else self.blind).setdefault(fqn)

    def look(self, module: nn.Module) -> None:
        """Note the modes of modules, as a forward of the model begins: some may be in eval mode, as in an attack."""
        before, self.training = self.in_eval, self.training or module.training
        norms = ((fqn, one) for fqn, one in module.named_modules() if isinstance(one, BatchNorm) and not one.training)
        now = [fqn for fqn, one in norms if any(p.requires_grad for p in one.parameters(recurse=False))]
        self.in_eval = now if before is None else [fqn for fqn in now if fqn in before]

    def trace(self, outputs: Iterable[Tensor]) -> None:
        """Note on which parameters these outputs depend."""
        nodes = [x.grad_fn for x in outputs if x.grad_fn is not None]
        variables = (getattr(node, "variable", None) for node in walk(nodes))
        self.returned = (self.returned or set()) | {id(one) for one in variables if one is not None}

    def hold(self, optimizers: Iterable[Optimizer]) -> None:
        for one in optimizers:
            of = id(one), type(one).__name__
            self.held |= {id(p): of for group in one.param_groups for p in group["params"]}

    def trained(self) -> dict[str, Tensor]:
        """The parameters with a gradient, without those that have kept one as they were frozen."""
        return {fqn: p for fqn, p in self.parameters.items() if fqn in self.reached and p.requires_grad}

    def reach(self, module: nn.Module) -> None:
        self.reached |= {fqn for fqn, p in module.named_parameters() if tree.gradient(p) is not None}


def good_part(some: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """These parameters, if they have a good part of the elements of all; else none."""
    of_all = sum(p.numel() for p in parameters.values())
    return some if of_all and sum(p.numel() for p in some.values()) >= _SHARE * of_all else {}


def is_untouched(norm: nn.Module) -> bool:
    """True if a BatchNorm has the running statistics that it was made with. Waits for an accelerator."""
    known: Any = norm
    return has_statistics(norm) and bool(not known.running_mean.any() and (known.running_var == 1).all())


def has_statistics(norm: nn.Module) -> bool:
    """True if a normalization has running statistics with values."""
    mean, var = (getattr(norm, name, None) for name in ("running_mean", "running_var"))
    return isinstance(mean, Tensor) and isinstance(var, Tensor) and not mean.is_meta
