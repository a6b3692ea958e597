"""Parts of a model that can be changed one by one: weights, heads of attention, experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from hookcli.probes.shared.layer_rows import is_transposed
from hookcli.probes.shared.module_facts import HEAD_COUNTS
from hookcli.tensors.tree import is_plain, type_text


def matrices(module: nn.Module) -> list[nn.Parameter]:
    """The module's own weights of two or more dimensions, so no biases, and none of most normalizations."""
    own = module.parameters(recurse=False)
    return [p for p in own if p.dim() > 1 and p.is_floating_point() and p.dtype.itemsize > 1 and is_plain(p)]


_PROJECTIONS = ("out_proj", "o_proj", "c_proj", "proj", "out_lin", "wo", "o", "to_out", "dense", "output.dense", "out")


@dataclass(frozen=True)
class Head:
    """A head of the attention `fqn`, as the `part` of the columns of its output projection's weight.

    The part is empty if the columns can't be shared evenly.
    """

    fqn: str
    type: str
    number: int
    projection: str
    weight: nn.Parameter
    part: slice


def heads(model: nn.Module) -> Iterator[Head]:
    """Each head of the modules that are named after attention, have a number of heads and an output projection."""
    known, modules = set[str](), dict(model.named_modules())
    for fqn, module in modules.items():
        count = _head_count(module)
        # The output projection is a part of attention, or of the module around it (BERT's).
        owner, _, last = fqn.rpartition(".")
        places = (fqn, owner) if last in ("self", "attention") else (fqn,)  # another word
        parts = (f"{place}.{part}{first}" for place in places for part in _PROJECTIONS for first in ("", ".0"))
        names = (name for part in parts if (name := part.strip(".")) in modules and matrices(modules[name]))
        name = next(names, "") if count else ""
        if not name or name in known:  # of BERT, both a module and the one around it have the number
            continue
        known.add(name)
        weight = matrices(modules[name])[0]
        step, left = divmod(weight.shape[not is_transposed(modules[name])], count)
        for n in range(1 if left else count):
            part = slice(0, 0) if left else slice(n * step, (n + 1) * step)
            yield Head(fqn, type_text(module), n, name, weight, part)


def _head_count(module: nn.Module) -> int:
    """The number of heads that a module of attention has itself or in its config; 0 for other modules."""
    named = any(word in type(module).__name__.lower() for word in ("att", "mha", "multihead"))
    holders: list[Any] = [vars(module), vars(getattr(module, "config", None) or object)] if named else []
    counts = (holder.get(name) for holder in holders for name in HEAD_COUNTS)
    return next((count for count in counts if type(count) is int and count > 0), 0)


def experts(model: nn.Module) -> Iterator[tuple[str, nn.Module, int, list[nn.Parameter]]]:
    """Each expert: a module in a list or mapping called experts, or a part of one, whose `weights` hold all experts."""
    named = [(fqn, module) for fqn, module in model.named_modules() if "expert" in fqn.rpartition(".")[2]]
    for fqn, module in named:
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            yield from ((f"{fqn}.{name}", part, n, []) for n, (name, part) in enumerate(module.named_children()))
        elif len(sizes := {p.shape[0] for p in matrices(module) if p.dim() == 3}) == 1:
            weights = [p for p in matrices(module) if p.shape[0] in sizes]
            yield from ((fqn, module, number, weights) for number in range(sizes.pop()))
