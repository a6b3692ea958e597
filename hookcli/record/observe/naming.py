"""Names of models: the class, or the place within the module that contains it; models of one class by their variables.

Found once, when a model is first called, by a walk over the objects of the garbage collector, which no program notices:
frames' local variables would be kept alive by a look at them.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from itertools import chain, compress
from types import ModuleType
from typing import Any

from torch import nn

from hookcli.record.observe.wrappers import PlainNames, plain_type

_Container = list[Any] | tuple[Any, ...] | dict[Any, Any]
_DEEP = 64  # modules within modules
_RIVALS = 8  # to look for a model's name takes some time


def model_name(module: nn.Module) -> str:
    """Net for a model, Agent.critic for a part of one that the program calls by itself.

    If several such models hang at different places, the name of the variable or attribute is added: Net (left).
    """
    alive = _alive()
    parents = _parents(alive)
    root, fqn = _place(module, parents)
    kind = plain_type(root)
    name = ".".join(filter(None, (kind, PlainNames(root)(fqn))))
    rivals = [m for m in alive if id(m) not in parents and m is not root and plain_type(m) == kind]
    mine = _variable(root) if rivals else None
    others = (_variable(rival) for rival in rivals[:_RIVALS])
    return f"{name} ({mine})" if mine and any(other not in (None, mine) for other in others) else name


def _alive() -> list[nn.Module]:
    """All modules whose constructor has come to hold parts, those created last first."""
    types, found = {nn.Module}, [nn.Module]
    while found:
        found = [kind for kind in type.__subclasses__(found.pop()) if kind not in types] + found
        types.update(found)
    items = gc.get_objects()
    modules = compress(items, map(types.__contains__, map(type, items)))  # quick: there may be millions
    return [module for module in modules if "_modules" in vars(module)]


def _parents(alive: Sequence[nn.Module]) -> dict[int, tuple[nn.Module, str]]:
    """The module that contains each module, by id, and the name there; a class of the program's own before PyTorch's.

    A module that several contain hangs in the oldest one.
    """
    found: dict[int, tuple[nn.Module, str]] = {}
    for theirs in (False, True):
        for module in reversed(alive):  # the collector lists the young first
            if type(module).__module__.startswith("torch.") is theirs:
                for name, part in vars(module)["_modules"].items():
                    found.setdefault(id(part), (module, name))
    return found


def _place(module: nn.Module, parents: Mapping[int, tuple[nn.Module, str]]) -> tuple[nn.Module, str]:
    """The outermost module that contains this one, and the name there; not a mere list or dict of models."""
    root, names = module, list[str]()
    while id(root) in parents and len(names) < _DEEP:  # a module may contain itself
        owner, name = parents[id(root)]
        if isinstance(owner, (nn.ModuleList, nn.ModuleDict)) and id(owner) not in parents:
            break
        root, names = owner, [name, *names]
    return root, ".".join(names)


def _variable(item: object, within: bool = True) -> str | None:
    """The name of a global variable that holds this object, or of an attribute; None for local variables.

    `within`: also of a list, tuple or dict that holds it, as in nets[0]; first of all of one that holds nothing else
    than objects of its class, since a loop over these has a variable, too.
    """
    held = [(holder, *_owner(holder)) for holder in gc.get_referrers(item)]
    lists = [holder for holder, _, owner in held if owner is None and type(holder) in (list, tuple, dict) and within]
    alike = [holder for holder in lists if len(holder) > 1 and {*map(type, _items(holder).values())} == {type(item)}]
    names = (
        (name for holder in alike if (name := _place_in(holder, item))),
        (name for _, names, owner in held if isinstance(owner, ModuleType) and (name := _key(names, item))),
        (name for _, names, owner in held if not isinstance(owner, ModuleType) and (name := _key(names, item))),
        (name for holder in lists if (name := _place_in(holder, item))),
    )
    return next(chain(*names), None)


def _place_in(holder: _Container, item: object) -> str | None:
    name = _variable(holder, within=False)
    index = next((key for key, value in _items(holder).items() if value is item), "?")
    return f"{name}[{index!r}]" if name else None


def _items(holder: _Container) -> Mapping[Any, object]:
    return dict(holder) if isinstance(holder, dict) else dict(enumerate(holder))


def _owner(holder: object) -> tuple[Mapping[str, Any], object | None]:
    """The attributes of the object or module that a referrer belongs to, and that object; ({}, None) for others."""
    if type(holder) in (list, tuple):
        return {}, None
    owners = gc.get_referrers(holder) if type(holder) is dict else [holder]
    for owner in owners:
        names = _attributes(owner)
        if names is not None and (names is holder or owner is holder):
            return ({} if _is_ours(owner) else names), owner
    return {}, None


def _attributes(owner: object) -> dict[str, Any] | None:
    """The attributes that an object holds by itself, without asking its class, which may be a proxy's."""
    try:
        names = object.__getattribute__(owner, "__dict__")
    except (AttributeError, TypeError):
        return None
    return names if type(names) is dict else None


def _is_ours(owner: object) -> bool:
    """True for what hookcli and PyTorch hold, for a short time or under names of their own."""
    return not isinstance(owner, ModuleType) and type(owner).__module__.partition(".")[0] in ("hookcli", "torch")


def _key(names: Mapping[str, Any], item: object) -> str | None:
    found = (name for name, value in list(names.items()) if value is item)
    return next((name for name in found if isinstance(name, str) and not name.startswith("_")), None)
