"""PyTorch's global hooks, to observe a program while it runs.

A global pre-hook finds the outermost module of each call, and a hook on that module sees the call's end; global hooks
on optimizers see each step. PyTorch has no hooks for the start of a backward pass, the scaling of a loss, an optimizer
that gets parameters, a module that is compiled in place and one that gets a state: these functions are wrapped
meanwhile.

Code that `torch.compile` traces bypasses all of this. It is off in a forked process, which only marks that it trains.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from mmap import mmap
from multiprocessing.process import BaseProcess
from typing import Any, Self
from weakref import ref

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hookcli.hooks.importlib_bootstrap import between, then
from hookcli.hooks.program.listener import Listener
from hookcli.hooks.program.outermost import KwargsWithToken, OutermostCalls, Token, raise_dropped, when_gone
from hookcli.hooks.torch_private.autograd import in_backward
from hookcli.hooks.torch_private.exchange import NO_WAITING, DataLoaderIterator, Wrapper, replaced
from hookcli.hooks.torch_private.frames import in_extended_step
from hookcli.hooks.torch_private.looked_programs import wrap_in_place
from hookcli.hooks.torch_private.modules import other_global_hooks
from hookcli.tensors.tree import Args, Kwargs


class GlobalHooks:
    """Global hooks for the time of a `with` block, in all threads of this process, but not in its children."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.children = ChildProcesses()
        self._calls = OutermostCalls(listener)
        self._ends: dict[int, ref[Token]] = {}  # by optimizer, while it steps
        self._stack = ExitStack()
        self._scaler_classes: set[type] = set()  # whose method scales losses

    def __enter__(self) -> Self:
        try:
            self._register()
            for kind in (torch.amp.GradScaler, *subclasses(torch.amp.GradScaler)):
                self._scaler_class_used(kind)
        except BaseException:
            self.__exit__()
            raise
        _on_now.add(self)
        return self

    def _register(self) -> None:
        on = self._stack.enter_context
        handle = on(torch_module.register_module_forward_pre_hook(self._calls.entering()))
        self._calls.registered(handle)
        without_ours: Wrapper = lambda _: partial(other_global_hooks, handle.id)  # noqa: E731
        on(register_optimizer_step_pre_hook(self._step_begins))
        on(register_optimizer_step_post_hook(self._step_over))
        on(replaced(torch_module, "_has_any_global_hook", without_ours, "torch.compile warns of global hooks"))
        for owner, name, wrapper, lost in (*self.wrapped_calls(), *self.wrapped_scaler()):
            on(replaced(owner, name, wrapper, lost))

    def wrapped_calls(self) -> Sequence[tuple[object, str, Wrapper, str]]:
        """The functions that are wrapped, as `replaced` takes them."""

        def loaded(keys: object, own: nn.Module, state_dict: Mapping[str, object], *_: object, **how: object) -> None:
            self.listener.state_loaded(own, state_dict, keys)

        return (
            (
                torch.autograd,
                "backward",
                between(self._backward_begins, lambda *args: self.listener.backward_over()),
                "backward passes are not seen",
            ),
            (
                Optimizer,
                "add_param_group",
                then(lambda _, own, *args, **kwargs: self.listener.parameters_added(own)),
                "optimizers are known from their first step",
            ),
            (
                nn.Module,
                "compile",
                then(lambda _, own, *args, **kwargs: self.compiled_in_place(own)),
                "modules compiled in place are not named",
            ),
            (nn.Module, "load_state_dict", then(loaded), "states that do not fit are not known"),
            (
                BaseProcess,
                "start",
                between(self.children.starts, self.children.has_started),
                "processes that begin anew are not counted",
            ),
            (DataLoaderIterator, "__next__", between(self._data_wait_begins, self.listener.data_wait_over), NO_WAITING),
        )

    def wrapped_scaler(self) -> Sequence[tuple[object, str, Wrapper, str]]:
        """The methods of GradScaler that are wrapped, as `replaced` takes them."""
        scaler = torch.amp.GradScaler
        stepped = self._of_scaler(lambda _, scaler, optimizer, *args, **kwargs: self.listener.scaler_stepped(optimizer))
        return (
            (scaler, "__init__", then(self.scaler_made), _AS_SCALED),
            (scaler, "step", stepped, "steps that a GradScaler skips are not known"),
        )

    def __exit__(self, *error: object) -> None:
        _on_now.discard(self)
        self._calls.close()
        self._ends.clear()
        self._stack.close()
        self._scaler_classes.clear()

    def compiled_in_place(self, module: nn.Module) -> None:
        """Tell the listener of a module that `module.compile()` has compiled, and report its calls if asked to."""
        if self.listener.module_compiled(module):
            self._stack.callback(wrap_in_place(module, self._calls.in_place))

    # Steps that pass without being followed: what is left is a look at the first forward, and the optimizer's hooks.

    def let_pass(self) -> bool:
        """Let steps pass, if nothing is under way, until `follow`. Returns whether they do."""
        return self._calls.let_pass()

    def follow(self) -> None:
        self._calls.follow()

    # Optimizers.

    def _step_begins(self, optimizer: Optimizer, args: Args, kwargs: Kwargs) -> tuple[Args, KwargsWithToken] | None:
        if torch.compiler.is_compiling() or in_extended_step(optimizer):
            return None
        if self._calls.passing:
            self.listener.step_of_other(optimizer)
            if self._calls.passing:
                return None
        self._calls.drop_interrupted()
        self._calls.clean_up()
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        raise_dropped()
        ended = self.listener.step_begins(optimizer, closure is not None)
        if ended is None:
            return None
        token = Token()
        self._ends[id(optimizer)] = when_gone(token, ended)
        return args, KwargsWithToken(kwargs, token)

    def _step_over(self, optimizer: Optimizer, args: Args, kwargs: Kwargs) -> None:
        if not (torch.compiler.is_compiling() or in_extended_step(optimizer)):
            if self._calls.passing:
                self._calls.next_step()
                self.listener.step_passed(optimizer)
                return
            self.listener.step_over(optimizer)
            self._ends.pop(id(optimizer), None)

    # Wrapped functions, where PyTorch has no hooks.

    def _backward_begins(self, *args: object, **kwargs: object) -> tuple[Args, Kwargs] | None:
        if self._calls.passing or torch.compiler.is_compiling() or in_backward() or self._calls.busy:
            return None  # in_backward: the older checkpoint's pass
        self._calls.drop_interrupted()
        raise_dropped()
        args = tuple(map(_lasting, args))
        kwargs = {name: _lasting(value) for name, value in kwargs.items()}
        arguments = dict(zip(_BACKWARD, args, strict=False)) | kwargs
        self.listener.backward_begins(*map(arguments.get, ("tensors", "grad_tensors", "inputs")))
        return args, kwargs

    def _data_wait_begins(self, batches: object) -> tuple[Args, Kwargs]:
        self.listener.data_wait_begins()
        return (batches,), {}

    def scaler_made(self, _: object, scaler: torch.amp.GradScaler, *args: object, **kwargs: object) -> None:
        """Take in the class of a new scaler, which may have been imported just now."""
        self._scaler_class_used(type(scaler))

    def _scaler_class_used(self, kind: type) -> None:
        """Hear of the losses that scalers of this class scale, perhaps by their own method, as FSDP's do."""
        for owner in kind.__mro__:
            if "scale" in vars(owner) and owner not in self._scaler_classes:
                self._scaler_classes.add(owner)
                scaled = self._of_scaler(lambda made, scaler, outputs: self.listener.loss_scaled(scaler, outputs, made))
                self._stack.enter_context(replaced(owner, "scale", scaled, _AS_SCALED))

    def _of_scaler(self, report: Callable[..., object]) -> Wrapper:
        """Wrap a method of scalers: once one that is enabled has returned in a step that is followed, call `report`."""

        def returned(result: object, scaler: torch.amp.GradScaler, *args: object, **kwargs: object) -> None:
            if scaler.is_enabled() and not self._calls.passing:
                report(result, scaler, *args, **kwargs)

        return then(returned)


