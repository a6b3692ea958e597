"""Channels of an activation that are constant, whatever the input."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.hooks.tensor_origins import TensorOrigins
from hookcli.hooks.torch_private.autograd import saved_result
from hookcli.hooks.torch_private.modules import Convolution, Norm
from hookcli.probes.shared.inventory_part import InventoryPart, numbers_of
from hookcli.tensors import tree
from hookcli.tensors.torch_private import version
from hookcli.tensors.weak import WeakIds

# After one of these, features are in the last dimension, after one of those in the second; others leave them there.
FEATURES_SECOND = (Convolution, Norm, nn.GroupNorm)
FEATURES_LAST = (nn.Linear, nn.Bilinear, nn.LayerNorm, nn.Embedding, nn.MultiheadAttention, nn.RNNBase)
_RANDOM = ("Drop", "Stochastic")  # what zeroes by chance
_TORCH = "torch.nn.modules."
_BOUNDS: dict[type[nn.Module], tuple[float, float]] = {
    nn.Sigmoid: (0.0, 1.0),
    nn.Hardsigmoid: (0.0, 1.0),
    nn.Tanh: (-1.0, 1.0),
    nn.Softsign: (-1.0, 1.0),
}
_FUNCTION_BOUNDS = {
    **dict.fromkeys(("sigmoid", "sigmoid_", "hardsigmoid"), (0.0, 1.0)),
    **dict.fromkeys(("tanh", "tanh_", "softsign"), (-1.0, 1.0)),
}
_ACTIVATIONS = {
    *_FUNCTION_BOUNDS,
    *("relu", "relu_", "relu6", "hardtanh", "hardtanh_", "threshold", "threshold_", "leaky_relu", "leaky_relu_"),
    *("elu", "elu_", "celu", "selu", "gelu", "silu", "mish", "hardswish", "softplus", "logsigmoid"),
}
"""Operators that are activations, by the names of torch.nn's activation modules."""
_FUNCTIONS_SECOND = ("conv", "batch_norm", "instance_norm", "group_norm")
_FUNCTIONS_LAST = ("linear", "matmul", "layer_norm", "rms_norm", "embedding", "bmm", "einsum")
_NEAR = 0.01  # of the range: there the derivative of a sigmoid is a 25th of its greatest


# ReLUs called as functions, by the autograd nodes that they leave, and what may stand between one and the next module.
_RELUS = ("ReluBackward0", "HardtanhBackward0")
_BETWEEN = (
    *("ViewBackward0", "ReshapeAliasBackward0", "UnsafeViewBackward0", "TransposeBackward0", "PermuteBackward0"),
    *("MaxPool2DWithIndicesBackward0", "AvgPool2DBackward0", "MeanBackward1", "AdaptiveAvgPool2DBackward0"),
)
_FAR = 4  # steps from a module's input back to a ReLU
_TAKEN = "hookcli: its result was looked at"  # in the metadata of a node, which lives no longer for that


