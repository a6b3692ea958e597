"""The objects of a class that are alive, wherever the program keeps them."""

from __future__ import annotations

import gc
from itertools import compress
from typing import TypeVar

from torch import nn

from hookcli.hooks.torch_private.modules import submodules

T = TypeVar("T")


def alive(kind: type[T]) -> list[T]:
    """All objects of the class and those derived from it.

    By their types, as there may be millions; an object, perhaps a proxy, is not asked.
    """
    types, left = {kind}, [kind]
    while left:
        left = [derived for derived in type.__subclasses__(left.pop()) if derived not in types] + left
        types.update(left)
    items = gc.get_objects()
    return list(compress(items, map(types.__contains__, map(type, items))))


def built_modules() -> list[nn.Module]:
    """All modules whose constructor has come to hold parts, those created last first."""
    return [module for module in alive(nn.Module) if submodules(module) is not None]
