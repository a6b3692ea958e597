"""Hooks that fire outside of forward and backward: on registration, on state dicts, and on optimizers."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from hookcli.errors import UsageError
from hookcli.hooks.events import HookEvent, PicklableHook
from hookcli.hooks.kinds import OPTIMIZER, STATE_DICT, HookKind
from hookcli.hooks.session_core import HookGroup, SessionCore
from hookcli.hooks.torch_private.dynamo import made_by_tracing

Registered = Callable[[HookKind, nn.Module, str, object], None]
"""Gets the kind, the owner, the attribute's name, and what is registered (None for an empty attribute)."""

_REGISTER: dict[HookKind, Callable[..., RemovableHandle]] = {
    HookKind.MODULE_REGISTRATION: register_module_module_registration_hook,
    HookKind.PARAMETER_REGISTRATION: register_module_parameter_registration_hook,
    HookKind.BUFFER_REGISTRATION: register_module_buffer_registration_hook,
}


@contextmanager
def registrations(tell: Registered) -> Iterator[None]:
    """Call `tell` in this block for every module, parameter and buffer that any module registers."""
    with ExitStack() as stack:
        for kind, register in _REGISTER.items():
            # The hooks must return None: PyTorch would register what they return instead.
            stack.enter_context(register(lambda owner, name, item, kind=kind: tell(kind, owner, name, item)))
        yield


@dataclass(frozen=True, slots=True)
class CreatedModule:
    """A module that was created while the model ran: its type, and the number of elements of one of its parameters."""

    module: weakref.ref[nn.Module]
    type: str
    elements: int


@contextmanager
def noting_created_modules(model: nn.Module, tell: Callable[[CreatedModule], None]) -> Iterator[None]:
    """Call `tell` in this block for every parameter that this thread registers on a module outside the model.

    Parameters of the model are left out: copying or compiling a module registers them again.
    """
    parts = {id(module) for module in model.modules()}
    parameters = {id(parameter) for parameter in model.parameters()}
    thread = threading.get_ident()

    def registered(owner: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is None or id(owner) in parts or id(parameter) in parameters or threading.get_ident() != thread:
            return
        if not torch.compiler.is_compiling() and not made_by_tracing(owner):
            elements = 0 if is_lazy(parameter) else parameter.numel()
            tell(CreatedModule(weakref.ref(owner), type(owner).__name__, elements))

    with _REGISTER[HookKind.PARAMETER_REGISTRATION](registered):
        yield


MOST_MODULES = 2**18
"""More modules than any model has: the largest mixtures of experts have some 120,000."""


def refusing_countless_modules() -> AbstractContextManager[object]:
    """Raise UsageError in this block where modules register more than MOST_MODULES others.

    A number of layers that is a slip, or hostile, would take all memory.
    """
    numbers = count(1)

    def registered(owner: nn.Module, name: str, module: nn.Module | None) -> None:
        if next(numbers) > MOST_MODULES:
            where = f"{type(owner).__name__}.{name}"
            raise UsageError(f"more than {MOST_MODULES:,} modules (at {where}): is a number of layers too large?")

    return _REGISTER[HookKind.MODULE_REGISTRATION](registered)


def parameters_on_meta() -> AbstractContextManager[object]:
    """Replace every parameter that a module registers in this block by one on the meta device.

    For models that read values in their constructors, which fails where everything is on the meta device.
    """

    def to_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        return None if parameter is None else nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)

    return _REGISTER[HookKind.PARAMETER_REGISTRATION](to_meta)


_GLOBAL: dict[HookKind, Callable[..., RemovableHandle]] = {
    HookKind.OPTIMIZER_STEP_PRE: register_optimizer_step_pre_hook,
    HookKind.OPTIMIZER_STEP_POST: register_optimizer_step_post_hook,
}


class OptimizerHooks(HookGroup):
    """Hooks before and after `step`, `state_dict` and `load_state_dict` of the optimizers passed to `attach`."""

    kinds = OPTIMIZER

    def __init__(self, core: SessionCore) -> None:
        super().__init__(core)
        self._wanted: dict[HookKind, None] = {}

    def start(self, kind: HookKind) -> None:
        self._wanted[kind] = None

    def attach(self, optimizer: Optimizer) -> None:
        """Hook an optimizer; in a global session, its steps through PyTorch's global functions."""
        for kind in self._wanted:
            local = getattr(optimizer, f"register_{kind.removeprefix('optimizer_')}_hook")
            register = _GLOBAL.get(kind, local) if self.core.globally else local
            self.core.stack.enter_context(register(partial(self._fired, kind)))

    def _fired(self, kind: HookKind, optimizer: Optimizer, *details: object) -> None:
        self.core.emit(HookEvent(kind, "", name=type(optimizer).__name__))


class StateDictHooks(HookGroup):
    """Hooks before and after each module's part in `state_dict` and `load_state_dict`."""

    kinds = STATE_DICT

    def start(self, kind: HookKind) -> None:
        for fqn, module in self.core.selected():
            register = getattr(module, f"register_{kind}_hook")
            self.core.stack.enter_context(register(PicklableHook(partial(self._fired, kind, fqn, module))))

    def _fired(self, kind: HookKind, fqn: str, module: nn.Module, *details: object) -> None:
        self.core.emit(HookEvent(kind, fqn, module))
