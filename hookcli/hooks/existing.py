"""The hooks that a model already has, read from PyTorch's tables without running or registering anything.

Hooks on nodes of the autograd graph, such as those that FSDP registers on a parameter's AccumulateGrad, are stored in
C++ and can't be listed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookcli.hooks.origin import held_modules, origin
from hookcli.hooks.parts import Select
from hookcli.hooks.torch_private.modules import (
    FULL_FLAG,
    GLOBAL_FULL_FLAG,
    LEFT_IDS,
    Table,
    full_backward,
    global_full_backward,
    global_tables,
    ids_left,
    module_tables,
    optimizer_tables,
    part_tables,
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
    """A hook that is registered now, or a flag that a removed hook left behind.

    `fqn`: the module, parameter or buffer; `(every module)` and `(every optimizer)` stand for the whole process.
    `kind`: PyTorch's name; `backward` is the deprecated `register_backward_hook`, `stale_flag` a flag left behind.
    `order`: the order of firing among the hooks of one place and kind, from 0.
    `flags`: `with_kwargs`, `always_call`, `prepend` if the ids tell, `private` for the underscored registrations.
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
    """List the hooks of the process, then of each module, its parameters and its buffers, in the model's order.

    `select(fqn, module)` narrows the list: a parameter or buffer is listed if its own name or its module is selected,
    the hooks of the process only without `select`.
    """
    hooks: list[ExistingHook] = []
    if not select:
        hooks += _of_modules(EVERY_MODULE, None, global_tables(), GLOBAL_FULL_FLAG, global_full_backward(), None)
        if left := ids_left():
            note = "ids of removed hooks are left: torch.compile warns as if there were global hooks"
            hooks.append(ExistingHook(EVERY_MODULE, None, STALE, 0, f"{LEFT_IDS} ({len(left)})", note=note))
        for kind, table, flags in optimizer_tables():
            hooks += _entries(EVERY_OPTIMIZER, None, kind, table, flags)
    ours = {id(module) for module in model.modules()}
    seen: set[int] = set()
    for fqn, module in model.named_modules():
        wanted = select is None or select(fqn, module)
        if wanted:
            module_type, tables = type(module).__name__, module_tables(module)
            hooks += _of_modules(fqn, module_type, tables, FULL_FLAG, full_backward(module), ours)
        for type_, full, tensor in _tensors(fqn, module):
            if id(tensor) in seen or not (wanted or (select is not None and select(full, module))):
                continue
            seen.add(id(tensor))
            with torch.DisableTorchFunctionSubclass():
                tensors_tables = list(tensor_tables(tensor))
            for kind, table, flags in tensors_tables:
                hooks += _entries(full, type_, kind, table, flags, ours)
    return hooks


def _tensors(prefix: str, module: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """Yield a module's own parameters, then its buffers: "Parameter" or "Buffer", the fqn, the tensor."""
    for type_, table in zip(("Parameter", "Buffer"), part_tables(module), strict=False):  # methods may be overridden
        for name, tensor in table.items():
            if tensor is not None:
                yield type_, f"{prefix}.{name}" if prefix else name, tensor


def _of_modules(
    fqn: str, type_: str | None, tables: Iterable[Table], flag: str, full: bool | None, ours: Collection[int] | None
) -> Iterator[ExistingHook]:
    """Yield the hooks of a module, or of every module, and the flag of full backward hooks if those are gone."""
    stale = True
    for kind, table, flags in tables:
        hooks = _entries(fqn, type_, kind, table, flags, ours)
        if kind != "full_backward":
            yield from hooks
            continue
        stale = not table
        for hook in hooks:  # full and legacy ones share a table; the flag on the module tells which they are
            if full is False:
                note = "; ".join(filter(None, (LEGACY, hook.note)))
                yield replace(hook, kind="backward", legacy=True, note=note)
            else:
                yield hook if full else replace(hook, note=f"never fires: {FULL_FLAG} is None")
    if not stale or full is None:
        return
    what, refused = ("full", "register_backward_hook") if full else ("legacy", "register_full_backward_hook")
    until = "on this module until it is rebuilt"
    if fqn == EVERY_MODULE:
        refused, until = refused.replace("register_", "register_module_"), "for the rest of the process"
    note = f"a {what} backward hook was removed, but its flag stays: PyTorch refuses {refused} {until}"
    yield ExistingHook(fqn, type_, STALE, 0, f"{flag} = {full}", note=note)


def _entries(
    fqn: str,
    type_: str | None,
    kind: str,
    table: Mapping[int, object],
    flag_tables: Mapping[str, Collection[int]],
    ours: Collection[int] | None = None,
) -> Iterator[ExistingHook]:
    """Yield the hooks of one table. `ours`: the ids of the model's modules; None if no model owns the hooks."""
    ids = list(table)
    for order, (key, entry) in enumerate(table.items()):
        hook, private = unwrapped(entry)
        flags = [name for name, keys in flag_tables.items() if key in keys]
        # Ids count up; ids from another process tell nothing.
        prepended = max(ids) < RemovableHandle.next_id and ids[order] > min(ids[order:])
        flags += ["prepend"] if prepended else []
        flags += ["private"] if private and kind in ("state_dict_post", "load_state_dict_pre") else []
        at = origin(hook)
        # A deepcopy's hooks keep the original's closures.
        foreign = ((how, part) for how, part in held_modules(hook) if ours is not None and id(part) not in ours)
        remark = "that is not part of this model, as after a deepcopy"
        note = next((f"{how} a {type(part).__name__} {remark}" for how, part in foreign), None)
        yield ExistingHook(fqn, type_, kind, order, at.function, at.file, at.line, tuple(flags), note=note)