def subclasses(kind: type) -> Iterator[type]:
    """The subclasses of a class, and theirs."""
    one: type
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)


_AS_SCALED = "losses and gradients are shown as GradScaler scaled them"


def _lasting(argument: Any) -> object:
    """The argument; an iterator, which can be read only once, as a tuple."""
    return tuple(argument) if hasattr(type(argument), "__next__") else argument


_BACKWARD = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
"""The parameters of `torch.autograd.backward`, in their order."""


_on_now: set[GlobalHooks] = set()


def _off_in_child() -> None:
    for hooks in list(_on_now):
        hooks.__exit__()
        hooks.listener.forked()
        hooks.children.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_off_in_child)


_MARKS = 1 << 16
# Processes that serve their parent: they load its data, or keep its objects.
_SERVANTS = ("torch.utils.data.", "multiprocessing.managers", "multiprocessing.resource_sharer")


class ChildProcesses:
    """Counts forked children that have trained, and children that were `started` as new interpreters.

    A forked child inherits shared memory, where it leaves a mark when an optimizer steps in it. Of a child that starts
    a new interpreter ("spawn", "forkserver") only the start is noticed.
    `serves_parent` is True in a forked child that loads its parent's data, or keeps its objects.
    """

    def __init__(self) -> None:
        self.started = 0
        self.serves_parent = False
        self._starting = threading.local()  # `process`: the one that this thread is starting
        self._marks = mmap(-1, _MARKS)  # a byte for each child, shared with all of them

    @property
    def trained(self) -> int:
        """Number of forked children in which an optimizer has stepped."""
        return self._marks[:].count(1)

    def forked(self) -> None:
        """Note that this process is a forked child: its optimizers leave marks."""
        process = getattr(self._starting, "process", None)
        self.serves_parent = process is not None and _serves(process)
        register_optimizer_step_pre_hook(self._mark)

    def _mark(self, *step: object) -> None:
        self._marks[os.getpid() % _MARKS] = 1

    def starts(self, process: BaseProcess) -> tuple[Args, Kwargs]:
        """Note that this thread starts a process."""
        self._starting.process = process
        return (process,), {}

    def has_started(self, process: BaseProcess) -> None:
        """Count a process that runs a new interpreter, unless it failed to start."""
        self._starting.process = None
        method = getattr(process, "_start_method", None) or multiprocessing.get_start_method(allow_none=True)
        self.started += method != "fork" and process.pid is not None and not _serves(process)


def _serves(process: BaseProcess) -> bool:
    return str(getattr(getattr(process, "_target", None), "__module__", "")).startswith(_SERVANTS)
