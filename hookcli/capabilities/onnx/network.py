"""The graph of an .onnx file as a model, whose modules are its operators."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hookcli.capabilities.onnx.constants import constant, constants_of, embedded, role, tensor_of
from hookcli.capabilities.onnx.graph import captured
from hookcli.capabilities.onnx.modules import Frame, Operator, operator_class
from hookcli.capabilities.onnx.places import classes_of, in_order, local_name, places
from hookcli.errors import UsageError
from hookcli.tensors import tree


class Step(NamedTuple):
    """A call of a part by its name: the values that it takes and makes, and those that no later step takes.

    Of a scope, which may be called several times, `inner` are the steps of this call.
    """

    part: str
    takes: Sequence[str]
    makes: Sequence[str]
    done: Sequence[str] = ()
    inner: Sequence[Step] = ()


class Scope(nn.Module):
    """A part of a graph that its operators name, such as a layer of the model that was exported."""

    def __init__(self) -> None:
        super().__init__()
        self.current = Step("", (), ())
        """The call that runs, or is next."""

    def forward(self, *values: Any) -> Any:
        """Run the operators of one call. Returns what others take of their values: one, or a tuple."""
        call = self.current
        made = self._ran(call.inner, dict(zip(call.takes, values, strict=True)))
        outputs = tuple(made[name] for name in call.makes)
        return outputs if len(outputs) > 1 else next(iter(outputs), None)

    def _ran(self, steps: Sequence[Step], values: dict[str, Any]) -> dict[str, Any]:
        """Run steps in order, and let go what none after them takes. Returns the values that are left."""
        for step in steps:
            part = self.get_submodule(step.part)
            if isinstance(part, Scope):
                part.current = step
            output = part(*(values[name] for name in step.takes))
            values.update(zip(step.makes, output if len(step.makes) > 1 else (output,), strict=True))
            for name in step.done:
                del values[name]
        return values


class Graph(Scope):
    """The graph of an .onnx file. It takes the graph's inputs, in their order or by name.

    Returns the graph's output, or a dict of several. `sizes`: the sizes of each input, 0 for any; None for any rank.
    """

    def __init__(self, file: str, sizes: dict[str, Sequence[int] | None], outputs: Sequence[str]) -> None:
        super().__init__()
        self._file, self._sizes, self._outputs = file, sizes, tuple(outputs)
        self._fixed: dict[str, str] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run all operators, of which each has its place among the modules."""
        values = dict(zip(self._sizes, args, strict=False))
        values |= {name: kwargs[word] for name in self._sizes for word in (name, identifier(name)) if word in kwargs}
        if len(args) + len(kwargs) != len(self._sizes) or values.keys() != self._sizes.keys():
            takes, gets = ", ".join(self._sizes) or "nothing", len(args) + len(kwargs)
            raise UsageError(f"{self._file}: takes {takes}, and gets {gets} inputs")
        for name, sizes in self._sizes.items():
            require_sizes(self._file, name, sizes, values[name])
        values = self._ran(self.current.inner, values)
        values |= {name: self.get_buffer(local) for name, local in self._fixed.items()}
        outputs = {name: values[name] for name in self._outputs}
        return outputs if len(outputs) > 1 else next(iter(outputs.values()), None)

    def add(self, place: str, operator: Operator, classes: Mapping[str, str]) -> None:
        """Put an operator at its place, with the scopes around it, which are of these classes."""
        owner: nn.Module = self
        parts = place.split(".")
        for number, name in enumerate(parts[:-1], 1):
            if not hasattr(owner, name):
                owner.add_module(name, scope_class(classes.get(".".join(parts[:number]), "Scope"))())
            owner = owner.get_submodule(name)
        owner.add_module(parts[-1], operator)

    def order(self, steps: Sequence[Step]) -> None:
        """Set the steps, each the call of an operator by its full name, in order.

        Raises UsageError for one that takes what none before it makes.
        """
        there = {*self._sizes}
        for step in steps:
            if early := [name for name in step.takes if name not in there]:
                why = f"{step.part} takes {early[0]!r}, which no operator before it makes"
                raise UsageError(f"{self._file}: damaged: {why}")
            there.update(step.makes)
        self.current = Step("", (), (), inner=nested(steps, {*self._outputs}))

    def fix(self, name: str, x: Tensor) -> None:
        """Return this constant as the output of that name."""
        self._fixed[name] = f"output_{len(self._fixed)}"
        self.register_buffer(self._fixed[name], x)

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        """Move nothing but to the meta device, and keep dtypes: the graph has its own."""
        for dtype in dict.fromkeys(x.dtype for x in (*self.parameters(), *self.buffers())):
            made = fn(torch.empty(0, dtype=dtype, device="cpu"))
            if made.dtype != dtype:
                raise UsageError(f"--dtype: the operators of {self._file} have their own dtypes; leave it out")
            if made.device.type not in ("cpu", "meta"):
                raise UsageError(f"--device: ONNX Runtime runs {self._file} on the CPU; leave it out")
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]


