"""Names of models and their modules, without the wrappers that PyTorch puts around them.

A model is named after its class, or its place within the module that contains it; models of one class after their
variables. That is found once, when a model is first called, by a walk over the objects of the garbage collector, which
no program notices: frames' local variables would be kept alive by a look at them.
"""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import ModuleType
from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from hookcli.hooks.alive import built_modules
from hookcli.hooks.torch_private.dynamo import WRAPPED
from hookcli.hooks.torch_private.modules import all_parts, submodules
from hookcli.table.names import operator_owner
from hookcli.tensors.tree import is_sharded, type_text

_WRAPPERS = (DataParallel, DistributedDataParallel, AveragedModel)


def unwrap(module: nn.Module) -> nn.Module:
    """The model that DataParallel, DistributedDataParallel or AveragedModel wraps."""
    while isinstance(module, _WRAPPERS):
        module = module.module
    return module


def replicas_of(module: nn.Module) -> int:
    """The number of processes over which a wrapper averages the gradients; 1 for none, or if it can't be told."""
    if isinstance(module, DistributedDataParallel):
        return int(module.process_group.size())
    sharded: list[Any] = [p for p in module.parameters() if is_sharded(p)]
    return math.prod(sharded[0].device_mesh.shape[: _fsdp_dimensions(module, sharded)]) if sharded else 1


def replica_group(module: nn.Module) -> list[int]:
    """The ranks that hold replicas of a module under DistributedDataParallel; none without it."""
    if not isinstance(module, DistributedDataParallel):
        return []
    ranks: list[int] = sys.modules["torch.distributed"].get_process_group_ranks(module.process_group)
    return ranks


def tensor_parallel_ranks(module: nn.Module) -> list[int]:
    """This and other ranks that share the model's layers, along the dimensions of meshes that are not FSDP2's."""
    ranks: list[int] = []
    sharded: list[Any] = [p for p in module.parameters() if is_sharded(p)]
    skipped = _fsdp_dimensions(module, sharded)
    for mesh in {id(p.device_mesh): p.device_mesh for p in sharded}.values():
        if (at := mesh.get_coordinate()) is not None:
            ranks = max(ranks, mesh.mesh[tuple(at[:skipped])].flatten().tolist(), key=len)
    return ranks if ranks[1:] else []


def _fsdp_dimensions(module: nn.Module, sharded: Sequence[Any]) -> int:
    """The number of a mesh's first dimensions that FSDP2 averages over: two for replicas of shards (HSDP), or one."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if not sharded or fsdp is None or not any(isinstance(part, fsdp.FSDPModule) for part in module.modules()):
        return 0
    return 2 if all(parameter.placements[0].is_replicate() for parameter in sharded) else 1


def plain_type(module: nn.Module) -> str:
    """A model's class name, such as ResNet, also if it is compiled, sharded or averaged."""
    inner = unwrap(module)
    parts = submodules(inner) or {}
    wrapped = next((part for name, part in parts.items() if name in WRAPPED and part is not None), None)
    return type_text(inner) if wrapped is None else plain_type(wrapped)


class PlainNames:
    """Strips the names of wrappers from the fqns of a model's modules and parameters."""

    def __init__(self, model: nn.Module) -> None:
        self._wrapped = {f"{fqn}.module".lstrip(".") for fqn, m in model.named_modules() if isinstance(m, _WRAPPERS)}

    def __call__(self, fqn: str) -> str:
        """layer1.conv for a conv in a compiled layer1, and layer1:add_1 for an operator there."""
        owner = operator_owner(fqn)
        if owner is not None:
            return self(owner) + fqn[len(owner) :]
        parts = fqn.split(".")
        if not self._wrapped and WRAPPED.isdisjoint(parts):  # as of most models
            return fqn
        places = zip(parts, accumulate(parts, "{}.{}".format), strict=True)
        return ".".join(part for part, place in places if part not in WRAPPED and place not in self._wrapped)


_DEEP = 64  # modules within modules
_RIVALS = 8  # to look for a model's name takes some time
_KEY = 40  # characters of a dict's key, which may be a whole text


def model_name(module: nn.Module) -> str:
    """Net for a model, Agent.critic for a part that is called by itself; with a variable, Net (left), if not alone."""
    alive = built_modules()
    parents = _parents(alive)
    root, fqn = _place(module, parents)
    kind = plain_type(root)
    name = ".".join(filter(None, (kind, PlainNames(root)(fqn))))
    rivals = [m for m in alive if id(m) not in parents and m is not root and plain_type(m) == kind]
    mine, *others = _variables([root, *rivals[:_RIVALS]]) if rivals else [None]
    return f"{name} ({mine})" if mine and any(other not in (None, mine) for other in others) else name


def outermost(module: nn.Module) -> nn.Module:
    """The model that a part belongs to, by the same walk; the module itself if it is none's."""
    return _place(module, _parents(built_modules()))[0]


def held_by(module: nn.Module, *, anyones: bool = False) -> nn.Module:
    """The program's model inside another library's wrapper, or `anyones`; the module itself if it wraps none."""
    parts = [part for part in (submodules(module) or {}).values() if part is not None]
    inner = [part for part in parts if _has_parameters(part)]
    alone = len(inner) == 1 and next(module.parameters(recurse=False), None) is None
    if not alone or _defined_in(module).startswith("torch."):
        return module
    held = held_by(inner[0], anyones=anyones)
    return held if anyones or (_is_ours(module) and not _is_ours(held)) else module


