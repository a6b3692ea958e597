"""The graph of an .onnx file: its operators, and the modules that they belong to, as PyTorch's exporters name them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hookcli.errors import UsageError, in_brief, shortened
from hookcli.system.files import content, regular

_MOST = 2**31  # bytes: the most that a message of Protocol Buffers can have
SCOPES = "pkg.torch.onnx.name_scopes"  # of torch.onnx.export(dynamo=True): "['', 'layer1', 'layer1.conv', 'conv2d']"
CLASSES = "pkg.torch.onnx.class_hierarchy"  # the class of each, and the operator
_QUOTED = re.compile(r"'([^'\\]*)'")
_PATH = re.compile(r"/(?:(.+)/)?[^/]+")  # of TorchScript's exporter: /layer1/layer1.0/conv1/Conv
_CALL = re.compile(r"_\d+$")
_DEEPEST = 1000  # modules within each other: Python's calls go no deeper
_PASSED_ON = {"Add", "Cast", "DequantizeLinear", "Mul", "QuantizeLinear"}  # quantizers put these after an operator


class Operator(NamedTuple):
    """An operator: its type, the module that it belongs to (None if unknown), and the names of its values."""

    op: str
    scope: str | None
    inputs: Sequence[str]
    outputs: Sequence[str]


def read_onnx(text: str) -> Any:
    """The model in an .onnx file. Raises UsageError for a damaged one, or one with weights outside its folder."""
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise UsageError(f"{text}: reading it needs onnx and onnxruntime: pip install 'hookcli[onnx]'") from error
    path = Path(text)
    try:
        model = onnx.load_model_from_string(content(path, _MOST))
    except OSError as error:
        raise UsageError(f"{shortened(text)}: can't be read ({error.strerror or error})") from error
    except (DecodeError, ValueError) as error:  # a ValueError comes from Protocol Buffers in pure Python
        raise UsageError(f"{path}: damaged, or not an ONNX model ({in_brief(error)})") from error
    if not model.graph.node:
        raise UsageError(f"{path}: damaged, or not an ONNX model (no operators)")
    tensors = _messages(model, onnx.TensorProto)
    for location in {one.value for tensor in tensors for one in tensor.external_data if one.key == "location"}:
        try:
            regular(path.parent / location, path.parent)
        except OSError as error:
            where = shortened(repr(location), 80)
            raise UsageError(f"{path}: its weights in {where} can't be read ({error.strerror})") from error
    return model


def _messages(message: Any, kind: type) -> Iterator[Any]:
    """All messages of a kind within another."""
    if isinstance(message, kind):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for item in [value] if hasattr(value, "ListFields") else value:
                yield from _messages(item, kind)


def operators(graph: Any, modules: Collection[str], relus: Sequence[str]) -> list[Operator]:
    """The operators of a graph that compute something from its inputs, in order, each with its module.

    `modules`: the modules of the model to pair the graph with; `relus`: its ReLUs, once for each call: a
    quantizer merges a ReLU with the operator before it, whose value then has the ReLU's name.
    """
    weights = {tensor.name for tensor in graph.initializer}
    values = [name for node in graph.node for name in node.output if re.fullmatch(r"relu(_\d+)?", name)]
    merged = dict(zip(values, relus, strict=True)) if len(values) == len(relus) else {}
    operators: list[Operator] = []
    scopes: dict[str, str | None] = {}
    for node in graph.node:
        inputs = [*filter(None, [*node.input, *captured(node)])]
        if weights.issuperset(inputs):  # a constant, such as a weight that is dequantized
            weights.update(node.output)
            continue
        value = node.output[0] if node.output else ""
        scope = merged.get(value) or scope_of(node, value, modules)
        if scope is None:
            owners = (name.rpartition(".")[0] for name in inputs if name in weights)
            scope = next((owner for owner in owners if owner and owner in modules), None)
        computed = {scopes.get(name) for name in inputs if name not in weights}
        if scope is None and node.op_type in _PASSED_ON and len(computed) == 1:
            scope = computed.pop()
        # A value's name tells the operator that a quantizer merged with the one before it.
        op = value.rpartition("/")[2].partition("_")[0] if _PATH.fullmatch(value) else node.op_type
        operators.append(Operator("Relu" if value in merged else op, scope, inputs, [*filter(None, node.output)]))
        scopes |= dict.fromkeys(node.output, scope)
    return operators


def acting_in_training(graph: Any) -> Counter[str]:
    """How many operators of a graph, and of those within it, do what they do only in train mode, by their type."""
    from onnx import numpy_helper

    nodes = [*_nodes(graph)]
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in nodes:
        for one in node.attribute if node.op_type == "Constant" else ():
            if one.name == "value":
                constants[node.output[0]] = one.t
    acting: Counter[str] = Counter()
    for node in nodes:
        if node.op_type == "Dropout":  # its third input; before opset 12 there was none, and it never drops
            mode = constants.get(node.input[2]) if len(node.input) > 2 else None
            acts = mode is not None and bool(numpy_helper.to_array(mode).any())
        elif node.op_type == "BatchNormalization":  # before opset 14 further outputs told
            acts = any(one.name == "training_mode" and one.i for one in node.attribute) or any(node.output[1:])
        else:
            continue
        acting[node.op_type] += acts
    return +acting


def _nodes(graph: Any) -> Iterator[Any]:
    """The nodes of a graph, and of the graphs within them (of If, Loop, Scan)."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def quoted(text: str) -> list[str]:
    """The texts of a list as exporters write it: "['', 'layer1']"."""
    return _QUOTED.findall(text)


def scope_of(node: Any, value: str, modules: Collection[str]) -> str | None:
    """The module that a node names; None if none."""
    if node.op_type == "DynamicQuantizeLinear":  # it has the name of what it quantizes
        return None
    scopes = next((quoted(prop.value) for prop in node.metadata_props if prop.key == SCOPES), [])
    if len(scopes) > 1:
        return str(scopes[-2]) if scopes[-2].count(".") < _DEEPEST else None
    path = next(filter(None, map(_PATH.fullmatch, (value, node.name))), None)
    if path is None or path[0].count("/") > _DEEPEST:
        return None
    parts: list[str] = []
    for segment in filter(None, (path[1] or "").split("/")):
        above = parts[:-1] if parts and segment.startswith(f"{parts[-1]}.") else parts  # layer1/layer1.0
        names = (segment, _CALL.sub("", segment))  # relu_1 is the second call of relu, or a module
        parts = [*above, next((name for name in names if ".".join([*above, name]) in modules), segment)]
    return ".".join(parts)


def captured(node: Any) -> Iterator[str]:
    """The values that graphs within a node (of If, Loop, Scan) take from outside, among others of their own."""
    for attribute in node.attribute:
        for inner in (inner for graph in (attribute.g, *attribute.graphs) for inner in graph.node):
            yield from (*inner.input, *captured(inner))
