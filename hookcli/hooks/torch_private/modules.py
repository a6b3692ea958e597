"""Private names of nn.Module: tables of parts and hooks, the flag of backward hooks, abstract classes of layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

from hookcli.hooks.torch_private.autograd import post_accumulate_grad_hooks, tensor_hooks
from hookcli.tensors import tree
from hookcli.tensors.torch_private import getter, private

_MODULE = nn.Module()

# Parts.

PARTS = ("_parameters", "_buffers", "_modules")
"""The attributes in which a module holds its parameters, buffers and submodules."""
_EXCHANGED = "parameters, buffers and submodules that a model replaces while it runs are not put back"
_PARTS: list[Callable[[nn.Module], dict[str, object]]] = [
    getter(_MODULE, name, lambda module: {}, _EXCHANGED) for name in PARTS
]


def part_tables(module: nn.Module) -> list[dict[str, Any]]:
    """The tables of a module's parameters, buffers and submodules; changing them changes the module."""
    return [table(module) for table in _PARTS]


def submodules(module: nn.Module) -> Mapping[str, nn.Module | None] | None:
    """A module's own submodules by name, without asking its class; None before its constructor has run."""
    parts: Mapping[str, nn.Module | None] | None = vars(module).get(PARTS[2])
    return parts


def all_parts(module: nn.Module) -> list[nn.Module]:
    """A module and all that it contains, each once, without asking for their hashes, which some classes lack."""
    parts, left = {id(module): module}, [module]
    while left:
        for part in (submodules(left.pop()) or {}).values():
            if part is not None and id(part) not in parts:
                parts[id(part)] = part
                left.append(part)
    return [*parts.values()]


def hold(module: nn.Module, tensors: Iterable[Tensor]) -> None:
    """Make these tensors a module's parameters, as they are: `register_parameter` takes only Parameters."""
    _PARTS[0](module).update({str(number): tensor for number, tensor in enumerate(tensors)})


# Hooks.

_MODULE_TABLES = {
    "forward_pre": "_forward_pre_hooks",
    "forward": "_forward_hooks",
    "full_backward_pre": "_backward_pre_hooks",
    "full_backward": "_backward_hooks",
    "state_dict_pre": "_state_dict_pre_hooks",
    "state_dict_post": "_state_dict_hooks",
    "load_state_dict_pre": "_load_state_dict_pre_hooks",
    "load_state_dict_post": "_load_state_dict_post_hooks",
}
_GLOBAL_TABLES = {
    **{kind: f"_global{table}" for kind, table in list(_MODULE_TABLES.items())[:4]},
    "module_registration": "_global_module_registration_hooks",
    "parameter_registration": "_global_parameter_registration_hooks",
    "buffer_registration": "_global_buffer_registration_hooks",
}
_OPTIMIZER_TABLES = {
    "optimizer_step_pre": "_global_optimizer_pre_hooks",
    "optimizer_step_post": "_global_optimizer_post_hooks",
}
_FLAGS = {"with_kwargs": "_with_kwargs", "always_call": "_always_called"}
_FLAGGED = {"forward_pre": ("with_kwargs",), "forward": ("with_kwargs", "always_call")}

Table = tuple[str, Mapping[int, object], Mapping[str, Collection[int]]]
"""A kind of hook, its hooks by id, and for each flag the ids of the hooks that have it."""


def _checked(owner: object, tables: Mapping[str, str], flagged: Mapping[str, Iterable[str]]) -> None:
    """Note which of these tables, and of the tables of their flags, this PyTorch lacks."""
    for kind, table in tables.items():
        private(owner, table, None, f"hooks of the kind {kind} are not listed")
        for flag in flagged.get(kind, ()):
            private(owner, table + _FLAGS[flag], None, f"the flag {flag} of {kind} hooks is not listed")


_checked(_MODULE, _MODULE_TABLES, _FLAGGED)
_checked(torch_module, _GLOBAL_TABLES, {"forward": _FLAGGED["forward"]})
_checked(torch_optimizer, _OPTIMIZER_TABLES, {})


def module_tables(module: nn.Module) -> Iterator[Table]:
    """The hooks of a module, one table per kind; full and legacy backward hooks share one."""
    return _tables(module, _MODULE_TABLES)


def global_tables() -> Iterator[Table]:
    """The global hooks on modules."""
    return _tables(torch_module, _GLOBAL_TABLES)


def optimizer_tables() -> Iterator[Table]:
    """The global hooks on optimizers."""
    return _tables(torch_optimizer, _OPTIMIZER_TABLES)


def tensor_tables(tensor: Tensor) -> Iterator[Table]:
    """The hooks of a tensor."""
    yield "tensor_grad", tensor_hooks(tensor) or {}, {}
    yield "post_accumulate_grad", post_accumulate_grad_hooks(tensor) or {}, {}


def _tables(owner: object, tables: Mapping[str, str]) -> Iterator[Table]:
    for kind, table in tables.items():
        flags = {flag: getattr(owner, table + suffix, ()) for flag, suffix in _FLAGS.items()}
        yield kind, getattr(owner, table, None) or {}, flags


