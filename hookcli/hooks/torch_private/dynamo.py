"""Private names of torch.compile. It is slow to import, and only `preload` does so."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from types import CellType, FunctionType, ModuleType
from typing import Any

from torch import nn

from hookcli.hooks.torch_private.exchange import Wrapper, replaced
from hookcli.hooks.torch_private.overrides import TorchDispatchMode
from hookcli.tensors.torch_private import getter, private

_COMPILED = "compiled parts are not told from others, and a script that is recorded may compile them again"


def preload() -> None:
    """Import what the first optimizer or DDP wrapper would import: it takes seconds, and would count as the run's."""
    try:
        import_module("torch._dynamo")
    except ImportError:  # a PyTorch that has it elsewhere imports it when it must
        return


def use_fake_tensors() -> None:
    """Have this thread, which is to live on, be the first of the process to use the fake tensors of torch.compile.

    PyTorch 2.11, where it is built for CUDA and finds no GPU, crashes in later threads once the first has ended.
    """
    lost = "torch 2.11 may crash where both sides of a comparison are compiled"
    with private("torch._subclasses.fake_tensor", "FakeTensorMode", nullcontext, lost)():
        pass


def compiles() -> bool:
    """True if anything can be compiled: torch.compile imports what it is made of when it is first used."""
    return imported("torch._dynamo") is not None


_disabling: Callable[..., Any] | None = private(
    "torch._compile", "_disable_dynamo", None, "shapes takes two seconds more: operators on meta import torch.compile"
)
_DISABLED = "__dynamo_disable"  # the attribute in which such a function keeps what it calls


@contextmanager
def not_imported_by_operators() -> Iterator[None]:
    """Keep operators on the meta device, and optimizers, from importing torch.compile in this block: it takes seconds.

    Many of these operators are Python functions that torch.compile must not trace, and they import it to be marked so.
    As long as it is not imported nothing is traced, and they need no mark. Afterwards they are as before.
    """
    ours = [] if compiles() else [f for f in _never_traced() if not hasattr(f, _DISABLED)]
    for function in ours:
        setattr(function, _DISABLED, function)
    try:
        yield
    finally:
        for function in ours:
            vars(function).pop(_DISABLED, None)


@contextmanager
def not_imported_by_libraries() -> Iterator[None]:
    """Keep libraries that are imported in this block from importing torch.compile: the import takes two seconds.

    torchvision asks for one function of it, `is_compile_supported`, which it calls for some operators of detectors on
    some devices. It gets one that imports torch.compile when it is called. A library that asks for anything else gets
    it as ever.
    """
    if _UTILS in sys.modules:
        yield
        return
    stand_in = _StandIn(_UTILS)
    watching = _Watching(stand_in)  # no finder may be a module that answers to every name
    sys.modules[_UTILS] = stand_in
    sys.meta_path.insert(0, watching)
    try:
        yield
    finally:
        sys.meta_path.remove(watching)
        stand_in.step_aside()


class _StandIn(ModuleType):
    """Stands in for `torch._dynamo.utils` until more of torch.compile is asked for than `is_compile_supported`."""

    def __getattr__(self, name: str) -> object:
        if name == "is_compile_supported":
            return _is_compile_supported
        if name.startswith("__"):  # asked of every module
            raise AttributeError(name)
        self.step_aside()
        return getattr(import_module(_UTILS), name)

    def step_aside(self) -> None:
        """Let the next import of the module find the real one."""
        if sys.modules.get(_UTILS) is self:
            del sys.modules[_UTILS]


class _Watching:
    """A finder of modules that finds none, but has the stand-in step aside as torch.compile is being imported."""

    def __init__(self, stand_in: _StandIn) -> None:
        self._stand_in = stand_in

    def find_spec(self, name: str, *_: object) -> None:
        """Find nothing."""
        if name == _PACKAGE:
            self._stand_in.step_aside()


def _is_compile_supported(device: object) -> object:
    return import_module(_UTILS).is_compile_supported(device)


# As the function that it stands in for: torch.compile calls it while tracing, and takes the result for a constant.
_is_compile_supported._dynamo_marked_constant = True  # type: ignore[attr-defined]
_PACKAGE = "torch._dynamo"
_UTILS = f"{_PACKAGE}.utils"


