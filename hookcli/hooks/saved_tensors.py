"""What autograd keeps for backward: `torch.autograd.graph.saved_tensors_hooks`.

Only the innermost pair of such hooks is called, so a region that has its own (activation checkpointing, offloading) is
not seen. PyTorch does not check whether a tensor that went through such hooks was changed in place since: it is done
here. `torch.func` refuses to differentiate under such hooks, which are off while it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import graph
from torch.autograd.graph import saved_tensors_hooks

from hookcli.hooks.calls import Call
from hookcli.hooks.events import HookEvent
from hookcli.hooks.hook_group import HookGroup, Needs
from hookcli.hooks.kinds import HookKind
from hookcli.tensors import tree

Disable = Callable[[str], AbstractContextManager[None]]


@dataclass(slots=True)
class _Packed:
    tensor: Tensor
    version: int
    call: Call | None


class SavedTensorHooks(HookGroup):
    """`saved_tensor_pack` and `saved_tensor_unpack`, told with the innermost module that was running."""

    kinds = (HookKind.SAVED_TENSOR_PACK, HookKind.SAVED_TENSOR_UNPACK)
    needs = Needs.EVERY_CALL
    paused = False
    """Whether the hooks were off for a while."""

    def start(self, kind: HookKind) -> None:
        if self.core.wants(*self.kinds):  # one pair of hooks is for both kinds
            return
        pack, unpack = self._pack, self._unpack
        self.core.calls.own_pack = id(pack)
        disable = graph.disable_saved_tensors_hooks
        self.core.stack.callback(setattr, graph, "disable_saved_tensors_hooks", disable)
        setattr(graph, disable.__name__, self._stepping_aside(pack, unpack, disable))
        self.core.enter_context(saved_tensors_hooks(pack, unpack))

    def _stepping_aside(
        self, pack: Callable[[Tensor], _Packed], unpack: Callable[[_Packed], Tensor], original: Disable
    ) -> Disable:
        """PyTorch's function, which raises where there are hooks, without ours meanwhile."""
        autograd = torch._C._autograd

        @contextmanager
        def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
            hooks = autograd._top_saved_tensors_default_hooks(True)
            ours = hooks is not None and hooks[0] is pack
            if ours:
                self.paused = True
                autograd._pop_saved_tensors_default_hooks()
            try:
                with original(error_message):
                    yield
            finally:
                if ours:
                    autograd._push_saved_tensors_default_hooks(pack, unpack)

        return disable_saved_tensors_hooks

    def _pack(self, tensor: Tensor) -> _Packed:
        call = self.core.calls.innermost()
        self._emit(HookKind.SAVED_TENSOR_PACK, call, tensor)
        # Detached, because a node that keeps its own output through a hook would keep itself alive.
        kept = tensor.detach()
        return _Packed(kept, kept._version, call)

    def _unpack(self, packed: _Packed) -> Tensor:
        if packed.tensor._version != packed.version:  # what PyTorch checks where there are no such hooks
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{tree.shape_text(packed.tensor)}] is at version {packed.tensor._version}; "
                f"expected version {packed.version} instead"
            )
        self._emit(HookKind.SAVED_TENSOR_UNPACK, packed.call, packed.tensor)
        return packed.tensor

    def _emit(self, kind: HookKind, call: Call | None, tensor: Tensor) -> None:
        """All are told, also of modules that are not watched: what one keeps another need not keep."""
        event = HookEvent(kind, "(loss)", tensor=tensor, watched=self.core.select is None)
        if call is not None:
            hooked = call.hooked
            event = HookEvent(kind, hooked.fqn, hooked.module, call.number, tensor=tensor, watched=hooked.watched)
        self.core.emit(event)
