"""The tensors of a call of a module or operator on one side of a comparison."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from hookcli.hooks.events import HookEvent
from hookcli.tensors import tree

OUTPUT, GRAD_OUTPUT, GRAD = "output", "grad_output", "grad"


@dataclass(slots=True)
class ModuleTensors:
    """Tensors of a call of a module or operator on one side, by path. They are live until the callback ends."""

    kind: str
    fqn: str
    type: str
    call: int
    index: int
    tensors: list[tuple[str, Tensor]]
    batch: int = 0
    passed: int = 0
    """The number of the pass."""
    source: str = ""
    """An operator's line in the program."""
    received: list[tuple[str, Tensor]] = field(default_factory=list)
    """The arguments of the call, where they are known."""
    uninitialised: bool = False
    """An operator returned memory that was not all written yet."""


def of_event(event: HookEvent, kind: str, tensors: list[tuple[str, Tensor]]) -> ModuleTensors:
    """The tensors of the call that an event is about."""
    name = event.operator.name if event.operator else type(event.module).__name__
    seen = ModuleTensors(kind, event.fqn, name, event.call, event.index, tensors)
    if kind == OUTPUT:
        seen.received = list(tree.arguments(event.args, event.kwargs))
    if event.operator:
        seen.source = event.operator.source
        seen.uninitialised = kind == OUTPUT and event.operator.uninitialised
    return seen


def only(side: int, what: str) -> dict[str, Any]:
    """The values of a row of tensors that one side alone has, beside their place."""
    return {"differs": f"{what} in {'AB'[side]} only", "beyond": True}


def place(seen: ModuleTensors, path: str) -> dict[str, object]:
    """The values of a row that say where one of the tensors belongs."""
    return {
        "fqn": seen.fqn,
        "type": seen.type,
        "kind": seen.kind,
        "call": seen.call,
        "index": seen.index,
        "path": path,
        **({"source": seen.source} if seen.source else {}),
        **{name: number for name, number in (("batch", seen.batch), ("pass", seen.passed)) if number},
    }
