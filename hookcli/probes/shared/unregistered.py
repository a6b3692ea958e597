"""Modules and parameters that a model uses without registering them: in plain lists, or created while it runs.

`nn.Module` registers what is assigned to an attribute, and what nn.ModuleList and similar classes hold. What is in a
plain list is invisible to hooks, `parameters()`, `state_dict()`, `to()` and `train()`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from types import NoneType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer

from hookcli.hooks.alive import alive
from hookcli.hooks.flow_calls import TensorUses
from hookcli.hooks.session import HookSession
from hookcli.hooks.tensor_origins import version_of
from hookcli.probes.shared.inventory_part import InventoryPart
from hookcli.table import Skipped
from hookcli.tensors import tree
from hookcli.tensors.weak import WeakIds

_LISTS = (list, tuple, set, frozenset, deque)
_PLAIN = (bool, int, float, str, NoneType)
_ASKED = 3  # times, for an optimizer that has the parameters
_DEEPEST, _MOST = 3, 1000  # levels of lists in lists, and items of each, that are looked at
_PYTORCHS = frozenset(vars(nn.Module()))  # the attributes of every module: tables of parameters, of hooks ...


@dataclass(frozen=True, slots=True)
class Unregistered:
    """An unregistered module or parameter. `trainable` is the number of elements that require grad."""

    fqn: str
    said: str
    trainable: int = 0
    deliberate: bool = False
    """True if it was put past nn.Module's own way of registering, which nobody does by mistake, or if the program has
    given all of it to an optimizer.
    """

    def skipped(self) -> Skipped:
        return Skipped(self.fqn, self.said)


def unregistered(session: HookSession) -> list[Unregistered]:
    """Everything that this model has not registered, and that the session's hooks can't see."""
    parts = _parts_of.get(session)  # each probe asks
    if parts is None:
        parts = _parts_of[session] = [*_left_out(session.model), *_made(session)]
    return parts


def _left_out(model: nn.Module) -> Iterator[Unregistered]:
    """Unregistered parts. A skeleton on meta, which functional_call runs with other values, is meant to be one."""
    real = not any(p.is_meta for p in model.parameters())
    for fqn, name, value, items in _unregistered(model):
        parts = (item.parameters() if isinstance(item, nn.Module) else [item] for item in items)
        tensors = [*{id(x): x for x in chain.from_iterable(parts)}.values()]  # each once
        skeleton = real and {x.is_meta for x in tensors} == {True}
        trained = [x for x in tensors if x.requires_grad and not is_lazy(x)]
        held = bool(trained) and are_held(trained)
        part = _described(fqn, name, value, items, sum(x.numel() for x in trained), held)
        yield replace(part, deliberate=True) if skeleton or held else part


def are_held(tensors: Sequence[Tensor]) -> bool:
    """True if living optimizers of the program have all of these tensors.

    To look for optimizers takes as long as a small step: it is done a few times for the parts of a model.
    """
    asked, held = _answers.get(tensors[0]) or (0, False)
    if not held and asked < _ASKED:
        parameters = {id(p) for one in alive(Optimizer) for group in one.param_groups for p in group["params"]}
        held = all(id(x) in parameters for x in tensors)
        _answers[tensors[0]] = asked + 1, held
    return held


_answers: WeakIds[Tensor, tuple[int, bool]] = WeakIds()
_parts_of: WeakIds[HookSession, list[Unregistered]] = WeakIds()


class UnregisteredParts(nn.ModuleList):
    """Everything that a model has not registered, as one module, to restore it after a run."""

    def __init__(self, model: nn.Module) -> None:
        items = [item for *_, parts in _unregistered(model) for item in parts]
        super().__init__(item for item in items if isinstance(item, nn.Module))
        self._tensors = [item for item in items if isinstance(item, Tensor)]

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """The parameters, and tensors that require grad."""
        yield from super().parameters(recurse)
        yield from self._tensors  # type: ignore[misc]  # some are not Parameters


def _unregistered(model: nn.Module) -> Iterator[tuple[str, str, object, list[Any]]]:
    """The module that holds them, the attribute, its value, and what in it is not registered."""
    candidates = list(_candidates(model))
    if not candidates:
        return
    seen = {id(item) for item in (*model.modules(), *model.parameters(), *model.buffers())}
    for fqn, name, value, items in candidates:
        trained = [x for x in items if _is_trained(x) and id(x) not in seen]
        # A module that this model is a part of belongs to others.
        missing = [x for x in trained if not (isinstance(x, nn.Module) and any(part is model for part in x.modules()))]
        seen.update(map(id, missing))
        if missing:
            yield fqn, name, value, missing


def plain_tensors(model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """The tensors that modules hold as plain attributes, but for those to be trained: fqn, attribute, tensor."""
    if candidates := list(_candidates(model)):
        registered = {id(item) for item in (*model.parameters(), *model.buffers())}
        for fqn, name, _, items in candidates:
            for item in items:
                if isinstance(item, Tensor) and not _is_trained(item) and id(item) not in registered:
                    yield fqn, name, item


def _candidates(model: nn.Module) -> Iterator[tuple[str, str, object, list[Any]]]:
    for fqn, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):  # it keeps its parts in its own way, and takes no hooks
            continue
        attributes = vars(module)
        for name in sorted(attributes.keys() - _PYTORCHS):
            value = attributes[name]
            if type(value) not in _PLAIN and (items := list(_items(value))):
                yield fqn, name, value, items


def _is_trained(item: nn.Module | Tensor) -> bool:
    return isinstance(item, (nn.Module, nn.Parameter)) or (item.requires_grad and item.is_leaf)


def _items(value: object, depth: int = 0) -> Iterator[nn.Module | Tensor]:
    if isinstance(value, (nn.Module, Tensor)):
        yield value
    elif isinstance(value, (*_LISTS, dict)) and depth < _DEEPEST:
        for item in islice(value.values() if isinstance(value, dict) else value, _MOST):
            yield from _items(item, depth + 1)


def _described(fqn: str, name: str, value: object, items: list[Any], trainable: int, held: bool) -> Unregistered:
    modules = [item for item in items if isinstance(item, nn.Module)]
    kind = "module" if modules else "parameter" if isinstance(items[0], nn.Parameter) else "tensor that requires grad"
    lost = ", and no optimizer gets their parameters" if modules and trainable and not held else ""
    if value is items[0]:
        hidden = held or isinstance(value, (nn.Module, nn.Parameter))
        reason = f"{name} is a {type(value).__name__} that is not registered: hooks do not see it"
        wrong = f"{name} is a {kind} and not registered, so no optimizer gets it: make it an nn.Parameter"
        return Unregistered(fqn, reason if hidden else wrong, trainable, deliberate=hidden)
    named = f"{len(items)} {kind}{'s' * (len(items) > 1)}" if kind != "tensor that requires grad" else "tensors"
    right = f"nn.{'Module' if modules else 'Parameter'}{'Dict' if isinstance(value, dict) else 'List'}"
    reason = f"{name} is a plain {type(value).__name__} of {named}, which PyTorch doesn't register{lost}: use {right}"
    return Unregistered(fqn, reason, trainable)


def _made(session: HookSession) -> Iterator[Unregistered]:
    parts = {id(module) for module in session.model.modules()} if session.created_modules else set()
    for fqn, made in session.created_modules.items():
        for stays in (True, False):
            modules = [item for item in made if (id(item.module()) in parts) == stays]
            types = ", ".join(dict.fromkeys(item.type for item in modules))
            lost = (
                "which an optimizer that was made before does not get" if stays else "anew each time and never trained"
            )
            reason = f"makes {types} in forward, {lost}: make it in __init__"
            if modules:
                yield Unregistered(fqn, reason, sum(item.elements for item in modules))


class PlainWeights(InventoryPart):
    """Rows of kind `plain_weight`, for the floating-point tensors that were used as weights and stayed as they were.

    Functions are watched only in a model that has such attributes; most have none.
    """

    def __init__(self, session: HookSession) -> None:
        super().__init__(session)
        plain = plain_tensors(session.model)
        floats = [each for each in plain if (x := each[2]).is_floating_point() and tree.is_plain(x) and x.numel() > 1]
        self._held = [(fqn, name, ref(x), version_of(x)) for fqn, name, x in floats]
        self._uses = TensorUses(session, [x for *_, x in floats]) if floats else None

    def rows(self) -> list[dict[str, object]]:
        """A row for each; the values are read back here."""
        used = self._uses.as_weights - self._uses.moved if self._uses else set()
        if not used:
            return []
        still = {id(x) for *_, x in plain_tensors(self.session.model)}
        rows: list[dict[str, object]] = []
        for fqn, name, reference, before in map(self._held.__getitem__, sorted(used)):
            x = reference()
            if x is None or id(x) not in still or version_of(x) != before:
                continue
            values = x.detach()
            if bool((values == values.round()).all()) and bool((values != values.flatten()[0]).any()):
                continue  # whole numbers that are not all alike: a mask, positions or the kernel of a filter
            of_weight = {"kind": "plain_weight", "fqn": fqn, "name": name}
            rows.append({**of_weight, "shape": tree.shape_of(x), "params": x.numel()})
        return rows