class DeadUnits(InventoryPart):
    """Rows of kind `units`: how many channels of an activation are dead or saturated, of each call.

    A channel counts if it is dead (or saturated) in every batch, and in every turn of a loop: calls that follow another
    call of the same layer are one. These outputs count as activations: the outputs of
    torch.nn's activation modules; where operators are watched, of activation functions; and of your own
    modules without parameters, if the output was not made by one of the module's parts. An input counts if autograd's
    graph shows that it comes from a ReLU that was called as a function, and of which there is no row yet.
    """

    def __init__(self, session: HookSession) -> None:
        super().__init__(session)
        self._returned: WeakIds[Tensor, int] = WeakIds()  # output -> its version when a module returned it
        self._features_last = False
        self._layer = "", 0  # of those that make features, the module that was called last, and which call that was
        self._turns: dict[tuple[object, ...], tuple[int, int]] = {}  # a call after a layer, and the layer's call
        self._origins = TensorOrigins(())
        self._made: list[tuple[object, ...]] = []  # the keys of activations, by the numbers of their origins
        self._outputs: set[tuple[object, ...]] = set()
        self._units: dict[tuple[object, ...], tuple[dict[str, Any], list[Tensor]]] = {}

    def enter(self, event: HookEvent) -> None:
        """Take in what a module is called with, where no module returned it but a ReLU did."""
        for path, x in tree.arguments(event.args, event.kwargs):
            if tree.is_plain(x) and not x.is_inference() and self._returned.get(x) != version(x):
                result = self._result_of_relu(x)
                if result is not None and result.dim() > 1 and result.numel() and tree.is_plain(result):
                    self._take(event, path, result.detach(), received=True)

    def _result_of_relu(self, x: Tensor) -> Tensor | None:
        """The result of the ReLU that x comes from, by operations that keep channels as they are; None without one."""
        node: Any = x.grad_fn
        for step in range(_FAR):
            if node is None or _TAKEN in node.metadata or not (node.name() in _RELUS or node.name() in _BETWEEN):
                return None
            if node.name() in _RELUS:
                _mark(node)
                try:
                    return x if step == 0 else saved_result(node)
                except RuntimeError:  # changed in place since
                    return None
            node = node.next_functions[0][0]
        return None

    def leave(self, event: HookEvent) -> None:
        if event.operator is not None:
            self._see_operator(event, event.operator.name)
            return
        module = event.module
        assert module is not None
        if not event.fqn:  # which activations the model returns, as they are or in another view
            for _, x in tree.leaves(event.output):
                if (number := self._origins.of(x)) is not None:
                    self._outputs.add(self._made[number])
        if isinstance(module, (*FEATURES_LAST, *FEATURES_SECOND)):
            self._features_last = isinstance(module, FEATURES_LAST)
            self._layer = event.fqn, event.call
        for path, x in tree.leaves(event.output):
            if not _may_die(x):
                continue
            new = all(self._returned.get(y) != version(y) for y in (x, tree.base(x)))  # nor a view of a part's
            self._returned[x] = version(x)
            if new and event.fqn and x.dim() > 1 and x.numel() and _is_activation(module):
                _mark(x.grad_fn)
                self._take(event, path, x.detach())

    def _see_operator(self, event: HookEvent, name: str) -> None:
        if name.startswith((*_FUNCTIONS_SECOND, *_FUNCTIONS_LAST)):
            self._features_last = name.startswith(_FUNCTIONS_LAST)
        if name not in _ACTIVATIONS:
            return
        for path, x in tree.leaves(event.output):
            if _may_die(x):
                self._returned[x] = version(x)
                _mark(x.grad_fn)
                if x.dim() > 1 and x.numel():
                    self._take(event, path, x.detach())

    def _take(self, event: HookEvent, path: str, x: Tensor, *, received: bool = False) -> None:
        channel = x.dim() - 1 if self._features_last else 1
        others = [dim for dim in range(x.dim()) if dim != channel]
        low, high = x.amin(others), x.amax(others)
        marks = [(low == 0) & (high == 0)]
        saturated = None if received else _saturated(event, x, high, low, others)
        layer, turn = self._layer
        call, first = self._turns.setdefault((event.fqn, path, received, layer), (event.call, turn))
        if turn == first:  # no later turn of a loop
            call = event.call
        values = {
            "kind": "units",
            "fqn": event.fqn,
            "type": event.operator.name if event.operator else type(event.module).__name__,
            "call": call,
            "path": path,
            "channels": x.size(channel),
            "positions": x.numel() // x.size(channel),
            "items": x.size(0),
            "received": received,
        }
        marks += [] if saturated is None else [saturated]
        key = event.fqn, call, path, received, x.size(channel)
        self._origins.made(x, len(self._made))
        self._made.append(key)
        if key in self._units:  # in an earlier batch or turn: dead is what is dead in all
            before, in_all = self._units[key]
            values["positions"] += before["positions"]
            values["items"] = before["items"] + (x.size(0) if turn == first else 0)
            marks = [a & b for a, b in zip(in_all, marks, strict=True)]
        self._units[key] = values, marks

    def batch_ended(self) -> None:
        """Forget which tensors of the batch are activations."""
        self._origins = TensorOrigins(())
        self._made.clear()

    def rows(self) -> list[dict[str, object]]:
        numbers = iter(numbers_of([mark.sum() for _, marks in self._units.values() for mark in marks]))
        rows = []
        for key, (values, marks) in self._units.items():
            dead = next(numbers)
            values["returned"] = key in self._outputs
            rows.append(values | {"dead": dead, "saturated": next(numbers) if marks[1:] else None})
        return rows


def _may_die(x: Tensor) -> bool:
    """True for numbers that vary, of a tensor whose version is known."""
    return tree.is_plain(x) and x.is_floating_point() and not x.is_inference()


def _is_activation(module: nn.Module) -> bool:
    name, place = type(module).__name__, type(module).__module__
    if any(word in name for word in _RANDOM):
        return False
    if place.startswith(_TORCH):
        return place == f"{_TORCH}activation"
    return not any(True for _ in module.parameters(recurse=False))  # one that scales by zero on purpose is not dead


def _saturated(event: HookEvent, x: Tensor, high: Tensor, low: Tensor, others: list[int]) -> Tensor | None:
    """The channels that are at a bound for every input; None for an activation without bounds."""
    module, name = event.module, event.operator.name if event.operator else ""
    if isinstance(module, nn.ReLU6) or name == "relu6":  # a Hardtanh by inheritance; one at 0 is dead, not saturated
        return low >= 6.0 * (1 - _NEAR)
    bounds = _FUNCTION_BOUNDS.get(name) or next((b for kind, b in _BOUNDS.items() if isinstance(module, kind)), None)
    if isinstance(module, nn.Hardtanh):
        bounds = module.min_val, module.max_val
    elif name.startswith("hardtanh"):
        arguments = dict(zip(("min_val", "max_val"), event.args[1:], strict=False)) | dict(event.kwargs)
        bounds = arguments.get("min_val", -1.0), arguments.get("max_val", 1.0)
    if bounds is None:
        return None
    least, most = bounds
    middle, span = (least + most) / 2, most - least
    return (x - middle).abs().amin(others) >= span * (0.5 - _NEAR)


def _mark(node: Any) -> None:
    """Note on a node of autograd's graph, if there is one, that its result was looked at."""
    if node is not None:
        node.metadata[_TAKEN] = True
