"""Modules and parameters by their places in a model: between others, beside them, and around them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from torch import Tensor, nn

from hookcli.table.names import is_within
from hookcli.tensors import tree

NAMED = 4
"""The places of a kind that are named."""


def only(parameters: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    """The parameters with these names."""
    return {fqn: p for fqn, p in parameters.items() if fqn in names}


def has_any(module: str, names: Iterable[str]) -> bool:
    """True if one of these modules or parameters is this module, or is in it."""
    return any(name == module or is_within(name, module) for name in names)


def frozen_between(model: nn.Module) -> dict[str, tuple[str, str]]:
    """Frozen modules between trained ones of the same class and shape in one container, with these two neighbours.

    Fewer of them than of the trained ones: in a model with adapters, or one whose blocks alternate on purpose, the
    frozen ones are not an exception.
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


def unused_heads(model: nn.Module, idle: Mapping[str, Tensor], reached: Collection[str]) -> dict[str, Tensor]:
    """The parameters of modules in a list or dict that run without effect, beside others of their class."""
    found: dict[str, Tensor] = {}
    for owner, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            parts = [(f"{owner}.{name}".lstrip("."), child) for name, child in module.named_children()]
            trained = {type(child) for fqn, child in parts if has_any(fqn, reached)}
            silent = [fqn for fqn, child in parts if type(child) in trained and not has_any(fqn, reached)]
            found |= {fqn: p for fqn, p in idle.items() if any(is_within(fqn, one) for one in silent)}
    return found


def outermost(names: Iterable[str], reached: Collection[str]) -> Iterator[str]:
    """The outermost modules of these parameters that have no parameter which was reached, in order, each once."""
    places: dict[str, None] = {}
    for fqn in names:
        parts = fqn.split(".")
        modules = (".".join(parts[:number]) for number in range(1, len(parts)))
        places[next((one for one in modules if not has_any(one, reached)), fqn)] = None
    yield from places


def top_modules(names: Iterable[str]) -> list[str]:
    """The outermost modules of these parameters, in order, each once; "..." for those that are too many to name."""
    modules = [*dict.fromkeys(name.partition(".")[0] for name in names)]
    return [*modules[:NAMED], *["..."] * (len(modules) > NAMED)]
