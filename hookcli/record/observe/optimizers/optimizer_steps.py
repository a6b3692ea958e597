"""Counts steps of optimizers and of the program, and measures what a step changes in the parameters."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer

from hookcli.hooks.alive import alive
from hookcli.hooks.torch_private.frames import step_is_hooked
from hookcli.record.observe.naming import PlainNames
from hookcli.table import Row
from hookcli.table.discrepancy import Discrepancy
from hookcli.table.formatting import counted
from hookcli.table.stats import ratio
from hookcli.tensors import distance, tree
from hookcli.tensors.weak import WeakIds


class OptimizerSteps:
    """Each optimizer's number of steps, without keeping the optimizers alive."""

    def __init__(self) -> None:
        self._counts: WeakIds[Optimizer, int] = WeakIds()
        self.version = 0
        """Changes when an optimizer or its parameters are added; callers cache against it."""
        self._stale: WeakIds[Optimizer, str] = WeakIds()
        self._idle: WeakIds[Optimizer, str] = WeakIds()
        self.learning: set[str] = set()
        """The models to which gradients other than zero have come in a recorded step."""
        self._spans: WeakIds[Optimizer, tuple[int, int]] = WeakIds()
        """The first and the last step of each optimizer, among the `_made` steps of all."""
        self._made = 0
        self.any_stepped = False
        """True once an optimizer has stepped, which may be gone by now."""

    def find_existing(self, optimizers: Iterable[Optimizer] | None = None) -> None:
        """Add the optimizers that the program has made already; None searches for them."""
        if optimizers is None:
            # The wrappers of Lightning and accelerate are Optimizers too, of the same parameters, but have no hooks.
            optimizers = (one for one in alive(Optimizer) if step_is_hooked(type(one)))
        for optimizer in optimizers:
            self.add(optimizer)

    def __bool__(self) -> bool:
        return bool(self._counts)

    def __iter__(self) -> Iterator[Optimizer]:
        return (optimizer for optimizer, _ in self._counts.items())

    def add(self, optimizer: Optimizer) -> None:
        """Count this optimizer's steps from 0, unless they are counted already."""
        if optimizer not in self._counts:
            self._counts[optimizer] = 0
            self.version += 1

    def parameters_added(self, optimizer: Optimizer) -> None:
        self.add(optimizer)
        self.version += 1

    def stepped(self, optimizer: Optimizer, steps: int = 1) -> None:
        self.add(optimizer)
        self._counts[optimizer] = self.count(optimizer) + steps
        first, _ = self._spans.get(optimizer) or (self._made, 0)
        self._spans[optimizer] = first, self._made
        self._made += steps
        self.any_stepped = True

    def count(self, optimizer: Optimizer) -> int:
        """Steps made so far; also the number of the next one."""
        return self._counts.get(optimizer) or 0

    @property
    def stale(self) -> str:
        """A line on an optimizer that has stepped with parameters that another was meant to have; "" if there is none.

        They are of no module and have no gradients, or another optimizer like it, in turns, has the same ones. Or no
        optimizer had any gradient in its last step.
        """
        return next((line for _, line in self._stale.items() if line), self.idle)

    @property
    def idle(self) -> str:
        """A line on an optimizer, if none had any gradient in its last step; "" if one had."""
        lines = [line for _, line in self._idle.items()]
        return lines[0] if lines and all(lines) else ""

    def look_for_stale(self, optimizer: Optimizer, known: Container[int]) -> None:
        """Note the parameters of an optimizer whose ids are not among the `known` ones, if none has a gradient.

        Some have one where the program made them on purpose, as a pose per image: only that of the batch has. Or note
        all of its parameters, if another optimizer of its class makes steps with the same, and has not just made way
        for this one, as in a second phase.
        """
        held = [p for group in optimizer.param_groups for p in group["params"]]
        loose = [p for p in held if id(p) not in known]
        left = 0 if any(tree.gradient(p) is not None for p in loose) else len(loose)
        has = f"{type(optimizer).__name__} has {counted(left, 'parameter')}"
        began, _ = self._spans.get(optimizer) or (self._made, 0)
        # Also itself.
        alike = [x for x, (_, last) in self._spans.items() if last >= began and type(x) is type(optimizer)]
        twin = sum(parameter_ids(one) == parameter_ids(optimizer) for one in alike) > 1
        self._stale[optimizer] = f"{has} without gradients, of modules that do not run" if left else ""
        if twin and not left:
            same = f"the same {counted(len(held), 'other parameter')}"
            self._stale[optimizer] = f"two optimizers ({type(optimizer).__name__}) have {same}"

    def look_for_idle(self, optimizer: Optimizer, models: Sequence[str]) -> None:
        """Note an optimizer none of whose parameters, which are of these models or of none, has a gradient."""
        held = [p for group in optimizer.param_groups for p in group["params"]]
        of = f"the parameters of {' and '.join(models)}" if models else f"{counted(len(held), 'parameter')} of no model"
        text = f"{type(optimizer).__name__} has {of}, which get none"
        self._idle[optimizer] = "" if any(tree.gradient(p) is not None for p in held) else text

    @property
    def alone(self) -> bool:
        """True if there is one optimizer."""
        return sum(1 for _ in self._counts.items()) == 1

    def of(self, model: nn.Module) -> list[Optimizer]:
        mine = {id(p) for p in model.parameters()}
        return [optimizer for optimizer, _ in self._counts.items() if not mine.isdisjoint(parameter_ids(optimizer))]

    def get_gradients(self, inputs: object) -> bool:
        """True if a pass limited to `inputs` leaves gradients to an optimizer; always without optimizers."""
        if inputs is None:
            return True
        given = {id(x) for _, x in tree.leaves(inputs)}
        held = [parameter_ids(optimizer) for optimizer in self]
        return not held or any(not given.isdisjoint(ids) for ids in held)


