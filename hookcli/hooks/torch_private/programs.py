"""Private names of torch.compile that have to do with programs in which modules are seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from inspect import getclosurevars
from threading import Lock
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import nn

from hookcli.hooks.torch_private.dynamo import (
    WRAPPED_CALL,
    compiled_call,
    compiles,
    is_compiled,
    optimized_module,
)
from hookcli.tensors.torch_private import note, private

_UNCOUNTED = "in torch 2.11, programs with looks may count for the limit of recompilations"
Backend = Callable[..., Any]
Function = Callable[..., Any]
Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Compiles a function."""
_LOST = "a part that was compiled in place is compiled again by inductor"
_UNKNOWN = "compiled parts run uncompiled where their modules are looked at"


def as_written(model: nn.Module) -> tuple[nn.Module, ExitStack]:
    """The model without the wrappers that torch.compile puts around modules, whose names its parts would have.

    What was wrapped still runs compiled, as it was. Closing the stack puts the wrappers back.
    """
    stack, wrapper = ExitStack(), optimized_module()
    wrapped: list[Any] = [m for m in model.modules() if isinstance(m, wrapper)] if wrapper is not None else []
    lost = "the names of compiled parts have _orig_mod in them"
    ways = {one: private(one, "dynamo_ctx", None, lost) for one in wrapped}
    wrappers: list[Any] = [one for one, way in ways.items() if way is not None]
    for holder in [*model.modules()] if wrappers else ():
        for name, part in [*holder.named_children()]:
            if part in wrappers and holder not in wrappers:
                setattr(holder, name, part._orig_mod)
                stack.callback(setattr, holder, name, part)
    for one in wrappers:
        _replace(stack, one._orig_mod, "forward", ways[one](one._orig_mod.forward))
    inner: Any = model._orig_mod if model in wrappers else model
    return inner, stack


def inside_wrapper(model: nn.Module) -> nn.Module:
    """The model that `torch.compile(model)` has wrapped; other models themselves."""
    wrapper = optimized_module()
    return model._orig_mod if wrapper is not None and isinstance(model, wrapper) else model  # type: ignore[return-value]


def _replace(stack: ExitStack, module: nn.Module, name: str, value: object) -> None:
    """Set an attribute of the module itself until the stack is closed."""
    before = vars(module)
    stack.callback(*((setattr, module, name, before[name]) if name in before else (delattr, module, name)))
    setattr(module, name, value)


@contextmanager
def compiled_in_place(model: nn.Module, settings: Mapping[str, Any]) -> Iterator[None]:
    """Compile the model's forward in this block, by these arguments of torch.compile, if there are any.

    Then all code that the process has compiled is dropped at the end. (In torch 2.11 `nn.Module.compile` compiles
    nothing of a model whose class is PyTorch's own.)
    """
    with ExitStack() as stack:
        if settings:
            stack.callback(torch.compiler.reset)
            _replace(stack, model, "forward", torch.compile(model.forward, **settings))
        yield


_CALL = "_compiled_call_impl"


def own_programs(model: nn.Module) -> ExitStack:
    """Have compiled parts run their own programs, compiled by the same backends, until the stack is closed.

    The programs that they have, and will have again, know of no hook.
    """
    stack = ExitStack()
    for module, name, function in _compiled_calls(model):
        if (backend := _backend_of(function)) is not None:
            _replace(stack, module, name, _run_under(own_program(backend), function))
    return stack


def own_program(backend: Backend) -> OwnProgram:
    """The backend that compiles as this one does, whose programs torch.compile keeps apart from that one's."""
    own = next((own for own in _own if own.backend == backend), None)
    if own is None:
        _own.append(own := OwnProgram(backend))
    return own


def backends_of(model: nn.Module) -> list[str]:
    """The backends that compile the model's parts, each with its mode; empty without any, or if PyTorch hides one."""
    backends = [_backend_of(function) for _, _, function in _compiled_calls(model)] if compiles() else []
    named = [None if backend is None else _named(backend) for backend in backends]
    return [] if None in named else [*dict.fromkeys(filter(None, named))]


def _named(backend: Any) -> str:
    name = getattr(backend, "compiler_name", None) or getattr(backend, "__name__", "<")
    if str(name).startswith("<"):  # the repr of an object without a name
        name = type(getattr(backend, "compiler_fn", backend)).__name__
    options = getattr(backend, "config", None)
    if not options:
        return str(name)
    modes = torch._inductor.list_mode_options()
    mode = next((mode for mode, meant in modes.items() if meant == options), None)
    return f"{name}, {f'mode {mode}' if mode else ', '.join(f'{key}={value}' for key, value in options.items())}"


def _compiled_calls(model: nn.Module) -> Iterator[tuple[nn.Module, str, Function]]:
    """Each compiled module: the name of the attribute that torch.compile has made, and the attribute."""
    for module in model.modules():
        name = _CALL if compiled_call(module) not in (None, ...) else "forward"
        function: Any = getattr(module, name)
        if is_compiled(function):
            yield module, name, function


def modules_inside(model: nn.Module) -> list[nn.Module]:
    """The modules within compiled ones, which run inside of their programs."""
    compiled = [module for module, *_ in _compiled_calls(model)]
    return [part for module in compiled for part in module.modules() if part is not module]


def callbacks_of(model: nn.Module) -> list[object]:
    """The callback by which Dynamo compiles, for each compiled part of the model."""
    return [callback for _, _, function in _compiled_calls(model) if (callback := _callback_of(function)) is not None]