def nested(steps: Sequence[Step], needed: Set[str]) -> list[Step]:
    """Put steps of one part that follow each other into one call of it. `needed` are values that must be left."""
    blocks = [[*block] for _, block in groupby(steps, lambda step: step.part.partition(".")[0])]
    last = {name: number for number, block in enumerate(blocks) for step in block for name in step.takes}
    calls = []
    for number, block in enumerate(blocks):
        later = {name for step in block for name in step.makes if last.get(name, number) > number}
        calls.append(call_of(block, later | needed))
    for number, call in enumerate(calls):
        own = dict.fromkeys((*call.takes, *call.makes))
        done = [name for name in own if name not in needed and last.get(name, number) <= number]
        calls[number] = call._replace(done=done)
    return calls


def call_of(block: Sequence[Step], needed: Set[str]) -> Step:
    """One call of a part for these steps of it. `needed` are the values that others take."""
    part, _, within = block[0].part.partition(".")
    if not within:
        return block[0]
    made = dict.fromkeys(name for step in block for name in step.makes)
    takes = dict.fromkeys(name for step in block for name in step.takes if name not in made)
    leaving = [name for name in made if name in needed]
    inner = [step._replace(part=step.part.partition(".")[2]) for step in block]
    return Step(part, [*takes], leaving, inner=nested(inner, {*leaving}))


@cache
def scope_class(name: str) -> type[Scope]:
    """The class of scopes of this name."""
    return type(name, (Scope,), {})


def identifier(name: str) -> str:
    """The name of an input as one of Python's."""
    plain = re.sub(r"\W", "_", name)
    return plain if plain.isidentifier() else f"_{plain}"


def require_sizes(file: str, name: str, sizes: Sequence[int] | None, x: Tensor) -> None:
    """Raise UsageError for a tensor that is not of the sizes (0: any) that a file declares for an input."""
    own = tree.shape_of(x)
    if sizes is not None and (len(sizes) != len(own) or any(a not in (0, b) for a, b in zip(sizes, own, strict=True))):
        takes = "x".join(str(size or "N") for size in sizes) or "a scalar"
        raise UsageError(f"{file}: takes {takes} as {name}, and gets {'x'.join(map(str, own)) or 'a scalar'}")


class Constants:
    """The constants of a graph as tensors, each made once. `file` may have them in others of its folder."""

    def __init__(self, graph: Any, file: str) -> None:
        self.protos = {one.values.name: one for one in graph.sparse_initializer} | constants_of(graph)
        self._file, self._folder = file, Path(file).parent
        self._tensors: dict[str, Tensor | None] = {}

    def tensor(self, name: str) -> Tensor | None:
        """A constant as a tensor; None for a sparse one, and for a type that PyTorch lacks."""
        if name not in self._tensors:
            proto = self.protos[name]
            dense = hasattr(proto, "data_type")
            self._tensors[name] = tensor_of(proto, self._folder, self._file) if dense else None
        return self._tensors[name]

    def operator(self, node: Any, place: str, frame: Frame, takes: Sequence[str]) -> Operator:
        """The operator of a node, with the weights and settings that it has."""
        names = [name for name in dict.fromkeys((*node.input, *captured(node))) if name in self.protos]
        tensors = {name: self.tensor(name) for name in names}
        roles = {name: role(node, name, x) for name, x in tensors.items() if x is not None}
        settings = [embedded(self.protos[name], self._folder) for name in names if not roles.get(name)]
        operator = operator_class(node.op_type)(node, frame, takes, settings)
        for name, what in roles.items():
            x = tensors[name]
            if what and x is not None:
                local = local_name(name, place, partial(hasattr, operator))
                self._tensors[name] = operator.hold(name, x, local, weight=what == "parameter")
        return operator


def network(model: Any, file: str, sizes: dict[str, Sequence[int] | None]) -> Graph:
    """The graph of a model that was read from `file`, on the meta device where that is the default one."""
    graph, frame, constants = model.graph, Frame(model, Path(file).name), Constants(model.graph, file)
    nodes = in_order((node for node in graph.node if constant(node) is None), constants.protos)
    values = {*sizes, *(name for node, _ in nodes for name in node.output)} - {"", *constants.protos}
    outputs = [one.name for one in graph.output]
    made, classes = graph_class(sizes)(frame.file, sizes, outputs), classes_of(graph.node)
    steps = []
    for (node, _), place in zip(nodes, places(nodes, constants.protos, {*dir(Graph("", {}, ()))}), strict=True):
        takes = [name for name in dict.fromkeys((*node.input, *captured(node))) if name in values]
        made.add(place, constants.operator(node, place, frame, takes), classes)
        steps.append(Step(place, takes, [name for name in node.output if name]))
    made.order(steps)
    for name in outputs:
        if name in constants.protos and (x := constants.tensor(name)) is not None:
            made.fix(name, x)
    return made


def graph_class(inputs: Sequence[str] | dict[str, Any]) -> type[Graph]:
    """A class whose forward has the graph's inputs as its parameters."""

    def forward(self: Graph, *args: Any, **kwargs: Any) -> Any:
        return Graph.forward(self, *args, **kwargs)

    names = dict.fromkeys(map(identifier, inputs))
    kinds = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", *names)]
    if len(names) == len(inputs) and "self" not in names:
        forward.__signature__ = inspect.Signature(kinds)  # type: ignore[attr-defined]
    return type("Graph", (Graph,), {"forward": forward})
