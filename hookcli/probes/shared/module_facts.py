"""Facts about modules: their parameters and inputs, behaviour in training mode, and work that other code does."""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.checkpoint import CheckpointFunction

from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.hooks.tensor_origins import TensorOrigins, version_of
from hookcli.hooks.torch_private.modules import BatchNorm, InstanceNorm, part_tables, unpacked
from hookcli.probes.shared.inventory_part import InventoryPart
from hookcli.table.names import around
from hookcli.tensors import tree
from hookcli.tensors.chunks import fetched
from hookcli.tensors.non_finite import Kinds, kinds_of

_FUSED = "scaled_dot_product_attention"
HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads")
"""The attributes of modules, and of configurations, that hold the number of heads."""


def acts_in_training(module: nn.Module) -> bool:
    """True if the module behaves differently in training mode: drops values, or updates running statistics."""
    if isinstance(module, (BatchNorm, InstanceNorm)):
        return module.track_running_stats and module.running_mean is not None
    if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
        return bool(module.dropout) and getattr(module, "num_layers", 2) > 1
    if any(word in type(module).__name__ for word in ("Drop", "Stochastic")):
        rate = getattr(module, "p", getattr(module, "drop_prob", None))
        return isinstance(rate, (int, float)) and rate > 0
    return False


def used_without_call(fqn: str, model: nn.Module) -> bool:
    """True if the code around a layer does the layer's work without calling it.

    The code reads a dropout's `p`, or passes a `dropout_p` to PyTorch's fused attention in place of a branch that would
    call the layer; other layers of that branch are the fused attention's work, too. Read from the methods of the
    modules around the layer, except their constructors. In eval mode a TransformerEncoderLayer's fused path calls none
    of its parts.
    """
    *path, name = fqn.split(".")
    owners: list[object] = [type(model.get_submodule(".".join(path[:depth]))) for depth in range(len(path) + 1)]
    drops = "Drop" in type(model.get_submodule(fqn)).__name__
    for owner in owners:
        methods = _words(owner)
        fused = any(_FUSED in names and (not drops or "dropout_p" in keywords) for names, keywords in methods)
        if any(name in names and (fused or (drops and "p" in names)) for names, _ in methods):
            return True
    layers = (model.get_submodule(place) for place in around(fqn))
    return any(isinstance(layer, nn.TransformerEncoderLayer) and not layer.training for layer in layers)


@lru_cache(maxsize=64)
def _words(kind: type) -> list[tuple[frozenset[str], frozenset[str]]]:
    """For each method, the names of attributes and globals that it reads, and the keywords that it passes."""
    words = []
    for method in _methods(kind):
        codes = list(_nested(method))
        read = [step for code in codes for step in dis.get_instructions(code) if step.opname.startswith("LOAD_")]
        names = frozenset(step.argval for step in read if isinstance(step.argval, str))
        constants = [constant for code in codes for constant in code.co_consts if isinstance(constant, tuple)]
        words.append((names, frozenset(word for constant in constants for word in constant if isinstance(word, str))))
    return words


def _methods(kind: type) -> Iterator[CodeType]:
    """The methods that instances have, and those that these extend."""
    done = {"__init__"}
    for owner in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        for name, value in vars(owner).items():
            function: object = inspect.unwrap(value) if callable(value) else getattr(value, "fget", None)
            if isinstance(function, FunctionType) and name not in done:
                done |= set() if "super" in function.__code__.co_names else {name}
                yield function.__code__


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """Elements of all parameters in the module, each tensor once, packed ones too; and of those that require grad."""
    sizes = [(p.numel(), p.requires_grad) for p in module.parameters() if not is_lazy(p)]
    packed = sum(x.numel() for _, x in packed_parameters(module))
    return sum(n for n, _ in sizes) + packed, sum(n for n, trained in sizes if trained)


def tied_names(model: nn.Module) -> dict[str, str]:
    """The names of parameters that have another name before, with that name; or of the module that has both."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    waiting: list[tuple[str, nn.Module]] = [("", model)]
    while waiting:
        owner, module = waiting.pop()
        held = [(name, one) for table in part_tables(module) for name, one in table.items() if one is not None]
        again = []
        for name, one in held:
            fqn = f"{owner}.{name}" if owner else name
            known = first.setdefault(id(one), fqn)
            if known == fqn:
                again += [(fqn, one)] if isinstance(one, nn.Module) else []
            elif isinstance(one, nn.Parameter) or (isinstance(one, nn.Module) and any(True for _ in one.parameters())):
                tied[fqn] = known
        waiting += reversed(again)
    return tied


def training_bytes(module: nn.Module) -> dict[str, int]:
    """The bytes of all gradients, and of AdamW's state: two moments, and a step count in float32 for each tensor.

    Nothing for a module whose parameters are all frozen.
    """
    sizes = [p.numel() * p.element_size() for p in module.parameters() if p.requires_grad and not is_lazy(p)]
    if not sizes and count_parameters(module)[0]:
        return {}
    return {"grad_bytes": sum(sizes), "optimizer_bytes": 2 * sum(sizes) + 4 * len(sizes)}


def packed_parameters(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Weights and biases of quantized modules, which are not parameters for PyTorch but packed for their kernels."""
    for fqn, part in module.named_modules():
        kind: type = type(part)
        if ".quantized." in kind.__module__ and not kind.__name__.endswith("PackedParams"):  # which a Linear has inside
            yield from ((f"{fqn}.{name}" if fqn else name, x) for name, x in unpacked(part).items())


