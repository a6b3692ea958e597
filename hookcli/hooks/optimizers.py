"""Hooks on optimizers, and on state dicts of modules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from hookcli.hooks.events import HookEvent, PicklableHook
from hookcli.hooks.kinds import OPTIMIZER, STATE_DICT, HookKind
from hookcli.hooks.session_core import HookGroup, SessionCore

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
