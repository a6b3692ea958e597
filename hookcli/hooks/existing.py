"""Every hook that a model already carries, read off PyTorch's own tables. Nothing is run and nothing registered.

The tables are private (`_forward_hooks` and its kin, in torch/nn/modules/module.py, torch/_tensor.py and
torch/optim/optimizer.py), but there is no other way to list hooks. Hooks on nodes of the autograd graph, such as those
that FSDP puts on a parameter's AccumulateGrad, are kept in C++ and can't be listed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer
from torch.utils.hooks import RemovableHandle

from hookcli.hooks.origin import held_modules, origin
from hookcli.hooks.select import Select

LEGACY = (
    "deprecated, and sees the last operation's gradients only: use register_full_backward_hook or "
    "`hookcli grads --of outputs`"
)
STALE = "stale_flag"
EVERY_MODULE, EVERY_OPTIMIZER = "(every module)", "(every optimizer)"

_TABLES = {
    "forward_pre": "_forward_pre_hooks",
    "forward": "_forward_hooks",
    "full_backward_pre": "_backward_pre_hooks",
    "full_backward": "_backward_hooks",
    "state_dict_pre": "_state_dict_pre_hooks",
    "state_dict_post": "_state_dict_hooks",
    "load_state_dict_pre": "_load_state_dict_pre_hooks",
    "load_state_dict_post": "_load_state_dict_post_hooks",
}
_TENSOR_TABLES = {"tensor_grad": "_backward_hooks", "post_accumulate_grad": "_post_accumulate_grad_hooks"}
_GLOBAL_TABLES = {
    **{kind: f"_global{table}" for kind, table in list(_TABLES.items())[:4]},
    "module_registration": "_global_module_registration_hooks",
    "parameter_registration": "_global_parameter_registration_hooks",
    "buffer_registration": "_global_buffer_registration_hooks",
}
_OPTIMIZER_TABLES = {
    "optimizer_step_pre": "_global_optimizer_pre_hooks",
    "optimizer_step_post": "_global_optimizer_post_hooks",
}
_FLAG_TABLES = {"with_kwargs": "_with_kwargs", "always_call": "_always_called"}


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
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            full = f"{fqn}.{name}" if fqn else name
            if tensor is None or id(tensor) in seen or not (wanted or (select is not None and select(full, module))):
                continue
            seen.add(id(tensor))
            found += _of_tensor(full, "Parameter" if name in module._parameters else "Buffer", tensor, own)
    return found


def _of_module(fqn: str, module: nn.Module, own: Collection[int]) -> Iterator[ExistingHook]:
    type_ = type(module).__name__
    for kind, name in _TABLES.items():
        hooks = _entries(fqn, type_, kind, getattr(module, name, None) or {}, _flag_tables(module, name), own)
        yield from _told_apart(hooks, module._is_full_backward_hook) if kind == "full_backward" else hooks
    if not module._backward_hooks:
        yield from _stale(fqn, type_, "_is_full_backward_hook", module._is_full_backward_hook)


def _of_tensor(fqn: str, type_: str, tensor: Tensor, own: Collection[int]) -> Iterator[ExistingHook]:
    with torch._C.DisableTorchFunctionSubclass():
        tables = {kind: getattr(tensor, name, None) or {} for kind, name in _TENSOR_TABLES.items()}
    for kind, table in tables.items():
        yield from _entries(fqn, type_, kind, table, {}, own)


def _of_process() -> Iterator[ExistingHook]:
    full = torch_module._global_is_full_backward_hook
    for kind, name in _GLOBAL_TABLES.items():
        hooks = _entries(EVERY_MODULE, None, kind, getattr(torch_module, name), _flag_tables(torch_module, name))
        yield from _told_apart(hooks, full) if kind == "full_backward" else hooks
    if not torch_module._global_backward_hooks:
        yield from _stale(EVERY_MODULE, None, "_global_is_full_backward_hook", full)
    left = torch_module._global_forward_hooks_with_kwargs.keys() - torch_module._global_forward_hooks.keys()
    if left:
        note = "ids of removed hooks stayed: torch.compile warns as if there were global hooks"
        yield ExistingHook(EVERY_MODULE, None, STALE, 0, f"_global_forward_hooks_with_kwargs ({len(left)})", note=note)
    for kind, name in _OPTIMIZER_TABLES.items():
        yield from _entries(EVERY_OPTIMIZER, None, kind, getattr(torch_optimizer, name), {})


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
        wrapped = isinstance(entry, torch_module._WrappedHook)
        hook = entry.hook if wrapped else entry
        flags = [name for name, keys in flag_tables.items() if key in keys]
        flags += ["prepend"] if _was_prepended(order, ids) else []
        private = not entry.with_module if wrapped else not getattr(hook, "_from_public_api", False)
        flags += ["private"] if private and kind in ("state_dict_post", "load_state_dict_pre") else []
        at = origin(hook)
        note = None if own is None else _foreign(hook, own)
        yield ExistingHook(fqn, type_, kind, order, at.function, at.file, at.line, tuple(flags), note=note)


def _flag_tables(owner: Any, table: str) -> dict[str, Collection[int]]:
    """The tables beside a table of hooks that say how some of them are called."""
    return {flag: getattr(owner, table + suffix, ()) for flag, suffix in _FLAG_TABLES.items()}


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
            yield hook if full else replace(hook, note="never fires: _is_full_backward_hook is None")


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
