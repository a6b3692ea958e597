"""The constants of a graph: its initializers, and what its nodes Constant return."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hookcli.capabilities.onnx.sessions import dtypes
from hookcli.errors import UsageError, in_brief

_OF_NUMBERS = {"value_float": "FLOAT", "value_floats": "FLOAT", "value_int": "INT64", "value_ints": "INT64"}
_NO_WEIGHTS = {"Clip", "Pad", "Range", "Resize", "Upsample"}
"""Operators whose constants of several elements are sizes and limits."""
_WHOLE = {"DequantizeLinear": (0,), "QLinearConv": (8,), "QGemm": (6,)}
"""The inputs of operators that are weights in whatever integers."""
_MEASURED = {
    "BatchNormalization": (3, 4),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), (1, 2)),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul"), (1, 2, 4, 5, 6, 7)),
    "QGemm": (1, 2, 4, 5, 7, 8),
    **dict.fromkeys(("ConvInteger", "MatMulInteger"), (2, 3)),
}
"""The inputs of operators that are figures of data: means, variances, scales and zero points."""


def constants_of(graph: Any) -> dict[str, Any]:
    """ONNX's tensors that a graph holds, by name: its initializers, and what its nodes Constant return."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if (tensor := constant(node)) is not None:
            tensor.name = node.output[0]
            tensors[tensor.name] = tensor
    return tensors


def constant(node: Any) -> Any:
    """The tensor that a node Constant returns; None for another node, or a constant that is sparse or a text."""
    from onnx import TensorProto, helper

    if node.op_type != "Constant" or node.domain or len(node.attribute) != 1:
        return None
    [one] = node.attribute
    if one.name == "value":
        return one.t
    if one.name not in _OF_NUMBERS:
        return None
    kind, value = _OF_NUMBERS[one.name], helper.get_attribute_value(one)
    several = one.name.endswith("s")
    sizes = [len(value)] if several else []
    return helper.make_tensor("", TensorProto.DataType.Value(kind), sizes, value if several else [value])


def tensor_of(proto: Any, folder: Path, file: str) -> Tensor | None:
    """A constant as a tensor, on the meta device where that is the default one; None for a type that PyTorch lacks.

    Raises UsageError where its elements are damaged.
    """
    from onnx import numpy_helper

    dtype = dtypes().get(proto.data_type)
    if dtype is None:
        return None
    try:
        if torch.get_default_device().type == "meta":
            return torch.empty(tuple(proto.dims), dtype=dtype)
        array = numpy_helper.to_array(proto, str(folder))
        if array.dtype.kind != "b" and not dtype.is_complex:  # NumPy has neither bfloat16 nor float8
            array = array.view(f"u{array.itemsize}")
        return torch.from_numpy(array.copy()).view(dtype)
    except Exception as error:  # NumPy and Protocol Buffers fail in many ways
        raise UsageError(f"{file}: the initializer {proto.name!r} is damaged ({in_brief(error)})") from error


def embedded(proto: Any, folder: Path) -> Any:
    """A constant whose elements are in the graph, not in another file."""
    from onnx import external_data_helper

    if hasattr(proto, "external_data") and proto.external_data:
        external_data_helper.load_external_data_for_tensor(proto, str(folder))
        proto.ClearField("external_data")
        proto.ClearField("data_location")
    return proto


def role(node: Any, name: str, x: Tensor) -> str:
    """The role of a constant where a node takes it: "parameter" or "buffer"; "" for a setting, such as a shape.

    Parameters are of floating-point or eight bits, and not scalars; buffers are figures of data.
    """
    places = {number for number, taken in enumerate(node.input) if taken == name}
    if places and places <= {*_MEASURED.get(node.op_type, ())}:
        return "buffer"
    if places & {*_WHOLE.get(node.op_type, ())}:
        return "parameter"
    numbers = x.is_floating_point() or x.dtype in (torch.int8, torch.uint8)
    return "parameter" if numbers and x.dim() and x.numel() and node.op_type not in _NO_WEIGHTS else ""