_WrappedHook = private(torch_module, "_WrappedHook", (), "private registrations of state_dict hooks are not marked")


def unwrapped(hook: object) -> tuple[object, bool]:
    """A hook on state dicts as it was registered, and whether a private method registered it."""
    if isinstance(hook, _WrappedHook):
        return hook.hook, not hook.with_module
    return hook, not getattr(hook, "_from_public_api", False)


forward_hooks: Callable[[nn.Module], Mapping[int, object]] = getter(
    _MODULE, "_forward_hooks", lambda module: {}, "the failure of a recorded forward is noticed with the next call"
)
"""A module's forward hooks by id, in the order of calling."""


_forward_pre_hooks: Callable[[nn.Module], Mapping[int, object]] = getter(
    _MODULE, "_forward_pre_hooks", lambda module: {0: None}, "each call of a model takes longer"
)


def has_forward_hooks(module: nn.Module) -> bool:
    """True if forward hooks are registered on a module: they may keep the arguments that PyTorch gives them."""
    return bool(forward_hooks(module) or _forward_pre_hooks(module))


_OTHER_TABLES = [_GLOBAL_TABLES[kind] for kind in ("full_backward_pre", "full_backward", "forward")]


def other_global_hooks(ours: int) -> bool:
    """True if there are global hooks on modules besides the forward pre-hook `ours`: torch.compile warns of any."""
    if any(getattr(torch_module, table, None) for table in _OTHER_TABLES):
        return True
    return any(number != ours for number in getattr(torch_module, _GLOBAL_TABLES["forward_pre"], ()))


LEFT_IDS = "_global_forward_hooks_with_kwargs"


def ids_left() -> Collection[int]:
    """The ids of removed global hooks in `LEFT_IDS`, which PyTorch does not clear."""
    table, flags = next((table, flags) for kind, table, flags in global_tables() if kind == "forward")
    return set(flags["with_kwargs"]) - table.keys()


# Full and legacy backward hooks exclude each other: a flag on the module says which it has had, and stays.

FULL_FLAG, GLOBAL_FULL_FLAG = "_is_full_backward_hook", "_global_is_full_backward_hook"
_UNKNOWN = "full and legacy backward hooks are not told apart, and a flag that they leave is not put back"

full_backward: Callable[[nn.Module], bool | None] = getter(_MODULE, FULL_FLAG, lambda module: None, _UNKNOWN)
"""True for a module that has, or had, full backward hooks, False for legacy ones, None for neither."""
private(torch_module, GLOBAL_FULL_FLAG, None, _UNKNOWN)


def global_full_backward() -> bool | None:
    """The same flag for global hooks."""
    return getattr(torch_module, GLOBAL_FULL_FLAG, None)


def put_back_full_backward(module: nn.Module | None) -> Callable[[], None]:
    """A function that puts the flag back to what it is now; None: the flag for global hooks.

    PyTorch leaves the flag on modules whose hooks are gone, and refuses hooks of the other sort.
    """
    if module is None:
        return partial(setattr, torch_module, GLOBAL_FULL_FLAG, global_full_backward())
    return partial(setattr, module, FULL_FLAG, full_backward(module))


# Abstract classes.

_DERIVED = "layers that derive from it directly are not known as such"
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCES = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

Convolution: Any = private("torch.nn.modules.conv", "_ConvNd", _CONVS, _DERIVED)
BatchNorm: Any = private("torch.nn.modules.batchnorm", "_BatchNorm", _NORMS, _DERIVED)
InstanceNorm: Any = private("torch.nn.modules.instancenorm", "_InstanceNorm", _INSTANCES, _DERIVED)
Norm: Any = private("torch.nn.modules.batchnorm", "_NormBase", (*_NORMS, *_INSTANCES), _DERIVED)
"""Classes, for isinstance: all convolutions, all batch norms, all instance norms, and both kinds of norms."""


def unpacked(module: nn.Module) -> dict[str, Tensor]:
    """The weights and biases of a quantized module by name, which PyTorch packs for a kernel; empty if it has none."""
    kind = type(module)
    try:
        if any(callable(getattr(kind, bias, None)) for bias in ("bias", "get_bias")):
            weights = private(module, "_weight_bias", tuple, "parameters of quantized layers are not counted")()
        elif callable(getattr(kind, "weight", None)):  # of embeddings
            weight: Any = module.weight()  # type: ignore[operator]  # the class is one of PyTorch's
            weight.held_by = module  # whose memory it refers to without keeping it
            weights = (weight,)
        else:
            return {}
    except (AttributeError, RuntimeError):  # not packed yet
        return {}
    if not isinstance(weights, tuple):  # of recurrent layers: {"weight": {"weight_ih_l0": ...}, "bias": ...}
        return {path.rpartition('["')[2].removesuffix('"]'): x for path, x in tree.leaves(weights)}
    return {name: x for name, x in zip(("weight", "bias"), weights, strict=False) if isinstance(x, Tensor)}


STATE_VERSIONS = "_metadata"
"""The attribute of a state dict with the versions of its modules, by which `load_state_dict` reads older ones."""
