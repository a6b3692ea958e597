"""Private names of function modes, dispatch modes, torch.func, operators and storages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from hookcli.hooks.importlib_bootstrap import between
from hookcli.hooks.torch_private.exchange import Wrapper, replaced
from hookcli.tensors.torch_private import caller, getter, is_batched, private
from hookcli.tensors.tree import Args, Kwargs

# Modes.

_SEEN = "attention may leave its fused path while MACs are counted, and compiled parts be compiled again"
_depth: Callable[[], int] = private("torch._C", "_len_torch_function_stack", lambda: 0, _SEEN)
_mode_at: Callable[[int], object] = private("torch._C", "_get_function_stack_at", lambda depth: None, _SEEN)


def innermost_function_mode(within: int = 0) -> object:
    """This thread's innermost TorchFunctionMode, not counting `within` modes inside it; None if there is none."""
    depth = _depth() - within
    return _mode_at(depth - 1) if depth > 0 else None


_ORDER = "a mode that the program has left on when an interrupt ended its forward stays on instead of hookcli's"
_pop: Callable[[], object] | None = private("torch._C", "_pop_torch_function_stack", None, _ORDER)
_push: Callable[[object], None] | None = private("torch._C", "_push_on_torch_function_stack", None, _ORDER)


def function_modes_can_move() -> bool:
    """True if a mode can be put below others, and taken from there."""
    return _pop is not None and _push is not None


def leave_function_mode(mode: TorchFunctionMode) -> None:
    """Take a mode off this thread's stack, also from below those that were entered since; do nothing if it is not on.

    PyTorch takes off the innermost one, whichever that is.
    """
    if _pop is None or _push is None:
        TorchFunctionMode.__exit__(mode, None, None, None)
        return
    above = [_mode_at(depth) for depth in range(_depth())]
    if mode not in above:
        return
    above = above[above.index(mode) + 1 :]
    for _ in (mode, *above):
        _pop()
    for other in above:
        _push(other)


def move_function_mode_below(mode: TorchFunctionMode) -> None:
    """Put this thread's innermost mode below all others: the program may leave those before it, and PyTorch takes off
    the innermost one, whichever that is.
    """
    if _pop is None or _push is None:
        return
    others = [_mode_at(depth) for depth in range(_depth() - 1)]
    for _ in range(len(others) + 1):
        _pop()
    for one in (mode, *others):
        _push(one)