def _callback_of(function: Function) -> object:
    function = getattr(function, WRAPPED_CALL, function)
    return private(SimpleNamespace(**getclosurevars(function).nonlocals), "callback", None, _UNKNOWN)


def innermost(callback: object) -> object:
    """The backend for which Dynamo has made this callback."""
    while (inner := getattr(callback, "_torchdynamo_orig_backend", None)) is not None:
        callback = inner
    return callback


def _backend_of(function: Function) -> Backend | None:
    """The backend of what torch.compile made of a function; None if this PyTorch does not tell."""
    backend: Any = innermost(_callback_of(function))
    return backend if callable(backend) else None


class OwnProgram:
    """A backend that compiles as another does, but whose programs torch.compile keeps apart from that one's."""

    made: ClassVar[Counter[object]] = Counter()
    """The programs that all of them were asked for, by the function that is compiled."""
    told: ClassVar[list[Callable[[], object]]] = []
    """Called after each."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.__name__ = _named(backend)  # which errors name

    def __call__(self, graph: object, inputs: object, **options: object) -> object:
        number = private("torch._guards.CompileContext", "current_compile_id", lambda: None, _UNCOUNTED)()
        OwnProgram.made[getattr(number, "frame_id", None)] += 1
        for tell in OwnProgram.told:
            tell()
        return self.backend(graph, inputs, **options)


def _run_under(own: OwnProgram, function: Function) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or own in _running:
            return function(*args, **kwargs)
        _running.append(own)
        try:
            with torch.compiler.set_stance("default", force_backend=own):
                return function(*args, **kwargs)
        finally:
            _running.remove(own)

    not_compiled_alone(call)
    return call


_running: list[OwnProgram] = []
_own: list[OwnProgram] = []
"""One for each backend: layers that are alike share its programs, as do later sessions; Dynamo keeps eight at most."""


@contextmanager
def guarding_hooks() -> Iterator[None]:
    """Have programs that are compiled in this block run only for modules with the hooks that they were compiled with.

    By default torch.compile takes it that hooks never change. Blocks of several threads may end in any order.
    """
    config: Any = import_module("torch._dynamo.config")
    lost = "a compiled program may run for a module that is alike but has other hooks"
    before = private(config, "skip_nnmodule_hook_guards", None, lost)
    if before is None:
        yield
        return
    with _guarding:
        _skipped.append(config.skip_nnmodule_hook_guards)
        config.skip_nnmodule_hook_guards = False
    try:
        yield
    finally:
        with _guarding:
            config.skip_nnmodule_hook_guards = _skipped[0] if len(_skipped) == 1 else False
            _skipped.pop()


_guarding = Lock()
_skipped: list[bool] = []  # the flag as each open block found it, the outermost first


def not_compiled_alone(*functions: Any) -> None:
    """Keep torch.compile from compiling these functions where they are not called from what it compiles."""
    lost = "hooks that compiled code calls are compiled by themselves"
    skip = private("torch._dynamo.eval_frame", "skip_code", None, lost)
    for function in functions if skip is not None else ():
        skip(function.__code__)


@contextmanager
def emulated_casts(emulates: bool = True) -> Iterator[None]:
    """Have inductor round values inside fused kernels as if each had been written to memory and read again."""
    if emulates and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        note(f"torch {torch.__version__}: --emulate-casts has no effect in inductor's programs for the CPU before 2.13")
    config: Any = import_module("torch._inductor.config") if emulates else None
    if emulates and private(config, "emulate_precision_casts", None, "--emulate-casts has no effect") is not None:
        with config.patch(emulate_precision_casts=True):
            yield
    else:
        yield


def unwrapped(model: nn.Module) -> dict[str, Compile]:
    """Have the model, which has no wrappers (see `as_written`), run uncompiled, for good.

    Returns, by fqn, how the outermost compiled modules had their forward compiled. A forward that is decorated in its
    class stays compiled.
    """
    compiled: dict[str, Compile] = {}
    module: Any
    for fqn, module in [*model.named_modules()] if compiles() else ():
        own: dict[str, Any] = vars(module)
        way: Compile | None = None
        if call := own.get(_CALL):  # compiled by `module.compile()`
            setattr(module, _CALL, None)
            way = _way_of(call)
        elif is_compiled(module.forward) and "forward" in own:
            way, before = _way_of(module.forward), module.forward._torchdynamo_orig_callable
            del module.forward
            if before != module.forward:
                module.forward = before
        elif is_compiled(module.forward):  # by its class
            way = lambda forward: forward  # noqa: E731
        if way and not any(not outer or fqn.startswith(f"{outer}.") for outer in compiled):
            compiled[fqn] = way
    return compiled


def compiler(settings: Mapping[str, Any]) -> Compile:
    """torch.compile with these arguments, of which one is a backend or mode.

    Programs of inductor draw the random numbers of eager mode where that can be asked for.
    """
    inductor: Any = import_module("torch._inductor")
    if "mode" not in settings and settings["backend"] != "inductor":
        return partial(torch.compile, **settings)
    lost = "dropout in programs of inductor may draw other random numbers"
    options_of = private(inductor, "list_mode_options", None, lost)
    if options_of is None:
        return partial(torch.compile, **settings)
    options = {**options_of(settings.get("mode", "default")), "fallback_random": True}
    return partial(torch.compile, options=options)


def _way_of(function: Callable[..., Any]) -> Compile:
    """The compiler, with its backend and options, that made this of a function."""
    way: Compile = private(SimpleNamespace(**getclosurevars(function).nonlocals), "self", torch.compile, _LOST)
    return way