def _has_parameters(module: nn.Module) -> bool:
    return any(next(part.parameters(recurse=False), None) is not None for part in all_parts(module))


def _parents(alive: Sequence[nn.Module]) -> dict[int, tuple[nn.Module, str]]:
    """Each module's container, by id, and name there: the oldest, of the program's own classes before PyTorch's."""
    parents: dict[int, tuple[nn.Module, str]] = {}
    for theirs in (False, True):
        for module in reversed(alive):  # the collector lists the young first
            if _defined_in(module).startswith("torch.") is theirs:
                for name, part in (submodules(module) or {}).items():
                    parents.setdefault(id(part), (module, name))
    return parents


def _place(module: nn.Module, parents: Mapping[int, tuple[nn.Module, str]]) -> tuple[nn.Module, str]:
    """The outermost module that contains this one, and the name there; not a mere list, dict or wrapper of models."""
    root, names = module, list[str]()
    while id(root) in parents and len(names) < _DEEP:  # a module may contain itself
        owner, name = parents[id(root)]
        listed = isinstance(owner, (nn.ModuleList, nn.ModuleDict)) and id(owner) not in parents
        if listed or held_by(owner) is not owner:
            break
        root, names = owner, [name, *names]
    return root, ".".join(names)


def _variables(items: Sequence[object], within: bool = True) -> list[str | None]:
    """For each object the name of a global variable that holds it, or of an attribute; None for local variables.

    `within`: also of a list, tuple or dict that holds it, as in nets[0]; first of all of one that holds nothing else
    than objects of its class, since a loop over these has a variable, too. Each walk over all objects serves all items.
    """
    holders = gc.get_referrers(*items)
    modules = {id(vars(module)): module for module in list(sys.modules.values()) if isinstance(module, ModuleType)}
    owned = _owned([holder for holder in holders if type(holder) is dict and id(holder) not in modules])
    of_others = [names for holder in holders if (names := owned.get(id(holder)) or _own_attributes(holder))]
    of_modules = [holder for holder in holders if id(holder) in modules]
    namespaces = {id(names) for names in (*of_modules, *of_others)}
    lists = [h for h in holders if type(h) in (list, tuple, dict) and id(h) not in namespaces and id(h) not in owned]
    called = zip(lists, _variables(lists, within=False), strict=True) if within and lists else ()
    named = [(dict(h) if isinstance(h, dict) else dict(enumerate(h)), name) for h, name in called if name]
    return [_name(item, of_modules, of_others, named) for item in items]


def _name(
    item: object,
    of_modules: Sequence[Mapping[str, Any]],
    of_others: Sequence[Mapping[str, object]],
    lists: Sequence[tuple[Mapping[object, object], str]],
) -> str | None:
    alike = [(items, name) for items, name in lists if len(items) > 1 and {*map(type, items.values())} == {type(item)}]
    names = (
        *(_key(items, item, name) for items, name in alike),
        *(_key(space, item) for space in (*of_modules, *of_others)),
        *(_key(items, item, name) for items, name in lists),
    )
    return next(filter(None, names), None)


def _key(names: Mapping[Any, object], item: object, holder: str = "") -> str | None:
    """A variable's name, or nets[0] in a list or dict. Other keys than text and integers have foreign `repr`s."""
    keys = [key for key, value in list(names.items()) if value is item and type(key) in (str, int)]
    if holder:
        short = (f"{key[:_KEY]}…" if isinstance(key, str) and len(key) > _KEY else key for key in keys)
        return next((f"{holder}[{key!r}]" for key in short), None)
    return next((key for key in keys if isinstance(key, str) and not key.startswith("_")), None)


def _owned(dicts: Sequence[dict[str, object]]) -> dict[int, Mapping[str, object]]:
    """The dicts that are the attributes of an object, by id; an empty one for an object of hookcli."""
    wanted = {id(names) for names in dicts}
    attributes: dict[int, Mapping[str, object]] = {}
    for owner in gc.get_referrers(*dicts) if dicts else ():
        names = _attributes(owner)
        if names is not None and id(names) in wanted:
            attributes[id(names)] = {} if _is_ours(owner) else names
    return attributes


def _own_attributes(owner: object) -> Mapping[str, object]:
    """The attributes of an object that holds them without a dict; empty if it is not the program's."""
    return {} if isinstance(owner, (dict, list, tuple)) or _is_ours(owner) else _attributes(owner) or {}


def _attributes(owner: object) -> dict[str, object] | None:
    """The attributes that an object holds by itself, without asking its class, which may be a proxy's."""
    try:
        names = object.__getattribute__(owner, "__dict__")
    except (AttributeError, TypeError):
        return None
    return names if type(names) is dict else None


def _is_ours(owner: object) -> bool:
    """True for an object of hookcli's or of an installed library, which has its own names for the program's models."""
    name = _defined_in(owner).partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return name in ("hookcli", "torch") or "site-packages" in file or "dist-packages" in file


def _defined_in(item: object) -> str:
    """The name of the module that defines an object's class; empty if the class has replaced it."""
    name = type(item).__module__
    return name if isinstance(name, str) else ""
