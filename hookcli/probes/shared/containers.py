"""Modules that are no level of depth: a reader goes through them to what they hold."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def containers(model: nn.Module) -> list[str]:
    """The fqns of modules without a forward of their own, such as ModuleList, and of the model's lone child.

    The lone child of a lone child, too; but not one without parts, since then nothing would be left to show.
    """
    lists = [
        fqn for fqn, part in model.named_modules() if fqn and getattr(type(part), "forward", None) is nn.Module.forward
    ]
    return list(dict.fromkeys([*_lone(model), *lists]))


def _lone(model: nn.Module, fqn: str = "") -> Iterator[str]:
    children = list(model.named_children())
    if len(children) == 1 and any(children[0][1].children()):
        name = f"{fqn}.{children[0][0]}".lstrip(".")
        yield name
        yield from _lone(children[0][1], name)
