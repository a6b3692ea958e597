"""Models in .onnx files: `FILE.onnx`, or `onnx:FILE`. ONNX Runtime runs each operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookcli.capabilities.onnx.graph import read_onnx
from hookcli.capabilities.onnx.network import network
from hookcli.capabilities.onnx.sessions import dtypes
from hookcli.errors import UsageError
from hookcli.sources.base import InputSpec, Recipe, Request
from hookcli.table.formatting import counted, listed
from hookcli.table.meta import AS_BUILT, WEIGHTS

_LISTED = 3
_FROZEN = "{} is a frozen graph, with its own weights and no gradients; give the PyTorch model that it came from"


class OnnxSource:
    """The graph of a file, with inputs of the shapes and dtypes that it declares."""

    def recipe(self, request: Request) -> Recipe:
        file = request.spec
        if request.args:
            raise UsageError(f"--arg: {file} takes no arguments; leave it out", option="arg")
        model = read_onnx(file)
        producer = " ".join(filter(None, (model.producer_name, model.producer_version))) or "an unnamed program"
        sizes = {one.name: declared_sizes(file, one) for one in inputs_of(model.graph)}
        notes = [note_on_graphs(model.graph), note_on_sizes(sizes), note_on_types(model.graph)]
        return Recipe(
            Path(file).name,
            partial(build, file, sizes),
            inputs=natural_inputs(model.graph, sizes),
            fixed_batch=any(own and own[0] for own in sizes.values()),
            frozen=_FROZEN.format(Path(file).name),
            meta={WEIGHTS: AS_BUILT, "exported_by": producer, "notes": [*filter(None, notes)]},
        )


def build(file: str, sizes: dict[str, Sequence[int] | None]) -> nn.Module:
    """The graph of a file, in eval mode."""
    return network(read_onnx(file), file, sizes).train(False)


def inputs_of(graph: Any) -> Iterator[Any]:
    """The inputs of a graph that have no value of their own."""
    constants = {one.name for one in graph.initializer}
    return (one for one in graph.input if one.name not in constants)


def declared_sizes(file: str, one: Any) -> Sequence[int] | None:
    """The sizes of an input, 0 for any; None for any rank. Raises UsageError for an input that is not a tensor."""
    tensor = one.type.tensor_type
    if dtypes().get(tensor.elem_type) is None:
        kinds = {"tensor_type": "tensor of texts", "sequence_type": "sequence", "map_type": "map"}
        kind = kinds.get(one.type.WhichOneof("value") or "", "value of another kind than a tensor")
        raise UsageError(f"{file}: its input {one.name} is a {kind}, which hookcli can't make")
    return [max(dim.dim_value, 0) for dim in tensor.shape.dim] if tensor.HasField("shape") else None


def natural_inputs(graph: Any, sizes: dict[str, Sequence[int] | None]) -> tuple[InputSpec, ...] | None:
    """The inputs, where each size that may be any is 1; None if the rank of one is not known."""
    weights = [dtypes().get(one.data_type) for one in graph.initializer]
    own = next((dtype for dtype in weights if dtype and dtype.is_floating_point and dtype.itemsize > 1), torch.float32)
    rows = rows_looked_up(graph)
    specs = []
    for one in inputs_of(graph):
        if (shape := sizes[one.name]) is None:
            return None
        dtype = dtypes()[one.type.tensor_type.elem_type]
        specs.append(
            InputSpec(tuple(size or 1 for size in shape), dtype if dtype != own else None, rows.get(one.name, 2))
        )
    return tuple(specs)


def rows_looked_up(graph: Any) -> dict[str, int]:
    """The rows of the tables of which values are indices, such as a vocabulary's, by the names of the values."""
    sizes = {one.name: one.dims[0] for one in graph.initializer if one.dims and one.dims[0]}
    looked_up = (node for node in graph.node if node.op_type == "Gather" and node.input[0] in sizes)
    along_rows = (node for node in looked_up if not any(one.name == "axis" and one.i for one in node.attribute))
    return {node.input[1]: sizes[node.input[0]] for node in along_rows}


def note_on_sizes(sizes: dict[str, Sequence[int] | None]) -> str:
    """The note on sizes that the file leaves open, besides the batch; "" if there are none."""
    open_sizes = {
        name: "x".join(str(size or "N") for size in own) for name, own in sizes.items() if own and 0 in own[1:]
    }
    names = listed([f"{name}: {text}" for name, text in open_sizes.items()], _LISTED)
    return f"sizes that the file leaves open are 1 unless --input gives others ({names})" if names else ""


def note_on_types(graph: Any) -> str:
    """The note on initializers of types that PyTorch lacks, such as INT4; "" if there are none."""
    from onnx import TensorProto

    kinds = Counter(TensorProto.DataType.Name(x.data_type) for x in graph.initializer if not dtypes().get(x.data_type))
    names = listed([*kinds], _LISTED)
    return f"{counted(kinds.total(), 'initializer')} of {names} not shown: PyTorch has no such type" if kinds else ""


def note_on_graphs(graph: Any) -> str:
    """The note on operators that have graphs within; "" if there are none."""
    kinds = Counter(node.op_type for node in graph.node if any(one.g.node or one.graphs for one in node.attribute))
    if not kinds:
        return ""
    what = listed([f"{n} {kind}" for kind, n in kinds.items()], _LISTED)
    number = counted(sum(kinds.values()), "operator")
    return f"{number} with graphs within: each is one module, whose parts are not seen ({what})"