@contextmanager
def stopped_by_backward(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` before each `Tensor.backward` in this block: PyTorch hands it to modes, and puts these back after."""

    def begins(*args: object, **kwargs: object) -> tuple[Args, Kwargs]:
        stop()
        return args, kwargs

    stopping = between(begins, lambda *args: None)  # warnings pass over its frames
    with replaced(Tensor, "backward", stopping, "operators of loss functions stay watched in backward"):
        yield


_ALL_PLAIN = "while MACs are counted, tensor subclasses are taken for plain tensors by attention and by compiled parts"
without_innermost_function_mode: Callable[[], AbstractContextManager[object]] = private(
    "torch.overrides", "_pop_mode_temporarily", torch.DisableTorchFunction, _ALL_PLAIN
)
"""A block without that mode."""

_DISPATCH = "torch.utils._python_dispatch"
_SEE = "the program's dispatch modes see the operators that hookcli runs to count MACs"
without_dispatch_modes: Callable[[], AbstractContextManager[object]] = private(
    _DISPATCH, "_disable_current_modes", nullcontext, _SEE
)
"""A block without the active TorchDispatchModes."""

if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
else:

    class _NoMode:
        """Takes the place of a missing class of dispatch modes: entering it fails."""

        def __enter__(self) -> None:
            raise NotImplementedError

        def __exit__(self, *error: object) -> None: ...

    TorchDispatchMode = private(_DISPATCH, "TorchDispatchMode", _NoMode, "MACs of few operators can be counted")
"""The base class of modes that see every operator."""

_RECORDED = "forwards under a dispatch mode are recorded, and the mode sees hookcli's operations"
dispatch_modes: Callable[[], list[object]] = private(_DISPATCH, "_get_current_dispatch_mode_stack", list, _RECORDED)
"""The active TorchDispatchModes, the innermost last."""


@contextmanager
def exchanged_for_counting(
    without_mode: Wrapper, script: Wrapper, compiled_class: type | None, as_called: bool = False
) -> Iterator[None]:
    """Wrap, in this block, functions that behave differently under a TorchFunctionMode, and calls that it does not see.

    `without_mode` wraps `has_torch_function`, which attention asks before it takes its fused path, and the calls of
    compiled modules, if there are any. `script` wraps the calls of TorchScript functions and methods.
    `as_called`: `F.multi_head_attention_forward` does not go to a mode as a whole: the functions that it calls do;
    `script` also wraps `autograd.Function.apply`, since a mode sees only the functions inside it, and the operator that
    `flex_attention` calls, itself or compiled for the "eager" backend.
    """
    with ExitStack() as stack:
        stack.enter_context(replaced(torch.overrides, "has_torch_function", without_mode, _FUSED))
        if as_called:
            stack.enter_context(replaced(torch.nn.functional, "has_torch_function", without_mode, _WHOLE))
            stack.enter_context(replaced(torch.autograd.Function, "apply", script, _APPLIED))
            if _flex_attention is not None:
                stack.enter_context(replaced(type(_flex_attention), "__call__", script, _FLEX))
        for kind in (torch.jit.ScriptFunction, private("torch._C", "ScriptMethod", None, _SCRIPTS)):
            if kind is not None:
                stack.enter_context(replaced(kind, "__call__", script, _SCRIPTS))
        if compiled_class is not None:
            stack.enter_context(replaced(compiled_class, "__call__", without_mode, "compiled parts are compiled again"))
        yield


_FUSED = "attention leaves its fused path while MACs are counted, which may change the last bits"
_WHOLE = "attention is one operator: the functions that it calls have no rows"
_APPLIED = "the functions inside an autograd.Function have rows, and not the whole"
_FLEX = "flex_attention is not seen"
_flex_attention = private("torch._higher_order_ops", "flex_attention", None, _FLEX)
_SCRIPTS = "MACs of TorchScript methods are not counted"

# torch.func.

_AS_PLAIN = "forwards inside torch.func and torch.vmap are recorded as if they were plain ones"
_interpreter: Callable[[], object] = private("torch._C._functorch", "peek_interpreter_stack", lambda: None, _AS_PLAIN)


def in_func() -> bool:
    """True if a transform of torch.func is active: modules then return wrapped tensors, which lead to no parameter."""
    return _interpreter() is not None


_of_wrapped = [
    private("torch._C._functorch", name, None, "MACs inside torch.vmap count for one item only")
    for name in ("is_functorch_wrapped_tensor", "get_unwrapped", "maybe_get_level", "maybe_get_bdim")
]


def times_mapped(tensors: Iterable[Tensor]) -> int:
    """Number of items over which `torch.vmap` maps a call of these tensors: the product over the levels of mapping."""
    if None in _of_wrapped:
        return 1
    is_wrapped, unwrapped, level_of, dimension_of = _of_wrapped
    sizes: dict[int, int] = {}
    for x in tensors:
        while is_wrapped(x):
            inner = unwrapped(x)
            if is_batched(x):
                sizes[level_of(x)] = inner.shape[dimension_of(x)]
            x = inner
    return prod(sizes.values())


# Operators.

OpOverload: Any = type(torch.ops.aten.mm.default)
"""The class of an operator, such as `torch.ops.aten.mm.default`."""
OpOverloadPacket: Any = type(torch.ops.aten.mm)
"""The class of the operators of one name, such as `torch.ops.aten.mm`."""
OPERATORS: tuple[type, ...] = (
    private("torch._ops", "OperatorBase", OpOverload, "MACs of higher-order operators are not counted"),
    OpOverloadPacket,
)
"""The classes of all operators, including higher-order ones."""

# Memory.

_COALESCED = "sparse tensors are coalesced to read their values, which takes time"
_uncoalesced: Callable[[Tensor], Tensor] = caller(Tensor, "_values", lambda x: x.coalesce().values(), _COALESCED)


def stored_values(x: Tensor) -> Tensor:
    """Return the values that a tensor of any layout stores, without coalescing a sparse COO tensor."""
    if x.layout is torch.strided:
        return x
    return _uncoalesced(x) if x.layout is torch.sparse_coo else x.values()


_SLOWER = "telling saved tensors apart takes longer"
storage_key: Callable[[torch.UntypedStorage], int] = getter(
    torch.UntypedStorage, "_cdata", lambda storage: StorageWeakRef(storage).cdata, _SLOWER
)
"""A number that no other storage has at the same time."""

_ADDED = "gradients that are added up take a further tensor in a simulation of memory"
_tensor_uses: Callable[[Tensor], int] = caller(Tensor, "_use_count", lambda tensor: 0, _ADDED)
_storage_uses: Callable[[int], int] = private("torch._C", "_storage_Use_Count", lambda storage: 0, _ADDED)


def reference_counts(tensor: Tensor) -> tuple[int, int]:
    """The number of references to a tensor, and to its storage, Python's included; each 0 if PyTorch has no count."""
    return _tensor_uses(tensor), _storage_uses(storage_key(tensor.untyped_storage()))


# Optimizers.


def fused_on_meta() -> AbstractContextManager[None]:
    """A block in which optimizers take their fused implementation for parameters on the meta device, too."""
    return replaced(
        import_module("torch.optim.optimizer"),  # torch.optim hides it
        "_get_fused_kernels_supported_devices",
        lambda original: lambda: [*original(), "meta"],
        "fused optimizers are refused in a simulation of memory",
    )
