"""Every hook that a model already carries, read off PyTorch's own tables. Nothing is run and nothing registered.

There is no other way to list hooks. Hooks on nodes of the autograd graph, such as those that FSDP puts on a parameter's
AccumulateGrad, are kept in C++ and can't be listed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookcli.hooks.origin import held_modules, origin
from hookcli.hooks.select import Select
from hookcli.hooks.torch_private.modules import (
    FULL_FLAG,
    GLOBAL_FULL_FLAG,
    LEFT_IDS,
    full_backward,
    global_full_backward,
    global_tables,
    ids_left,
    module_tables,
    optimizer_tables,
    tensor_tables,
    unwrapped,
)

LEGACY = (
    "deprecated, and sees the last operation's gradients only: use register_full_backward_hook or "
    "`hookcli grads --of outputs`"
)
STALE = "stale_flag"
EVERY_MODULE, EVERY_OPTIMIZER = "(every module)", "(every optimizer)"


@dataclass(frozen=True, slots=True)
class ExistingHook:
    """One hook that is there.

    `fqn` names the module, parameter or buffer; `(every module)` and `(every optimizer)` mean the whole process.
    `kind` bears PyTorch's name, and `backward` is the deprecated `register_backward_hook`; a `stale_flag` is no hook
    but what a removed one left. `order` counts from 0 in the order of firing among those of one place and kind.
    `flags`: `with_kwargs`, `always_call`, `prepend` where the ids tell, `private` for the underscored registrations.
    """

    fqn: str
    type: str | None
    kind: str
    order: int
    function: str
    file: str | None = None
    line: int | None = None
    flags: tuple[str, ...] = ()
    legacy: bool = False
    note: str | None = None


def existing_hooks(model: nn.Module, select: Select | None = None) -> list[ExistingHook]:
    """The hooks of the process, then those of each module with its parameters and buffers, in the model's order.

    `select(fqn, module)` narrows the places; a parameter or buffer is taken by its own name or with its module, and
    those of the process are taken only where all is.
    """
    found = list(_of_process()) if select is None else []
    own = {id(module) for module in model.modules()}
    seen: set[int] = set()
    for fqn, module in model.named_modules():
        wanted = select is None or select(fqn, module)
        if wanted:
            found += _of_module(fqn, module, own)
        for type_, full, tensor in _tensors(fqn, module):
            if id(tensor) in seen or not (wanted or (select is not None and select(full, module))):
                continue
            seen.add(id(tensor))
            found += _of_tensor(full, type_, tensor, own)
    return found


def _tensors(prefix: str, module: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """A module's own parameters, then its buffers, each with "Parameter" or "Buffer" and its fqn."""
    for fqn, parameter in module.named_parameters(prefix, recurse=False, remove_duplicate=False):
        yield "Parameter", fqn, parameter
    for fqn, buffer in module.named_buffers(prefix, recurse=False, remove_duplicate=False):
        yield "Buffer", fqn, buffer


def _of_module(fqn: str, module: nn.Module, own: Collection[int]) -> Iterator[ExistingHook]:
    type_ = type(module).__name__
    flag, had_any = full_backward(module), False
    for kind, table, flags in module_tables(module):
        hooks = _entries(fqn, type_, kind, table, flags, own)
        yield from _told_apart(hooks, flag) if kind == "full_backward" else hooks
        had_any |= kind == "full_backward" and bool(table)
    if not had_any:
        yield from _stale(fqn, type_, FULL_FLAG, flag)


def _of_tensor(fqn: str, type_: str, tensor: Tensor, own: Collection[int]) -> Iterator[ExistingHook]:
    with torch.DisableTorchFunctionSubclass():
        tables = list(tensor_tables(tensor))
    for kind, table, flags in tables:
        yield from _entries(fqn, type_, kind, table, flags, own)


def _of_process() -> Iterator[ExistingHook]:
    flag, any_there = global_full_backward(), False
    for kind, table, flags in global_tables():
        hooks = _entries(EVERY_MODULE, None, kind, table, flags)
        yield from _told_apart(hooks, flag) if kind == "full_backward" else hooks
        any_there |= kind == "full_backward" and bool(table)
    if not any_there:
        yield from _stale(EVERY_MODULE, None, GLOBAL_FULL_FLAG, flag)
    if left := ids_left():
        note = "ids of removed hooks stayed: torch.compile warns as if there were global hooks"
        yield ExistingHook(EVERY_MODULE, None, STALE, 0, f"{LEFT_IDS} ({len(left)})", note=note)
    for kind, table, flags in optimizer_tables():
        yield from _entries(EVERY_OPTIMIZER, None, kind, table, flags)


def _entries(
    fqn: str,
    type_: str | None,
    kind: str,
    table: Mapping[int, Any],
    flag_tables: Mapping[str, Collection[int]],
    own: Collection[int] | None = None,
) -> Iterator[ExistingHook]:
    """The hooks of one table. `own` are the ids of the model's modules; None where no model owns the hook."""
    ids = list(table)
    for order, (key, entry) in enumerate(table.items()):
        hook, private = unwrapped(entry)
        flags = [name for name, keys in flag_tables.items() if key in keys]
        flags += ["prepend"] if _was_prepended(order, ids) else []
        flags += ["private"] if private and kind in ("state_dict_post", "load_state_dict_pre") else []
        at = origin(hook)
        note = None if own is None else _foreign(hook, own)
        yield ExistingHook(fqn, type_, kind, order, at.function, at.file, at.line, tuple(flags), note=note)


def _was_prepended(order: int, ids: list[int]) -> bool:
    """Ids count up, so a hook before an older one was put there. Ids from another process say nothing."""
    return max(ids) < RemovableHandle.next_id and ids[order] > min(ids[order:])


def _told_apart(hooks: Iterator[ExistingHook], full: bool | None) -> Iterator[ExistingHook]:
    """Full and legacy backward hooks share a table; a flag on the module tells which it holds."""
    for hook in hooks:
        if full is False:
            note = "; ".join(filter(None, (LEGACY, hook.note)))
            yield replace(hook, kind="backward", legacy=True, note=note)
        else:
            yield hook if full else replace(hook, note=f"never fires: {FULL_FLAG} is None")


def _stale(fqn: str, type_: str | None, flag: str, full: bool | None) -> Iterator[ExistingHook]:
    if full is None:
        return
    what, refused = ("full", "register_backward_hook") if full else ("legacy", "register_full_backward_hook")
    if fqn == EVERY_MODULE:
        refused, until = refused.replace("register_", "register_module_"), "for the rest of the process"
    else:
        until = "on this module until it is built anew"
    note = f"a {what} backward hook was here, and its flag stays: {refused} is refused {until}"
    yield ExistingHook(fqn, type_, STALE, 0, f"{flag} = {full}", note=note)


def _foreign(hook: Any, own: Collection[int]) -> str | None:
    """Whether a hook works on modules of another model: a deepcopy's hooks keep the closures of the original."""
    for how, module in held_modules(hook):
        if id(module) not in own:
            return f"{how} a {type(module).__name__} that is not part of this model, as after a deepcopy"
    return None
