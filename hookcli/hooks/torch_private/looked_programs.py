"""Programs of hookcli's own in a program that is observed: while a call lasts, in its thread alone.

The stance of torch.compile is one for all threads, and is read after the hooks of a call have run. So the private
function that reads it answers another backend here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from importlib import import_module
from threading import get_ident
from types import FrameType
from typing import Any
from weakref import ref

from torch import nn

from hookcli.hooks.torch_private.autograd import in_backward
from hookcli.hooks.torch_private.dynamo import WRAPPED_CALL, compiled_call
from hookcli.hooks.torch_private.exchange import replaced
from hookcli.hooks.torch_private.frames import on_stack
from hookcli.hooks.torch_private.programs import OwnProgram, callbacks_of, guarding_hooks, innermost, own_program
from hookcli.tensors.torch_private import private

_EVAL_FRAME = "torch._dynamo.eval_frame"
_LOST = "compiled parts of a recorded program stay whole"
_REGIONS = "_next_isolate_recompiles_id", "set_eval_frame_isolate_recompiles_id"


def can_look_inside() -> bool:
    """True if this PyTorch has what `own_programs_within` and `own_programs_in_backward` need."""
    return None not in _ways()


def may_compile() -> bool:
    """False while the program has torch.compile refuse, or leave uncompiled, what it has not compiled before."""
    config: Any = import_module("torch._dynamo.config")
    stance = private(_EVAL_FRAME, "_stance", None, _LOST)
    return getattr(stance, "stance", "default") == "default" and not config.error_on_recompile


@cache
def _ways() -> tuple[Any, Any]:
    return (
        private(_EVAL_FRAME, "_create_wrapped_callback", None, _LOST),
        private(_EVAL_FRAME, "_callback_from_stance", None, _LOST),
    )


@contextmanager
def own_programs_within(frame: FrameType | None = None) -> Iterator[None]:
    """Have compiled functions that this thread calls run their own programs in this block. See `own_programs`.

    `frame`: only if it is on the stack, so that a block whose end an interrupt puts off does no harm.
    """
    thread = get_ident()

    def asked(callback: object) -> bool:
        return get_ident() == thread and (frame is None or on_stack(frame))

    answering = replaced(import_module(_EVAL_FRAME), "_callback_from_stance", _Answering(asked), _LOST)
    with guarding_hooks():
        _count_looking(1)
        try:
            with answering:
                yield
        finally:
            _count_looking(-1)


@contextmanager
def own_programs_in_backward(model: nn.Module) -> Iterator[None]:
    """Have the model's compiled parts run their own programs in this block: checkpointed ones run again there."""
    of_model = {id(callback) for callback in callbacks_of(model)}

    def asked(callback: object) -> bool:
        return id(callback) in of_model and in_backward()

    with replaced(import_module(_EVAL_FRAME), "_callback_from_stance", _Answering(asked), _LOST):
        yield


class _Answering:
    """Wraps the function that turns a compiled function's callback into the one to use. Other stances stay in force."""

    def __init__(self, asked: Callable[[object], bool]) -> None:
        self._asked = asked

    def __call__(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        create, _ = _ways()

        def callback_from_stance(callback: Any) -> Any:
            chosen = original(callback)
            if chosen is not callback or callback in (None, False) or not self._asked(callback):
                return chosen
            backend = innermost(callback)
            if not callable(backend):
                return chosen
            if (way := _apart()) is not None:  # the call that asked leaves the region at its end
                way[0](way[1])
            return create(own_program(backend))

        return callback_from_stance


@cache
def _apart() -> tuple[Callable[[int], object], int] | None:
    """The function that enters a region of programs, within which recompilations are limited, and hookcli's region."""
    module = import_module(_EVAL_FRAME)  # torch 2.11 has no regions, and `room_for_own_programs` makes up for that
    numbers, enter = (getattr(module, name, None) for name in _REGIONS)
    return None if numbers is None or enter is None else (enter, next(numbers))


@contextmanager
def room_for_own_programs() -> Iterator[None]:
    """Let functions be compiled as often in this block as they could be if there were no programs of hookcli's own."""
    if _apart() is not None:
        yield
        return
    config: Any = import_module("torch._dynamo.config")
    own = placed = config.recompile_limit
    made = OwnProgram.made.copy()

    def make_room() -> None:
        nonlocal own, placed
        own = own if config.recompile_limit == placed else config.recompile_limit  # which the program has set
        most = max((OwnProgram.made - made).values(), default=0)  # of one function
        config.recompile_limit = placed = own + most + (_looking > 0)

    make_room()
    OwnProgram.told.append(make_room)
    try:
        yield
    finally:
        OwnProgram.told.remove(make_room)
        if config.recompile_limit == placed:
            config.recompile_limit = own


_looking = 0
"""The blocks in which programs of hookcli's own may be compiled, each after one of the program's."""


def _count_looking(more: int) -> None:
    global _looking
    _looking += more
    for make_room in OwnProgram.told:
        make_room()


def wrap_in_place(module: nn.Module, call: Callable[..., object]) -> Callable[[], object]:
    """Have `call(module, compiled, args, kwargs)` make the calls that `module.compile()` has compiled.

    torch.compile traces the compiled call in its place. Returns what undoes it, which does not keep the module alive.
    """
    compiled: Any = compiled_call(module)
    known = ref(module)

    @wraps(compiled)
    def wrapped(*args: object, **kwargs: object) -> object:
        return call(known(), compiled, args, kwargs)

    setattr(wrapped, WRAPPED_CALL, compiled)
    module._compiled_call_impl = wrapped

    def unwrap() -> None:
        module: Any = known()
        compiled = None if module is None else getattr(compiled_call(module), WRAPPED_CALL, None)
        if compiled is not None:
            module._compiled_call_impl = compiled

    return unwrap
