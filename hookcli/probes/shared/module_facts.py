"""Facts about modules: their parameters, their behaviour in training mode, and layers whose work other code does."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import CodeType, FunctionType

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookcli.hooks.torch_private.modules import BatchNorm, InstanceNorm, unpacked

_FUSED = "scaled_dot_product_attention"


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
    modules around the layer, except their constructors.
    """
    *path, name = fqn.split(".")
    owners: list[object] = [type(model.get_submodule(".".join(path[:depth]))) for depth in range(len(path) + 1)]
    drops = "Drop" in type(model.get_submodule(fqn)).__name__
    for names, keywords in (method for owner in owners for method in _words(owner)):
        fused = _FUSED in names and (not drops or "dropout_p" in keywords)
        if name in names and (fused or (drops and "p" in names)):
            return True
    return False


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
    packed = sum(x.numel() for x in packed_parameters(module))
    return sum(n for n, _ in sizes) + packed, sum(n for n, trained in sizes if trained)


def training_bytes(module: nn.Module) -> dict[str, int]:
    """The bytes of all gradients, and of AdamW's state: two moments, and a step count in float32 for each tensor."""
    sizes = [p.numel() * p.element_size() for p in module.parameters() if p.requires_grad and not is_lazy(p)]
    return {"grad_bytes": sum(sizes), "optimizer_bytes": 2 * sum(sizes) + 4 * len(sizes)}


def packed_parameters(module: nn.Module) -> Iterator[Tensor]:
    """Weights and biases of quantized modules, which are no parameters for PyTorch but packed for their kernels."""
    part: object
    for part in module.modules():
        kind = type(part)
        if ".quantized." in kind.__module__ and not kind.__name__.endswith("PackedParams"):  # which a Linear has inside
            yield from unpacked(part)


def count_elements(tensors: Iterable[Tensor]) -> int:
    """Elements of these tensors, as far as they have a size yet."""
    return sum(x.numel() for x in tensors if not is_lazy(x))


def containers(model: nn.Module) -> list[str]:
    """The fqns of modules without a forward of their own, such as ModuleList, and of the model's lone child.

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