class ProgramSteps:
    """Counts the steps of a program: optimizers that step in turn make one step together."""

    def __init__(self) -> None:
        self.count = 0
        self._stepped: list[ref[Optimizer]] = []
        self._numbers: dict[str, int] = {}  # of the step that each model has made in the program's

    def passed(self, steps: int) -> None:
        """Count further steps of the optimizer that made the last one."""
        self.count += steps

    def stepped(self, optimizer: Optimizer, numbers: Mapping[str, int]) -> None:
        """Note an optimizer's step, which is the step of this number of each of its models.

        The program's next step begins if this optimizer stepped before, if all others are gone, or if one of its models
        has made an earlier step: another optimizer takes over.
        """
        alive = any(reference() is not None for reference in self._stepped)
        again = any(reference() is optimizer for reference in self._stepped)
        if again or not alive or any(self._numbers.get(model, number) != number for model, number in numbers.items()):
            self.count += 1
            self._stepped.clear()
            self._numbers.clear()
        self._stepped.append(ref(optimizer))
        self._numbers.update(numbers)


def parameter_ids(optimizer: Optimizer) -> set[int]:
    """`id` of each parameter of an optimizer."""
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


class Snapshot:
    """Copies of parameters from before a step, which take as much memory again until it is over."""

    def __init__(self, parameters: Iterable[Tensor], closure: bool = False) -> None:
        self.closure = closure
        """True if the step runs the model itself, so that gradients exist only once it is over."""
        held = [p for p in parameters if (p.requires_grad or p.grad is not None) and not is_lazy(p)]
        self._before = {id(p): tree.local(p).clone() for p in held}

    @classmethod
    def of(cls, optimizer: Optimizer, closure: bool, *, copies: bool) -> Snapshot:
        """The parameters of an optimizer; without `copies` no change is measured."""
        return cls((p for group in optimizer.param_groups for p in group["params"]) if copies else (), closure)

    def changes(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> dict[str, Change]:
        """The change of each of these parameters that the optimizer holds, by fqn."""
        changes = {}
        for fqn, parameter in parameters:
            before = self._before.get(id(parameter))
            if before is None or before.device.type == "meta":
                continue
            now = tree.local(parameter)
            if before.shape == now.shape and now.device.type != "meta":
                changes[fqn] = Change(parameter, before, now, distance.compare(before, now))
        return changes


class Change(NamedTuple):
    """A parameter, its local values before and after a step, and the pending distance between them."""

    parameter: nn.Parameter
    before: Tensor
    now: Tensor
    pending: Any


def rate_by_hand(changes: Iterable[Change]) -> float | None:
    """The rate at which gradients were taken from the weights; None if not so, or unknown. Waits for an accelerator."""
    changed = [(c, tree.local(grad)) for c in changes if (grad := tree.gradient(c.parameter)) is not None]
    alike = [
        (c, grad)
        for c, grad in changed
        if grad.is_floating_point() and c.now.device == grad.device and c.now.layout == grad.layout in _SUBTRACTED
    ]
    pairs = [((c.before - c.now).float(), grad.float()) for c, grad in alike]
    along = sum(float((taken * grad).sum()) for taken, grad in pairs)
    rate = along / (sum(float(grad.square().sum()) for _, grad in pairs) or math.inf)
    off = sum(float((taken - rate * grad).square().sum()) for taken, grad in pairs)
    return float(f"{rate:.4g}") if off < _ROUNDED * rate * along else None


_SUBTRACTED = (torch.strided, torch.sparse_coo)  # PyTorch does not subtract every compressed layout
_ROUNDED = 1e-6  # of the square of the update: weights are rounded


def update_rows(
    types: Mapping[str, str], names: PlainNames, changes: Mapping[str, Change]
) -> tuple[list[Row], dict[str, int]]:
    """A row per parameter: `weight` is the L2 norm before the step, `update` the norm of the change.

    Also how many finite values the step has made NaN or infinite, by the name of the parameter. `types`: the type of
    each module, by fqn.
    """
    measured = distance.resolve([change.pending for change in changes.values()])
    made = []
    ruined = dict[str, int]()
    for (fqn, change), discrepancy in zip(changes.items(), measured, strict=True):
        weight, update = _norms(change, discrepancy)
        values = {
            "fqn": names(fqn),
            "type": types.get(fqn.rpartition(".")[0], ""),
            "shape": tree.shape_of(change.parameter),
            "dtype": tree.dtype_text(change.parameter),
            "weight": weight,
            "update": update,
            "ratio": ratio(update, weight),
        }
        made.append(Row(values | tree.shard_of(change.parameter)))
        if discrepancy.nonfinite and (lost := int((change.before.isfinite() & ~change.now.isfinite()).sum())):
            ruined[names(fqn)] = lost
    return made, ruined


def _norms(change: Change, difference: Discrepancy) -> tuple[float, float]:
    """The L2 norms before the step and of the change, over finite elements; NaN if there are none.

    `difference` covers the elements that are finite both before and after, and cannot tell none of them from zeros.
    """
    if difference.a_l2 and not difference.nonfinite:
        return difference.a_l2, difference.error_l2
    finite = change.before.isfinite()
    weight = change.before[finite].abs().double().norm().item() if finite.any() else math.nan
    both = bool((finite & change.now.isfinite()).any()) or not change.now.numel()
    return weight if change.now.numel() else 0.0, difference.error_l2 if both else math.nan
