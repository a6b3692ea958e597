"""Modes that follow tensors through a model: from call to call, and given ones to where they meet other values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from hookcli.hooks.events import HookEvent
from hookcli.hooks.module_calls import Call
from hookcli.hooks.observing_mode import ObservingMode
from hookcli.hooks.operators.calls import is_whole
from hookcli.hooks.operators.functions import ArgumentTensors, function_names, given_tensors, reads_attribute
from hookcli.hooks.session import HookSession
from hookcli.hooks.tensor_origins import CONSTANT, TensorOrigins
from hookcli.hooks.torch_private.exchange import Function
from hookcli.tensors import tree
from hookcli.tensors.tree import Args, Kwargs

_READS_VALUES = {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__"}


@dataclass(slots=True)
class FlowCall:
    """A call, without its tensors. `kind`: "input" and "output" of the model, "module", or "function".

    `fqn`: the module that was called, or in which the function ran; `call`: the number of that module's call.
    `inputs`: for each tensor that the call received from another call, the number of that call; `input_shapes`: the
    shapes of these tensors. `outputs`: the path, shape and dtype of each tensor that it made.
    """

    kind: str
    fqn: str
    call: int
    what: Any
    inputs: list[int] = field(default_factory=list)
    input_shapes: list[list[int]] = field(default_factory=list)
    outputs: list[tuple[str, list[int], str]] = field(default_factory=list)


@dataclass(slots=True)
class _Received:
    """The tensors that a call under way received, and where they came from. It lives as long as the call."""

    tensors: ArgumentTensors
    inputs: list[int]
    shapes: list[list[int]]
    leaf: Call | None = None


class FlowCalls(ObservingMode):
    """Follows tensors through the first forward of a session's model.

    `calls`: in the order in which they ended, so that each one's `inputs` are numbers of earlier ones. `unknown`:
    modules in which a tensor came from nowhere; `read`: functions that read values into Python, by module. `origins`:
    the number of the call that made each tensor.
    """

    def __init__(self, session: HookSession) -> None:
        super().__init__()
        model = session.model
        self.calls: list[FlowCall] = []
        self.unknown: dict[str, None] = {}
        self.read: dict[tuple[str, str], None] = {}
        self._session = session
        self.origins = TensorOrigins([*model.parameters(), *model.buffers()])
        self._running = False
        self._leaf: _Received | None = None
        self.past_compiled = model if session.follow else None
        session.stack.enter_context(self)
        session.forward_pre(self._enter)
        session.forward(self._leave)

    # Modules.

    def _enter(self, event: HookEvent) -> None:
        if not event.fqn:
            self._running = event.call == 0
            for path, x in tree.arguments(event.args, event.kwargs) if self._running else ():
                self.origins.made(x, self._append(FlowCall("input", "", 0, path), [(path, x)]))
        elif self._running and not self._in_leaf():
            module = event.module
            closed = is_leaf(module)
            if self._session.ops is not None and module is not None and next(module.children(), None) is None:
                closed = is_whole(module)  # where operators have rows, user-defined modules are open
            if closed:
                self._leaf = self._receive(event.fqn, (event.args, dict(event.kwargs)))
                self._leaf.leaf = self._session.calls.innermost()

    def _leave(self, event: HookEvent) -> None:
        leaf = self._leaf.leaf if self._leaf else None
        if not event.fqn and event.call == 0:
            self._running = False
            for path, x in tree.leaves(event.output):
                received = self._receive("", x)
                self._append(FlowCall("output", "", 0, path, received.inputs, received.shapes), [(path, x)])
        elif leaf and self._leaf and leaf.hooked.module is event.module and leaf.number == event.call:
            self._note(FlowCall("module", event.fqn, event.call, event.module), self._leaf, event.output)
            self._leaf = None

    def _in_leaf(self) -> bool:
        if self._leaf and not any(call is self._leaf.leaf for call in self._session.calls.running):
            self._leaf = None  # it raised, and the model went on
        return self._leaf is not None

    # Functions.

    def observe(self, func: object, run: Function, args: Args, kwargs: Kwargs) -> object:
        if not self._running or self._session.clock.busy or self._in_leaf() or reads_attribute(func):
            return run(*args, **kwargs)
        owner = self._session.calls.innermost()
        fqn, number = (owner.hooked.fqn, owner.number) if owner else ("", 0)
        received = self._receive(fqn, (args, kwargs))
        output = run(*args, **kwargs)
        if (name := getattr(func, "__name__", "")) in _READS_VALUES and received.inputs:
            self.read[fqn, name] = None
        if received.tensors.makes(output):
            self._note(FlowCall("function", fqn, number, func), received, output)
        return output

    # Both.

    def _receive(self, fqn: str, values: object) -> _Received:
        """Look up where the tensors among these values come from."""
        tensors = [x for _, x in _tensors(values)]
        origins = [(x, self.origins.of(x)) for x in tensors]
        if any(origin is None for _, origin in origins):
            self.unknown[fqn] = None
        made = [(x, origin) for x, origin in origins if origin is not None and origin != CONSTANT]
        shapes = [tree.shape_of(x) for x, _ in made]
        return _Received(ArgumentTensors(tensors), [origin for _, origin in made], shapes)

    def _note(self, call: FlowCall, received: _Received, output: object) -> None:
        """Note a call that has ended, as the origin of the tensors that it returned and of those that it wrote into."""
        call.inputs, call.input_shapes = received.inputs, received.shapes
        written = received.tensors.written()
        made = _tensors(output)
        number = self._append(call, made or [("", x) for x in written[:1]])
        for _, x in made:
            self.origins.made(x, number)
        for x in written:
            self.origins.written(x, number)

    def _append(self, call: FlowCall, tensors: Sequence[tuple[str, Tensor]]) -> int:
        call.outputs = [(path, tree.shape_of(x), tree.dtype_text(x)) for path, x in tensors]
        self.calls.append(call)
        return len(self.calls) - 1


def _tensors(values: object) -> list[tuple[str, Tensor]]:
    """The tensors in nested values, and those that objects among them hold in their attributes."""
    unseen: tree.Unseen = []
    tensors = list(tree.leaves(values, "", unseen))
    for path, value in unseen:
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is dict and not isinstance(value, (nn.Module, type, ModuleType, FunctionType)):
            tensors += [(path + step, x) for step, x in tree.leaves(attributes)]
    return tensors


def is_leaf(module: nn.Module | None) -> bool:
    """True for a module that is one box of the flow: without parts, or with parts that only it uses."""
    if module is None or isinstance(module, nn.MultiheadAttention) or parametrize.is_parametrized(module):
        return True
    return next(module.children(), None) is None


_AS_WEIGHT = {
    *("linear", "bilinear", "matmul", "mm", "bmm", "mv", "dot", "inner", "addmm", "addmv", "addbmm", "baddbmm"),
    *("einsum", "tensordot", "mul", "multiply", "embedding", "scaled_dot_product_attention", "prelu"),
    *("multi_head_attention_forward", "layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm"),
    *(f"conv{transposed}{dims}d" for transposed in ("", "_transpose") for dims in (1, 2, 3)),
}
_MOVES = {"to", "cuda", "type_as"}


class TensorUses(ObservingMode):
    """Follows these tensors, and what is made of them alone, through the functions that run under a session.

    `as_weights`: the numbers of the tensors that met other values where a weight does: in products, normalizations and
    embeddings. `moved`: the numbers of those that the program itself moves to another device or dtype.
    """

    def __init__(self, session: HookSession, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self.as_weights: set[int] = set()
        self.moved: set[int] = set()
        self._clock = session.clock
        self._origins = TensorOrigins(())
        self.past_compiled = session.model if session.past_compiled else None
        for number, x in enumerate(tensors):
            self._origins.made(x, number)
        for x in (*session.model.parameters(), *session.model.buffers()):  # last: an alias of a parameter is constant
            if not is_lazy(x):
                self._origins.made(x, CONSTANT)
        session.watch_functions(self)

    def observe(self, func: object, run: Function, args: Args, kwargs: Kwargs) -> object:
        if self._clock.busy or reads_attribute(func):
            return run(*args, **kwargs)
        with torch.DisableTorchFunction():  # neither the program's modes nor its subclasses see what is read here
            origins = [self._origins.of(x) for x in given_tensors(args, kwargs)]
        output = run(*args, **kwargs)
        numbers = [number for number in origins if number is not None and number != CONSTANT]
        name = function_names(func)[0].rstrip("_") if numbers else ""
        if name in _MOVES:
            self.moved.update(numbers)
        elif numbers and None not in origins:
            with torch.DisableTorchFunction():
                for _, x in tree.leaves(output):
                    self._origins.made(x, numbers[0])
        elif name in _AS_WEIGHT:
            self.as_weights.update(numbers)
        return output
