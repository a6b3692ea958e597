"""Forward hooks of modules, and which call is under way.

`nn.TransformerEncoderLayer` leaves its fused path as soon as it or a child carries a *local* forward hook, which
changes bits. It and its children are watched by global hooks instead. A module that runs again inside backward
(activation checkpointing) is one call, not two.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from hookcli.errors import UsageError
from hookcli.hooks.calls import Call, Site, in_backward, in_func
from hookcli.hooks.edits.base import Applied, by_what
from hookcli.hooks.events import HookEvent
from hookcli.hooks.hook_group import Family
from hookcli.hooks.keywords import keywords
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.output_grads import TensorGradHooks
from hookcli.hooks.picklable import Passing
from hookcli.tensors import tree

if TYPE_CHECKING:
    from hookcli.hooks.session import HookSession

_GRADIENTS = (HookKind.TENSOR_GRAD_INPUT, HookKind.TENSOR_GRAD_OUTPUT)


class ModuleHooks(Family):
    """`forward_pre` and `forward`, and with them the gradients of what a module received and returned."""

    kinds = (HookKind.FORWARD_PRE, HookKind.FORWARD, *_GRADIENTS)

    def __init__(self, session: HookSession) -> None:
        super().__init__(session)
        self.sites: dict[int, Site] = {}
        self._started = self._everything = False
        self.running: list[Call] = []
        self.ours: int | None = None
        self._began = 0
        self._through: dict[int, Site] = {}
        self._hooked = ExitStack()
        self._attached = False
        self.gradients = TensorGradHooks(session)

    def want(self, kind: HookKind) -> None:
        self.start()
        if kind is HookKind.TENSOR_GRAD_INPUT:
            self.gradients.uses.start()

    def start(self, *, everything: bool = False) -> None:
        """Hook the watched modules and those that edits name; or all, where it matters which one is running."""
        if self._started and (self._everything or not everything):
            return
        if not self._started:
            self.session.stack.callback(self.detach)
        self._started, self._everything = True, self._everything or everything
        session = self.session
        new: dict[int, Site] = {}
        fused = _fused(session.model) if session.fastpath and not session.globally else set()
        for fqn, module in session.model.named_modules():
            edits = by_what(session.edits, fqn)
            watched = session.select is None or session.select(fqn, module)
            if id(module) in self.sites or fqn in session.unhooked or not (watched or edits or everything):
                continue
            new[id(module)] = Site(fqn, module, watched, edits=edits)
        self.sites |= new
        through = {k: s for k, s in new.items() if session.globally or k in fused}
        self._through |= through
        self._attach([site for key, site in new.items() if key not in through], through)

    def detach(self) -> None:
        """Take the hooks off the modules; what they have begun to see goes on, such as gradients on their way."""
        for call in self.running[::-1]:
            self._leave(call)
        self._hooked.close()
        self._attached = False

    def attach(self) -> None:
        """Put them on again, after `detach`."""
        if self._attached:
            return
        self._attach([site for key, site in self.sites.items() if key not in self._through], self._through)

    def enter(self, args: tuple[Any, ...]) -> None:
        """The model itself is being called: told where hooks were put on by a hook of this very call.

        PyTorch had gathered the hooks to call by then.
        """
        if site := self.sites.get(id(self.session.model)):
            self._before(site, site.module, args, keywords(site.module))

    def _attach(self, sites: list[Site], through: dict[int, Site]) -> None:
        self._attached = True
        for site in sites:
            self._hook(site)
        if through:
            self._hook_globally(through)

    def _hook(self, site: Site) -> None:
        enter = Passing(self.session.safe(self._here(partial(self._before, site), arguments=3)))
        leave = Passing(self.session.safe(self._here(partial(self._after, site), arguments=4)))
        self._hooked.enter_context(site.module.register_forward_pre_hook(enter, with_kwargs=True))
        self._hooked.enter_context(site.module.register_forward_hook(leave, with_kwargs=True, always_call=True))

    def _hook_globally(self, sites: dict[int, Site]) -> None:
        """Global hooks see every module of the process."""
        strangers = self.session.globally and self.session.select is None

        def site_of(module: nn.Module) -> Site | None:
            """Ours; and of a session that is global by request those, too, that are not in the model."""
            if strangers and id(module) not in sites:
                sites[id(module)] = Site(f"(outside) {type(module).__name__}", module)
            return sites.get(id(module))

        def enter(module: nn.Module, args: tuple[Any, ...]) -> Any:
            site = site_of(module)
            given = keywords(module) if site else {}
            changed = self._before(site, module, args, given) if site else None
            if changed:
                given.update(changed[1])
            return changed[0] if changed else None

        def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            site = sites.get(id(module))
            return self._after(site, module, args, keywords(module), output) if site else None

        before = self.session.safe(self._here(enter, arguments=2))
        after = self.session.safe(self._here(leave, arguments=3))
        self._hooked.enter_context(register_module_forward_pre_hook(before))
        self._hooked.enter_context(register_module_forward_hook(after, always_call=True))

    # Firing.

    def _before(self, site: Site, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.session.nodes.claim((args, kwargs))
        call = self._begin(site)
        self.running.append(call)
        edits, applied = site.edits.get("input", ()), Applied()
        for edit in edits:
            with applied.noting(edit):
                args, kwargs = tree.replace_arguments(args, kwargs, edit.at(site.fqn, call.number), call.undo)
        if not call.again:
            self._emit(HookKind.FORWARD_PRE, call, args=args, kwargs=kwargs, edited=str(applied))
        changed = self.gradients.receive(call, args, kwargs) if torch.is_grad_enabled() else None
        return changed or ((args, kwargs) if edits else None)

    def _after(self, site: Site, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        call = self._end(site)
        if call is None:  # the session began while the module was running
            return None
        try:
            return self._returned(call, module, args, kwargs, output)
        finally:
            self.gradients.uses.leave(call)

    def _returned(self, call: Call, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        site = call.site
        if output is None and sys.exc_info()[1] is not call.error:  # it raised, and PyTorch calls the hook all the same
            site.raised[call.number] = type(sys.exc_info()[1]).__name__
            return None
        self.session.nodes.claim(output, call)
        edits, applied = site.edits.get("output", ()), Applied()
        self.running.append(call)  # what an edit does is the module's
        for edit in edits:
            with applied.noting(edit):
                output = tree.replace(output, edit.at(site.fqn, call.number))
        self.running.pop()
        if not call.again:
            self._emit(HookKind.FORWARD, call, args=args, kwargs=kwargs, output=output, edited=str(applied))
        if torch.is_grad_enabled():
            output = self.gradients.returned(call, args, kwargs, output)
        if self.session.follow and module is self.session.model and not in_func():
            self.session.tell_backward([x for _, x in tree.leaves(output) if x.requires_grad])
        return output

    def _here(self, hook: Callable[..., Any], *, arguments: int) -> Callable[..., Any]:
        """The hook, which leaves calls in threads alone that the session does not watch.

        PyTorch gathers the hooks of a call before it calls them. One that was taken off since comes without keyword
        arguments: it is of no call that is watched.
        """

        def here(*given: Any) -> Any:
            # Autograd recomputes in threads of its own.
            watched = self.session.thread in (None, threading.get_ident()) or in_backward()
            return hook(*given) if watched and len(given) == arguments else None

        return here

    def _emit(self, kind: HookKind, call: Call, **shown: Any) -> None:
        if call.site.watched:
            self.session.emit(HookEvent(kind, call.site.fqn, call.site.module, call.number, call.index, **shown))

    def _begin(self, site: Site) -> Call:
        number, again = site.begin(self.ours)
        if again:
            return Call(site, number, -1, again)
        self._began += 1
        return Call(site, number, self._began - 1, again)

    def _end(self, site: Site) -> Call | None:
        """The innermost call of this module in this thread, which is over. Others may have calls of their own."""
        thread = threading.get_ident()
        for depth in range(len(self.running) - 1, -1, -1):
            call = self.running[depth]
            if call.site is site and call.thread == thread:
                for lost in [other for other in self.running[depth + 1 :] if other.thread == thread]:
                    lost.site.raised.setdefault(lost.number, "")  # PyTorch tells of an Exception alone
                    self._leave(lost)
                self._drop(call)
                return call
        return None

    def _leave(self, call: Call) -> None:
        """A call is over that nobody told of: an interrupt may have ended it."""
        self._drop(call)
        self.gradients.uses.leave(call)

    def _drop(self, call: Call) -> None:
        """A call is over: put back what lists and mappings held."""
        if self.running[-1] is call:
            self.running.pop()
        else:
            self.running[:] = [other for other in self.running if other is not call]
        call.undo()


def unhooked_parts(model: nn.Module) -> dict[str, str]:
    """The modules that take no hooks, with the reason. Raises UsageError where the model itself is TorchScript."""
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError("the model is TorchScript, which takes no hooks: pass the nn.Module")
    return {fqn: _SCRIPTED for fqn, module in model.named_modules() if isinstance(module, torch.jit.ScriptModule)}


_SCRIPTED = "TorchScript takes no hooks: the nn.Module that it was made from does"


def compiled_parts(model: nn.Module) -> dict[str, str]:
    """The modules that no hook sees, with the reason: `torch.compile` runs them as one graph."""
    if "torch._dynamo" not in sys.modules:  # slow to import, and what is compiled has imported it
        return {}
    from torch._dynamo.eval_frame import OptimizedModule

    modules = list(model.named_modules())
    graphs = [f"{fqn}._orig_mod".lstrip(".") for fqn, m in modules if isinstance(m, OptimizedModule)]
    graphs += [fqn for fqn, m in modules if m._compiled_call_impl is not None]
    return {
        fqn: _COMPILED
        for fqn, _ in modules
        if any(fqn == graph or fqn.startswith(f"{graph}.") or not graph for graph in graphs)
    }


def uncompiled(model: nn.Module) -> AbstractContextManager[Any]:
    """While it lasts, what is compiled runs as it was written: hooks fire in it, and nothing is compiled with them."""
    return torch.compiler.set_stance("force_eager") if compiled_parts(model) else nullcontext()


_COMPILED = "compiled: torch.compile runs it as one graph that calls no hooks (TORCH_COMPILE_DISABLE=1 shows it)"


def _fused(model: nn.Module) -> set[int]:
    """The modules on PyTorch's fused path in eval mode, and their parts."""
    layers = [m for m in model.modules() if isinstance(m, nn.TransformerEncoderLayer) and not m.training]
    return {id(part) for layer in layers for part in layer.modules()}
