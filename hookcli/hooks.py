"""The only file that registers a PyTorch hook.

A `HookSession` attaches hooks to a model while its `with` block runs; probes get `HookEvent`s. After the block, also
after an exception, no hook is left and every switch is as it was.

Hooks must not change what they watch (design, rule 3), so:

- gradients of module outputs and inputs come from plain tensor hooks, put on by a pair of forward hooks. An output is
  hooked as it is, unless a hook on it would be lost or would see too much: where it is a view (an in-place operation on
  a view drops its hooks), is the module's input (Identity), or was hooked already as another module's output (a
  container that returns its child's tensor would see the gradient of every consumer inside it), `Alias` gives autograd
  another tensor over the same memory. An input is hooked through `view_as`, so that each consumer is told apart; a
  module with `inplace` gets the tensor itself;
- `nn.TransformerEncoderLayer` leaves its fused path as soon as it or a child carries a *local* forward hook, which
  changes bits. It and its children are watched by global hooks instead;
- a module that runs again inside backward (activation checkpointing) is one call, not two.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from hookcli import tree
from hookcli.errors import PluginError, UsageError
from hookcli.events import Alias, Callback, HookEvent, HookKind, Site, in_backward

__all__ = ["HookEvent", "HookKind", "HookSession", "Select", "parameters_on_meta", "selects_parameter"]

T = TypeVar("T")


Select = Callable[[str, nn.Module], bool]


class HookSession:
    """Hooks on a model for the time of a `with` block.

    `select` narrows which modules are watched. `fastpath=False` switches the fused attention path off meanwhile.
    Raises UsageError for TorchScript modules, which take no hooks.
    """

    def __init__(self, model: nn.Module, *, select: Select | None = None, fastpath: bool = True) -> None:
        self.model = model
        self.passes = 0
        self.parameters: dict[str, nn.Parameter] = {}
        self.hooked_parameters: set[str] = set()
        self._fastpath = fastpath
        self._select = select
        self._stack = ExitStack()
        self._callbacks: dict[HookKind, list[Callback]] = {kind: [] for kind in HookKind}
        self._sites: dict[int, Site] = {}
        self._began = 0
        self._arrived = 0
        self._tensor_handles: list[RemovableHandle] = []
        self._hooked_at: Any = WeakTensorKeyDictionary()  # output -> its version when it was hooked

    def __enter__(self) -> Self:
        self._stack.callback(self._remove_tensor_hooks)
        if not self._fastpath:
            self._stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
            torch.backends.mha.set_fastpath_enabled(False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def enter_context(self, context: AbstractContextManager[T]) -> T:
        """Enter a context, such as a dispatch mode, that ends with the session."""
        return self._stack.enter_context(context)

    # What a probe asks for. A callback gets one HookEvent and returns nothing.

    def forward_pre(self, callback: Callback) -> None:
        """Before each module's forward: `event.args`, `event.kwargs`."""
        self._subscribe_modules(HookKind.FORWARD_PRE, callback)

    def forward(self, callback: Callback) -> None:
        """After each module's forward: `event.output`, and `args` and `kwargs`, which may be overwritten by then."""
        self._subscribe_modules(HookKind.FORWARD, callback)

    def input_grad(self, callback: Callback) -> None:
        """The gradient of each tensor that a module received, by its use of it: `event.path`, `event.grad`."""
        self._subscribe_modules(HookKind.TENSOR_GRAD_INPUT, callback)

    def output_grad(self, callback: Callback) -> None:
        """The gradient of each tensor that a module returned: `event.path`, `event.grad`."""
        self._subscribe_modules(HookKind.TENSOR_GRAD_OUTPUT, callback)

    def post_accumulate_grad(self, callback: Callback) -> None:
        """After a parameter's `.grad` was added to; `event.grad` is `.grad`. Tied parameters fire once."""
        if not self._callbacks[HookKind.POST_ACCUMULATE_GRAD]:
            for fqn, parameter in self.model.named_parameters():
                if not selects_parameter(self._select, self.model, fqn):
                    continue
                self.parameters[fqn] = parameter
                if parameter.requires_grad and not is_lazy(parameter):
                    # The closure must not hold the parameter: it would outlive even the garbage collector.
                    hook = partial(self._accumulated, fqn)
                    self._stack.enter_context(parameter.register_post_accumulate_grad_hook(hook))
                    self.hooked_parameters.add(fqn)
        self._callbacks[HookKind.POST_ACCUMULATE_GRAD].append(callback)

    # What a probe may ask about the run.

    def never_called(self) -> dict[str, nn.Module]:
        """The watched modules whose forward no hook has seen."""
        return {site.fqn: site.module for site in self._sites.values() if not site.calls}

    # Registration.

    def _subscribe_modules(self, kind: HookKind, callback: Callback) -> None:
        if not self._sites:
            self._hook_modules()
        self._callbacks[kind].append(callback)

    def _hook_modules(self) -> None:
        layers = [m for m in self.model.modules() if isinstance(m, nn.TransformerEncoderLayer) and not m.training]
        fused = {id(part) for layer in layers for part in layer.modules()} if self._fastpath else set()
        for fqn, module in self.model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                raise UsageError(f"{fqn or 'the model'} is TorchScript, which takes no hooks: pass the nn.Module")
            if self._select and not self._select(fqn, module):
                continue
            site = self._sites[id(module)] = Site(fqn, module)
            if id(module) not in fused:
                enter, leave = partial(self._before, site), partial(self._after, site)
                self._stack.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
                self._stack.enter_context(module.register_forward_hook(leave, with_kwargs=True))
        if fused & self._sites.keys():
            self._hook_globally({key: site for key, site in self._sites.items() if key in fused})

    def _hook_globally(self, sites: dict[int, Site]) -> None:
        """Global hooks see every module of the process: look only at ours. They pass no keyword arguments."""

        def enter(module: nn.Module, args: tuple[Any, ...]) -> Any:
            changed = self._before(sites[id(module)], module, args, {}) if id(module) in sites else None
            return changed[0] if changed else None

        def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            return self._after(sites[id(module)], module, args, {}, output) if id(module) in sites else None

        self._stack.enter_context(register_module_forward_pre_hook(enter))
        self._stack.enter_context(register_module_forward_hook(leave))

    # Firing.

    def _emit(self, event: HookEvent) -> None:
        for callback in self._callbacks[event.kind]:
            try:
                callback(event)
            except Exception as error:
                owner = type(getattr(callback, "__self__", callback)).__name__
                raise PluginError(
                    f"{owner} failed at {event.fqn or 'the model'}: {type(error).__name__}: {error}"
                ) from error

    def _before(self, site: Site, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        again = in_backward() and site.calls > site.recomputed
        if again:
            call, index = site.recomputed, -1
            site.recomputed += 1
        else:
            call, index = site.calls, self._began
            site.calls += 1
            self._began += 1
            self._emit(HookEvent(HookKind.FORWARD_PRE, site.fqn, module, call, index, args, kwargs))
        undo = tree.Undo()
        site.open.append((call, index, again, undo))
        if not (self._callbacks[HookKind.TENSOR_GRAD_INPUT] and torch.is_grad_enabled()):
            return None
        return tree.replace_arguments(args, kwargs, partial(self._watch_input, site, call), undo)

    def _after(self, site: Site, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        if not site.open:  # the session began while the module was running
            return None
        call, index, again, undo = site.open.pop()
        undo()
        if not again:
            self._emit(HookEvent(HookKind.FORWARD, site.fqn, module, call, index, args, kwargs, output))
        if not (self._watches_gradients() and torch.is_grad_enabled()):
            return None
        passed = {id(x) for _, x in tree.arguments(args, kwargs)} if not getattr(module, "inplace", False) else set()
        return tree.replace(output, partial(self._watch_output, site, call, passed))

    def _watches_gradients(self) -> bool:
        return bool(self._callbacks[HookKind.TENSOR_GRAD_OUTPUT] or self._callbacks[HookKind.TENSOR_GRAD_INPUT])

    def _watch_input(self, site: Site, call: int, path: str, x: Tensor) -> Tensor:
        if not x.requires_grad:
            return x
        if not getattr(site.module, "inplace", False):
            x = x.view_as(x) if x.layout is torch.strided else x  # sparse tensors have no views
        elif x._is_view():
            x = x.clone()
        return self._hook_tensor(HookKind.TENSOR_GRAD_INPUT, site, call, path, x)

    def _watch_output(self, site: Site, call: int, passed: set[int], path: str, y: Tensor) -> Tensor:
        if not y.requires_grad:
            return y
        watched = self._callbacks[HookKind.TENSOR_GRAD_OUTPUT]
        shared = watched and (id(y) in passed or y.is_leaf or self._hooked_at.get(y) == y._version)
        if shared or y._is_view():
            y = Alias.apply(y)
        if not watched:
            return y
        self._hooked_at[y] = y._version
        return self._hook_tensor(HookKind.TENSOR_GRAD_OUTPUT, site, call, path, y)

    def _hook_tensor(self, kind: HookKind, site: Site, call: int, path: str, x: Tensor) -> Tensor:
        self._tensor_handles.append(x.register_hook(partial(self._arrive, kind, site, call, path)))
        if len(self._tensor_handles) % 4096 == 0:  # a long session must not keep the handles of graphs that are gone
            self._tensor_handles = [h for h in self._tensor_handles if h.hooks_dict_ref() is not None]
        return x

    def _arrive(self, kind: HookKind, site: Site, call: int, path: str, grad: Tensor | None) -> None:
        if grad is None:  # an operator that has no gradient for this input, such as roi_align for its boxes
            return
        event = HookEvent(kind, site.fqn, site.module, call, self._arrived, path=path, grad=grad)
        self._arrived += 1
        self._emit(event)

    def _accumulated(self, fqn: str, parameter: Tensor) -> None:
        event = HookEvent(HookKind.POST_ACCUMULATE_GRAD, fqn, None, 0, self._arrived, grad=parameter.grad)
        self._arrived += 1
        self._emit(event)

    def _remove_tensor_hooks(self) -> None:
        for handle in self._tensor_handles:
            handle.remove()


def selects_parameter(select: Select | None, model: nn.Module, fqn: str) -> bool:
    """Whether a parameter is watched: by its own name or by that of its module."""
    owner_fqn = fqn.rpartition(".")[0]
    owner = model.get_submodule(owner_fqn)
    return select is None or select(fqn, owner) or select(owner_fqn, owner)


def parameters_on_meta() -> AbstractContextManager[Any]:
    """While it lasts, every parameter that a module registers is replaced by one on the meta device.

    For models that read values while they are built, which fails where everything is on meta.
    """

    def to_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        return None if parameter is None else nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)

    # PyTorch's own hint says that the hook returns nothing, and would not let it replace the parameter.
    register: Callable[..., RemovableHandle] = register_module_parameter_registration_hook
    return register(to_meta)
