"""Hooks on the tensors that autograd saves for backward: `torch.autograd.graph.saved_tensors_hooks`.

PyTorch calls only the innermost pair of such hooks, so a region with its own pair (activation checkpointing,
offloading) is not seen. PyTorch does not check whether a tensor that passed through such hooks was changed in place
since, so this file does. `torch.func` refuses to differentiate under such hooks; they are off meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from torch import Tensor
from torch.autograd import graph
from torch.autograd.graph import saved_tensors_hooks

from hookcli.hooks.events import HookEvent
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.module_calls import Call
from hookcli.hooks.session_core import HookGroup, Needs
from hookcli.hooks.torch_private.autograd import (
    FUNC_FAILS,
    pop_saved_tensor_hooks,
    push_saved_tensor_hooks,
    saved_tensor_hooks,
)
from hookcli.hooks.torch_private.exchange import replaced
from hookcli.hooks.torch_private.meta_operators import attention_as_on_cpu
from hookcli.tensors import tree
from hookcli.tensors.torch_private import version

Disable = Callable[[str], AbstractContextManager[None]]
UNFUSED = "attention without a fused kernel on the CPU, as with dropout, keeps its weights; a GPU may keep less"


@dataclass(slots=True)
class _Packed:
    """A saved tensor (None if it was let go), its version when saved, and the module call that was running."""

    tensor: Tensor | None
    version: int
    call: Call | None


@contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Hide the hooks on saved tensors that there are: what hookcli runs itself is not the program's to count or move.

    Activation checkpointing, for one, counts what is saved under its hooks, and refuses a recomputation with less.
    """
    with saved_tensors_hooks(Tensor.detach, lambda kept: kept) if saved_tensor_hooks() else nullcontext():
        yield


class SavedTensorHooks(HookGroup):
    """`saved_tensor_pack` and `saved_tensor_unpack`, with the innermost module that was running."""

    kinds = (HookKind.SAVED_TENSOR_PACK, HookKind.SAVED_TENSOR_UNPACK)
    needs = Needs.EVERY_CALL
    paused = False
    """True if the hooks were off for a while, for `torch.func`."""
    _unfused = False

    def start(self, kind: HookKind) -> None:
        """Register the pair of hooks that serves both kinds."""
        if self.core.wants(*self.kinds):  # one pair of hooks serves both kinds
            return
        pack, unpack = self._pack, self._unpack
        self.core.calls.own_pack = id(pack)
        aside = partial(self._stepping_aside, pack, unpack)
        self.core.stack.enter_context(replaced(graph, "disable_saved_tensors_hooks", aside, FUNC_FAILS))
        self.core.stack.enter_context(saved_tensors_hooks(pack, unpack))
        if not self.core.callers_run and any(p.is_meta for p in self.core.model.parameters()):
            self.core.stack.enter_context(attention_as_on_cpu(partial(setattr, self, "_unfused", True)))

    def notes(self) -> list[str]:
        """Return a note if what is kept on the meta device is the CPU's figure, and other devices may keep less."""
        return [UNFUSED] if self._unfused else []

    def _stepping_aside(
        self, pack: Callable[[Tensor], _Packed], unpack: Callable[[_Packed], Tensor], original: Disable
    ) -> Disable:
        """Wrap PyTorch's function, which raises under such hooks: the session's own are off meanwhile."""

        @contextmanager
        def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
            hooks = saved_tensor_hooks()
            ours = hooks is not None and hooks[0] is pack
            if ours:
                self.paused = True
                pop_saved_tensor_hooks()
            try:
                with original(error_message):
                    yield
            finally:
                if ours:
                    push_saved_tensor_hooks(pack, unpack)

        return disable_saved_tensors_hooks

    def _pack(self, tensor: Tensor) -> _Packed:
        call = self.core.calls.innermost()
        self._emit(HookKind.SAVED_TENSOR_PACK, call, tensor)
        if self.core.discard_saved and not tensor.is_meta:
            return _Packed(None, 0, call)
        # Detached: a node that keeps its own output through a hook would keep itself alive.
        kept = tensor.detach()
        return _Packed(kept, version(kept), call)

    def _unpack(self, packed: _Packed) -> Tensor:
        if packed.tensor is None:
            raise RuntimeError("saved tensors were discarded: the model runs backward in its forward")
        if version(packed.tensor) != packed.version:  # PyTorch checks this where it calls no such hooks
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{tree.shape_text(packed.tensor)}] is at version {version(packed.tensor)}; "
                f"expected version {packed.version} instead"
            )
        self._emit(HookKind.SAVED_TENSOR_UNPACK, packed.call, packed.tensor)
        return packed.tensor

    def _emit(self, kind: HookKind, call: Call | None, tensor: Tensor) -> None:
        """Emit every tensor, also of unwatched modules: a tensor that several save counts once."""
        event = HookEvent(kind, "(loss)", tensor=tensor, watched=self.core.select is None)
        if call is not None:
            hooked = call.hooked
            event = HookEvent(kind, hooked.fqn, hooked.module, call.number, tensor=tensor, watched=hooked.watched)
        self.core.emit(event)
