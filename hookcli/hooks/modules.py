"""Forward hooks on modules, which also keep the session's stack of calls.

`nn.TransformerEncoderLayer` leaves its fused path as soon as it or a child carries a *local* forward hook, which
changes bits. Global hooks watch it and its children instead. A module that runs again inside backward (activation
checkpointing) counts as one call.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from hookcli.hooks.compiled.looks import Looks
from hookcli.hooks.edits.base import matching_edits
from hookcli.hooks.events import HookEvent, PicklableHook
from hookcli.hooks.gradients.tensor_grads import TensorGradHooks
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.module_calls import Call, HookedModule
from hookcli.hooks.node_hooks import NodeHooks
from hookcli.hooks.parts import compiled_parts
from hookcli.hooks.session_core import HookGroup, Needs, SessionCore
from hookcli.hooks.torch_private.autograd import in_backward
from hookcli.hooks.torch_private.frames import keywords
from hookcli.hooks.torch_private.overrides import in_func
from hookcli.tensors import tree
from hookcli.tensors.tree import Args, Kwargs

T = TypeVar("T")


class ModuleHooks(HookGroup):
    """`forward_pre` and `forward`, and the calls that other hook groups need to know.

    `thread`: the only thread whose calls count; None for all.
    """

    kinds = (HookKind.FORWARD_PRE, HookKind.FORWARD)
    needs = Needs.WATCHED_CALLS

    def __init__(self, core: SessionCore, nodes: NodeHooks, gradients: TensorGradHooks) -> None:
        super().__init__(core)
        self.hooked: dict[int, HookedModule] = {}
        self.thread: int | None = None
        self._nodes = nodes
        self._gradients = gradients
        self._calls = core.calls
        self._started = self._everything = False
        self._through: dict[int, HookedModule] = {}
        self._looks = Looks(core) if core.inside_compiled else None
        self._inside: set[str] | None = None
        self._handles = ExitStack()
        self._attached = False

    def ask(self, kind: HookKind) -> None:
        """Show this kind in compiled programs, too, if the session looks inside."""
        if self._looks:
            self._looks.ask(kind)

    def hook(self, *, everything: bool = False) -> None:
        """Hook the watched modules and those that edits name; with `everything`, all modules."""
        if self._started and (self._everything or not everything):
            return
        core = self.core
        if not self._started:
            if self._looks:
                core.stack.enter_context(self._looks.in_use())
                self._inside = {*compiled_parts(core.model)} if core.callers_run else None
            core.stack.callback(self.detach)
        self._started, self._everything = True, everything
        through, new = self._hooked_globally(), dict[int, HookedModule]()
        for fqn, module in core.model.named_modules():
            edits = matching_edits(core.edits, fqn)
            watched = core.select is None or core.select(fqn, module)
            if id(module) in self.hooked or fqn in core.unhooked or not (watched or edits or everything):
                continue
            new[id(module)] = hooked = HookedModule(fqn, module, watched, edits=edits)
            if id(module) in through:
                self._through[id(module)] = hooked
        self.hooked |= new
        self._attach(new)

    def _hooked_globally(self) -> set[int]:
        """The ids of modules that get global hooks: all, or those on PyTorch's fused path in eval mode, and parts."""
        if self.core.globally:
            return {*map(id, self.core.model.modules())}
        if not self.core.fastpath or self.core.inside_compiled:  # torch.compile traces local hooks
            return set()
        layers = [m for m in self.core.model.modules() if isinstance(m, nn.TransformerEncoderLayer) and not m.training]
        return {id(part) for layer in layers for part in layer.modules()}

    def detach(self) -> None:
        """Remove the hooks from the modules; hooks on tensors stay, for gradients that are still to come."""
        for call in self._calls.running[::-1]:
            self._calls.drop(call)
            self._gradients.leave(call)
        self._handles.close()
        self._attached = False

    def release(self) -> None:
        self.hooked.clear()
        self._through.clear()

    def attach(self) -> None:
        """Register the hooks again, after `detach`."""
        if self._attached:
            return
        self._attach(self.hooked)

    def enter(self, module: nn.Module, args: Args) -> None:
        """Begin a call of the model itself or a part, if a hook of that very call registered this session's hooks.

        PyTorch calls only the hooks that were there when the call began.
        """
        if hooked := self.hooked.get(id(module)):
            self._before(hooked, hooked.module, args, keywords(hooked.module))

    def _attach(self, modules: dict[int, HookedModule]) -> None:
        self._attached = True
        through = {key: hooked for key, hooked in modules.items() if key in self._through}
        for key, hooked in modules.items():
            if key in through:
                continue
            before = self.core.guarded(self._here(partial(self._before, hooked), arguments=3))
            after = self.core.guarded(self._here(partial(self._after, hooked), arguments=4))
            looks = self._looks
            enter, leave = looks.hooks(hooked, before, after) if looks else map(PicklableHook, (before, after))
            self._handles.enter_context(hooked.module.register_forward_pre_hook(enter, with_kwargs=True))
            # Else modules that are alike would not share a program.
            always = not looks or (self._inside is not None and hooked.fqn not in self._inside)
            handle = hooked.module.register_forward_hook(leave, with_kwargs=True, always_call=always)
            self._handles.enter_context(handle)
        if through:
            self._hook_globally(through)

    def _hook_globally(self, modules: dict[int, HookedModule]) -> None:
        """Register global hooks, which PyTorch calls for every module of the process."""
        outside_too = self.core.globally and self.core.select is None

        def enter(module: nn.Module, args: Args) -> Args | None:
            if outside_too and id(module) not in modules:
                modules[id(module)] = HookedModule(f"(outside) {type(module).__name__}", module)
            hooked = modules.get(id(module))
            if hooked is None:
                return None
            kwargs = keywords(module)
            changed = self._before(hooked, module, args, kwargs)
            if not changed:
                return None
            kwargs.update(changed[1])
            return changed[0]

        def leave(module: nn.Module, args: Args, output: object) -> object:
            hooked = modules.get(id(module))
            return self._after(hooked, module, args, keywords(module), output) if hooked else None

        before = self.core.guarded(self._here(enter, arguments=2))
        after = self.core.guarded(self._here(leave, arguments=3))
        self._handles.enter_context(register_module_forward_pre_hook(before))
        self._handles.enter_context(register_module_forward_hook(after, always_call=True))

    # Firing.

    def _here(self, hook: Callable[..., T], *, arguments: int) -> Callable[..., T | None]:
        """Wrap a hook, so that it ignores calls in threads that the session does not watch.

        PyTorch collects the hooks of a call before it calls them. It calls a hook that was removed since without
        keyword arguments; such a call is not watched.
        """

        def here(*received: object) -> T | None:
            # Autograd recomputes in its own threads.
            watched = self.thread in (None, threading.get_ident()) or in_backward()
            return hook(*received) if watched and len(received) == arguments else None

        return here

    def _before(
        self, hooked: HookedModule, module: nn.Module, args: Args, kwargs: Kwargs
    ) -> tuple[Args, Kwargs] | None:
        self._nodes.claim((args, kwargs))
        call = self._calls.begin(hooked)
        edits, edited = hooked.edits.get("input", ()), []
        for edit in edits:
            before = edit.applied
            args, kwargs = tree.replace_arguments(args, kwargs, partial(edit.apply, hooked.fqn, call.number), call.undo)
            edited += [edit.op] if edit.applied > before else []
        if not call.again:
            self._emit(HookKind.FORWARD_PRE, call, args=args, kwargs=kwargs, edited=", ".join(edited))
        changed = self._gradients.receive(call, args, kwargs) if torch.is_grad_enabled() else None
        return changed or ((args, kwargs) if edits else None)

    def _after(self, hooked: HookedModule, module: nn.Module, args: Args, kwargs: Kwargs, output: object) -> object:
        ended = self._calls.end(hooked)
        if not ended:  # the call began before the session did
            return None
        call, *lost = ended
        for other in lost:
            self._gradients.leave(other)
        try:
            return self._returned(call, module, args, kwargs, output)
        finally:
            self._gradients.leave(call)

    def _returned(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs, output: object) -> object:
        hooked = call.hooked
        if output is None and sys.exc_info()[1] is not call.error:  # it raised: PyTorch calls the hook nevertheless
            if not call.again:  # a checkpoint ends a recomputation once it has what it needs
                hooked.raised[call.number] = type(sys.exc_info()[1]).__name__
            return None
        self._nodes.claim(output, call)
        edited = []
        if edits := hooked.edits.get("output"):
            self._calls.running.append(call)  # the edit runs as a part of the module
            for edit in edits:
                before = edit.applied
                output = tree.replace(output, partial(edit.apply, hooked.fqn, call.number))
                edited += [edit.op] if edit.applied > before else []
            self._calls.running.pop()
        if not call.again:
            self._emit(HookKind.FORWARD, call, args=args, kwargs=kwargs, output=output, edited=", ".join(edited))
        if torch.is_grad_enabled():
            output = self._gradients.returned(call, args, kwargs, output)
        if self.core.follow and module is self.core.model and not in_func():
            self.core.backward_begins([x for _, x in tree.leaves(output) if x.requires_grad])
        return output

    def _emit(self, kind: HookKind, call: Call, **shown: Any) -> None:
        hooked = call.hooked
        if hooked.watched:
            self.core.emit(HookEvent(kind, hooked.fqn, hooked.module, call.number, call.index, **shown))