@cache
def _never_traced() -> list[object]:
    """Return the functions for operators on the meta device, and of optimizers, that torch.compile must not trace."""
    if _disabling is None:
        return []
    marker = _disabling(len).__code__
    modules = [module for name, module in [*sys.modules.items()] if name.startswith(_OPERATORS)]
    todo = [value for module in modules for value in vars(module).values()]
    todo += [value for kind in todo if isinstance(kind, type) for value in vars(kind).values()]
    todo += [vars(mode).get("__torch_dispatch__") for mode in TorchDispatchMode.__subclasses__()]
    seen: set[int] = set()
    functions = []
    while todo:
        function = todo.pop()
        if isinstance(function, FunctionType) and id(function) not in seen:
            seen.add(id(function))
            inside = [cell.cell_contents for cell in function.__closure__ or () if cell != _EMPTY]
            functions += inside[:1] if function.__code__ is marker else []  # the function that it wraps
            todo += inside
    return functions


_EMPTY = CellType()
_OPERATORS = ("torch._refs", "torch._decomp", "torch._prims", "torch._meta_registrations", "torch.optim")


def imported(name: str) -> ModuleType | None:
    """The module if it is imported, and no longer being imported.

    In a forked child, the thread that was importing it is gone, and to import it again would wait for that thread.
    """
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def optimized_module() -> type[nn.Module] | None:
    """The class of modules that `torch.compile(module)` returns; None while nothing is compiled."""
    wrapper: type[nn.Module] | None = None
    if compiles():
        wrapper = private("torch._dynamo.eval_frame", "OptimizedModule", None, _COMPILED)
    return wrapper


compiled_call: Callable[[nn.Module], object] = getter(nn.Module(), "_compiled_call_impl", lambda module: ..., _COMPILED)
"""The call that `module.compile()` compiled; None if the module was not compiled, ... if this PyTorch does not tell."""


def is_compiled(function: object) -> bool:
    """True for what torch.compile made of a function, as of a `forward` that it decorates."""
    return hasattr(function, "_torchdynamo_orig_callable") and not hasattr(function, "_torchdynamo_disable")


def compiled_graphs(model: nn.Module) -> list[str] | None:
    """The fqns of the modules that run as one graph; None where this PyTorch does not tell of some."""
    if not compiles():
        return []
    wrapper, modules = optimized_module(), list(model.named_modules())
    if wrapper is None or compiled_call(model) is ...:
        return None
    around = [(fqn, m) for fqn, m in modules if isinstance(m, wrapper) or is_compiled(m.forward)]
    wrapped = [f"{fqn}.{name}".lstrip(".") for fqn, m in around for name, _ in m.named_children()]
    return wrapped + [fqn for fqn, m in modules if compiled_call(m) is not None]  # by `module.compile()`


def runs_compiled(module: nn.Module) -> bool:
    """True for a module that `torch.compile(module)` returned, or that `module.compile()` has compiled."""
    wrapper = optimized_module()
    return wrapper is not None and (isinstance(module, wrapper) or is_compiled_in_place(module))


def is_compiled_in_place(module: nn.Module) -> bool:
    """True for a module that `module.compile()` has compiled."""
    return compiled_call(module) not in (None, ...)


def replaced_in_place(model: nn.Module, wrapper: Wrapper) -> ExitStack:
    """Wrap what the modules call that `module.compile()` has compiled, until the stack is closed."""
    stack = ExitStack()
    for module in model.modules() if compiles() else ():
        if compiled_call(module) not in (None, ...):
            stack.enter_context(replaced(module, "_compiled_call_impl", wrapper, _COMPILED))
    return stack


WRAPPED_CALL = "_hookcli_wrapped_call"
"""The attribute of a function that stands for a compiled one, with that one."""


def frames_compiled() -> int:
    """Number of functions that torch.compile has processed, since the last `torch._dynamo.reset()` if there was one."""
    if (convert_frame := imported("torch._dynamo.convert_frame")) is None:
        return 0
    lost = "forwards in compiled functions are taken for forwards that were never called"
    return int(private(convert_frame, "FRAME_COUNTER", 0, lost))


def made_by_tracing(module: nn.Module) -> bool:
    """True if PyTorch created this module to trace another, as torch.compile and torch.fx do."""
    return type(module).__module__.startswith(("torch.fx", "torch._"))


WRAPPED = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
"""The names under which torch.compile's, FSDP's and checkpoint_wrapper's wrappers hold the wrapped module. The name of
any other wrapper's attribute stays in the fqns of the modules inside."""
