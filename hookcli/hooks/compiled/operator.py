"""The operators by which a compiled program shows its tensors to a session.

Their kernels are Python, and run with real tensors when the program runs. Compilers must neither remove nor reorder
them. `look` claims to write into a buffer, the same for all looks of a session. A gradient's operator can't: autograd
would keep the buffer for backward, and refuse it once others have written. It returns a zero, as the gradient of a
scalar that the session ties to the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor

Viewer = Callable[[str, int, Sequence[Tensor]], int]
"""Called with what is looked at, the number of the call that returned it (-1 at a module), and its tensors, as a
program runs. Returns the number of the call."""
_viewers: dict[int, Viewer] = {}
_numbers = count()


class Operators(NamedTuple):
    """The operators, and what binds them to a session."""

    look: Callable[[Sequence[Tensor], Tensor, Tensor, str], Tensor]
    """`look(tensors, order, place, what)` returns the place of a call, for its gradients."""
    gradient: Callable[[Tensor, Tensor, str], Tensor]
    """`gradient(grad, place, what)` returns a zero."""
    order: Tensor
    tie: Tensor


@cache
def _registered() -> tuple[torch.library.Library, Any]:
    library = torch.library.Library("hookcli", "FRAGMENT")  # which is gone with this object
    tags = [getattr(torch.Tag, name) for name in ("flexible_layout", "cudagraph_unsafe") if hasattr(torch.Tag, name)]
    for schema, kernel, shape in (
        ("look(Tensor[] tensors, Tensor(a!) order, Tensor place, str what) -> Tensor", _look, _place),
        ("gradient(Tensor grad, Tensor place, str what) -> Tensor", _gradient, lambda *_: torch.empty(())),
    ):
        library.define(schema, tags=tags)
        name = schema.partition("(")[0]
        library.impl(name, torch.compiler.disable(kernel), "CompositeExplicitAutograd")
        torch.library.register_fake(f"hookcli::{name}", shape, lib=library)
    return library, torch.ops.hookcli


def operators() -> Operators:
    """The operators for a new session."""
    _, registered = _registered()
    tied = torch.zeros((), requires_grad=True)
    return Operators(registered.look.default, registered.gradient.default, torch.zeros((), dtype=torch.int64), tied)


def _look(tensors: Sequence[Tensor], order: Tensor, place: Tensor, what: str) -> Tensor:
    viewer, call = place.tolist()
    if viewer in _viewers:  # its session has not ended
        call = _viewers[viewer](what, call, tensors)
    return torch.tensor([viewer, call])


def _place(tensors: Sequence[Tensor], order: Tensor, place: Tensor, what: str) -> Tensor:
    return torch.empty_like(place)


def _gradient(grad: Tensor, place: Tensor, what: str) -> Tensor:
    _look([grad], place, place, what)
    return torch.zeros(())


def new_place(viewer: Viewer) -> Tensor:
    """The place of a module: as a program's input, it lets modules that are alike share one. `forget` ends it."""
    number = next(_numbers)
    _viewers[number] = viewer
    return torch.tensor([number, -1])


def forget(places: Sequence[Tensor]) -> None:
    """Have looks at these places call nobody any more."""
    for place in places:
        _viewers.pop(place.tolist()[0], None)
