"""An operator of an .onnx file as a module, which ONNX Runtime runs when it is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from hookcli.capabilities.onnx.costs import macs, multiplies
from hookcli.capabilities.onnx.sessions import (
    as_bytes,
    of_value,
    run_session,
    session_options,
    to_value,
    value_type,
    why_failed,
)
from hookcli.errors import UsageError

_MOST_THREADS = 512
_EXTERNAL = 1  # TensorProto.EXTERNAL


class Frame:
    """The parts of a file that every session needs: operator sets, functions, and the name for messages."""

    def __init__(self, model: Any, file: str) -> None:
        self.file = file
        self.header = type(model)(ir_version=model.ir_version)
        self.header.opset_import.extend(model.opset_import)
        # Each session starts its threads, and a graph may have thousands of sessions.
        number = sum(map(multiplies, model.graph.node))
        self.threads = max(1, min(torch.get_num_threads(), _MOST_THREADS // max(1, number)))
        self.functions = {(one.domain, one.name): one for one in model.functions}

    def around(self, graph: Any, node: Any) -> Any:
        """A model of this graph, which has this node alone."""
        made = type(self.header)()
        made.CopyFrom(self.header)
        if (node.domain, node.op_type) in self.functions or any(node.attribute):
            made.functions.extend(self.functions.values())
        made.graph.CopyFrom(graph)
        return made


class Operator(nn.Module):
    """An operator of a graph. It takes the values that the graph computes, in order, and holds the constants.

    `values` are the names of what it takes, and `settings` the constants that are not weights, as ONNX has them.
    """

    def __init__(self, node: Any, frame: Frame, values: Sequence[str], settings: Sequence[Any]) -> None:
        super().__init__()
        self._node, self._frame, self._values, self._settings = node, frame, tuple(values), tuple(settings)
        self._held: dict[str, str] = {}
        self._session: Any = None
        self._made_for: object = None
        self._shared: dict[str, Any] = {}  # with the memory that the session reads
        self._outputs: dict[object, tuple[int, ...]] = {}
        self._function = _Function(self, node.op_type)

    def hold(self, name: str, x: Tensor, local: str, *, weight: bool) -> Tensor:
        """Register a constant of the graph under a name of this module's. Returns it as it is registered."""
        self._held[name] = local
        if not weight:
            self.register_buffer(local, x)
            return x
        parameter = x if isinstance(x, nn.Parameter) else nn.Parameter(x, requires_grad=False)
        self.register_parameter(local, parameter)
        return parameter

    def extra_repr(self) -> str:
        """The names of what it takes."""
        return ", ".join(self._values)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the session, which can't be copied."""
        return {**self.__dict__, "_session": None, "_made_for": None, "_shared": {}}

    def forward(self, *values: Any) -> Any:
        """Run the operator, and return a tensor, or a tuple of all of its outputs."""
        return self._function(*values, *(getattr(self, local) for local in self._held.values()))

    def run(self, *arguments: Any) -> Any:
        """Have ONNX Runtime compute the outputs from these values and constants."""
        names = [name for name in self._node.output if name]
        feed = dict(zip(self._values, map(to_value, arguments), strict=False))
        kinds = {name: value.data_type() for name, value in feed.items()}
        constants = dict(zip(self._held, arguments[len(feed) :], strict=True))
        # The session may keep copies of weights, and PyTorch counts no writes through `.data`: their bits tell.
        bits = [(x.data_ptr(), x.shape, crc32(as_bytes(x))) for x in constants.values()]
        state = (kinds, bits)
        if self._session is None or state != self._made_for:
            self._session, self._made_for = self._made(kinds, constants, names), state
        try:
            outputs = [of_value(value) for value in run_session(self._session, names, feed)]
        except Exception as error:
            raise RuntimeError(f"ONNX Runtime can't run {self._node.op_type}: {why_failed(error)}") from None
        if isinstance(outputs[0], Tensor):
            self._outputs[_sizes(arguments)] = tuple(outputs[0].shape)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def macs(self, arguments: Sequence[Any]) -> int | None:
        """The multiply-accumulates of a call with tensors of these shapes; None if unknown, or never made."""
        output = self._outputs.get(_sizes(arguments))
        if output is None and multiplies(self._node):
            return None
        named = zip((*self._values, *self._held), arguments, strict=True)
        shapes = {name: tuple(x.shape) for name, x in named if isinstance(x, Tensor)}
        return macs(self._node, [shapes.get(name) for name in self._node.input], output or ())

    def _made(self, kinds: Mapping[str, str], constants: Mapping[str, Tensor], outputs: Sequence[str]) -> Any:
        import onnxruntime
        from onnx import GraphProto, ValueInfoProto

        graph = GraphProto(name="operator", node=[self._node], output=[ValueInfoProto(name=n) for n in outputs])
        graph.input.extend(ValueInfoProto(name=name, type=value_type(kind)) for name, kind in kinds.items())
        graph.initializer.extend(one for one in self._settings if hasattr(one, "raw_data"))
        graph.sparse_initializer.extend(one for one in self._settings if not hasattr(one, "raw_data"))
        options = session_options(self._frame.threads if multiplies(self._node) else 1)
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._shared = {name: to_value(x) for name, x in constants.items()}
        for name, value in self._shared.items():
            one = graph.initializer.add(name=name, data_type=value.element_type(), dims=value.shape())
            one.data_location = _EXTERNAL
            one.external_data.add(key="location", value="in memory")
        if self._shared:
            options.add_external_initializers([*self._shared], [*self._shared.values()])
        made = self._frame.around(graph, self._node).SerializeToString()
        try:
            return onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            kind = ".".join(filter(None, (self._node.domain, self._node.op_type)))
            raise UsageError(f"{self._frame.file}: ONNX Runtime can't run {kind}: {why_failed(error)}") from error


def _sizes(values: Sequence[Any]) -> object:
    return tuple(tuple(x.shape) if isinstance(x, Tensor) else None for x in values)


class _Function:
    """An operator as a function of its values and constants, which modes of `torch.overrides` see under its name.

    Tensors on the meta device come from a call that was made: of it a product of as many multiply-accumulates is
    left, for what counts them.
    """

    def __init__(self, operator: Operator, name: str) -> None:
        self._operator = operator
        self.__name__ = self.__qualname__ = name
        self.__module__ = "onnx"

    def __call__(self, *arguments: Any) -> Any:
        tensors = tuple(x for x in arguments if isinstance(x, Tensor))
        if has_torch_function(tensors):
            return handle_torch_function(self, tensors, *arguments)
        if not any(x.is_meta for x in tensors):
            return self._operator.run(*arguments)
        number = self._operator.macs(arguments)
        if number is None:
            raise NotImplementedError(f"ONNX Runtime can't run {self.__name__} on the meta device")
        return torch.mm(torch.empty(1, number, device="meta"), torch.empty(number, 1, device="meta"))


@cache
def operator_class(kind: str) -> type[Operator]:
    """The class of operators of a type, whose name it has."""
    return type(kind, (Operator,), {})