def containers(model: nn.Module) -> list[str]:
    """The fqns of modules without their own forward, such as ModuleList, and of the model's lone child.

    The lone child of a lone child, too; but not one without parts, since then nothing would be left to show.
    """
    lists = [
        fqn for fqn, part in model.named_modules() if fqn and getattr(type(part), "forward", None) is nn.Module.forward
    ]
    return list(dict.fromkeys([*_lone(model), *lists]))


def _lone(model: nn.Module, fqn: str = "") -> Iterator[str]:
    children = list(model.named_children())
    if len(children) == 1 and any(children[0][1].children()):
        name = f"{fqn}.{children[0][0]}".lstrip(".")
        yield name
        yield from _lone(children[0][1], name)


class FirstCalls(InventoryPart):
    """Rows of kind `called`, for each module's first call."""

    def __init__(self, session: HookSession) -> None:
        super().__init__(session)
        self._called: dict[str, dict[str, object]] = {}

    def enter(self, event: HookEvent) -> None:
        if event.call == 0 and event.fqn not in self._called:
            self._called[event.fqn] = _described(event, tree.received(event.args, event.kwargs))

    def rows(self) -> list[dict[str, object]]:
        return [*self._called.values()]


class ModuleInputs(InventoryPart):
    """Rows of kind `received`, for each call with NaN or infinite inputs.

    `normalized`: a module with a bias whose output went to one that normalizes each channel by itself, named `by`.
    Values are read back only for the rows.
    """

    def __init__(self, session: HookSession) -> None:
        super().__init__(session)
        self._kinds: list[tuple[dict[str, Any], list[Tensor]]] = []
        self._not_finite: dict[tuple[str, int], dict[str, object]] = {}
        self._last = ""
        self._outputs = TensorOrigins(())
        self._biased: list[tuple[str, int]] = []
        self._normalized: dict[str, dict[str, object]] = {}

    def enter(self, event: HookEvent) -> None:
        tensors = tree.received(event.args, event.kwargs)
        # A normalization that subtracts each channel's own mean in this call, and with it what a bias added.
        module = event.module
        centers = isinstance(module, (BatchNorm, InstanceNorm)) and (module.training or module.running_mean is None)
        if isinstance(module, nn.GroupNorm):
            centers = module.num_groups == module.num_channels
        if centers:
            for x in tensors[:1]:
                fqn, version = self._biased[number] if (number := self._outputs.of(x)) is not None else ("", None)
                if version == version_of(x):
                    self._normalized[fqn] = {"kind": "normalized", "fqn": fqn, "by": event.fqn}
        kinds = [flags for x in tensors if (flags := kinds_of(x)) is not None]
        if kinds:
            caller = self.session.calls.caller()
            row = {"kind": "received", "fqn": event.fqn, "call": event.call, "after": self._last}
            row |= {"caller": caller.hooked.fqn, "caller_call": caller.number} if caller else {"caller": None}
            self._kinds.append((row, kinds))

    def leave(self, event: HookEvent) -> None:
        if event.module is None:
            return
        self._last = event.fqn
        if any(name == "bias" for name, _ in event.module.named_parameters(recurse=False)):
            for _, x in tree.leaves(event.output):
                self._outputs.made(x, len(self._biased))
                self._biased.append((event.fqn, version_of(x)))

    def batch_ended(self) -> None:
        """Read back what the batch has shown, and keep the first call of a place that had bad inputs."""
        flags = iter(fetched([each for _, kinds in self._kinds for each in kinds]))
        for values, kinds in self._kinds:
            of_call = [Kinds(*next(flags)[0]) for _ in kinds]
            if any(any(each.present()) and not each.is_mask for each in of_call):
                self._not_finite.setdefault((values["fqn"], values["call"]), values)
        self._kinds.clear()
        self._outputs = TensorOrigins(())
        self._biased.clear()

    def rows(self) -> list[dict[str, object]]:
        self.batch_ended()
        return [*self._not_finite.values(), *self._normalized.values()]


def _described(event: HookEvent, received: list[Tensor]) -> dict[str, object]:
    module = event.module
    assert module is not None
    parameters = [p for p in module.parameters(recurse=False) if not is_lazy(p)]
    return {
        "kind": "called",
        "fqn": event.fqn,
        "type": tree.type_text(module),
        "training": module.training,
        "acts": acts_in_training(module),
        "params": sum(p.numel() for p in parameters),
        "trainable": sum(p.numel() for p in parameters if p.requires_grad),
        "receives_grad": any(x.requires_grad for x in received),
        "gradients_off": "" if torch.is_grad_enabled() else "checkpoint" if in_checkpoint() else "no_grad",
    }


def in_checkpoint(*, again: bool = False) -> bool:
    """True in the forward of a reentrant checkpoint, in which gradients are off; or in its backward, which runs it
    `again`."""
    code = (CheckpointFunction.backward if again else CheckpointFunction.forward).__code__
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
