"""Restores a model, its inputs and the random number generators after a run."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookcli.hooks.torch_private.autograd import keeping_versions
from hookcli.hooks.torch_private.modules import part_tables
from hookcli.tensors import tree
from hookcli.tensors.chunks import bits, flat
from hookcli.tensors.random_state import accelerators, random_states, set_random_states
from hookcli.tensors.torch_private import is_view

T = TypeVar("T")
_ROOM = 4  # copies stay on an accelerator if its free memory is this many times their size


@contextmanager
def preserved(model: nn.Module, inputs: Any, *, parameters: bool = True) -> Iterator[None]:
    """Put the model, the inputs and the random number generators back as they were, bit for bit.

    Restored are the model's tables of parameters, buffers and submodules, the values in them, `.grad`, `requires_grad`
    and training modes; the values of the inputs' tensors; and PyTorch's, Python's and numpy's generators. Other
    attributes of modules stay as the run left them, and lazy modules stay initialized. In the block every `.grad` is
    None. `parameters=False` leaves out the values of parameters, whose copies double their memory.
    """
    devices = accelerators(model, inputs)
    states = random_states(devices)
    modules = [_Module(module) for module in model.modules()]
    leaves = tree.tensors(inputs)
    tensors = [*(model.parameters() if parameters else ()), *model.buffers(), *leaves]
    kept = SavedValues(tensors)
    gradients = [(p, p.grad, p.requires_grad) for p in model.parameters()]

    def restore_gradients() -> None:
        for parameter, grad, requires_grad in gradients:
            parameter.grad = grad
            if parameter.requires_grad != requires_grad:
                parameter.requires_grad_(requires_grad)

    with ExitStack() as stack:
        stack.callback(set_random_states, devices, states)
        # Version counters are kept, too: otherwise backward would refuse the caller's graphs.
        counted = {id(x): x for x in tensors if not (is_lazy(x) or x.is_inference())}
        stack.enter_context(keeping_versions(tuple(counted.values())))
        stack.callback(restore_gradients)
        stack.callback(kept.put_back)
        for module in modules:
            stack.callback(module.put_back)
        for parameter, _, _ in gradients:
            parameter.grad = None
        yield


@contextmanager
def preserved_with_attributes(model: nn.Module, inputs: Any) -> Iterator[None]:
    """As `preserved`; also puts back modules' other attributes, and what containers there hold.

    Tensors of another forward that the model keeps there are cut off its graph meanwhile: a backward would free that.
    """
    attributes = [(module, dict(vars(module))) for module in model.modules()]
    own = [value for _, values in attributes for key, value in values.items() if key not in _TABLES]
    copies = [(x, x.copy()) for x in _containers([*own])]
    items = [*own, *(item for x, _ in copies for item in _items(x))]
    try:
        with preserved(model, (inputs, [item for item in items if isinstance(item, Tensor)])):
            for module, _ in attributes:
                _cut(vars(module))
            for x, _ in copies:
                _cut(x)
            yield
    finally:
        for module, values in attributes:
            _put_back_attributes(vars(module), values)
        for x, copy in copies:
            x.clear()
            x.extend(copy) if isinstance(x, (list, deque)) else x.update(copy)


def _put_back_attributes(now: dict[str, Any], before: dict[str, Any]) -> None:
    for key in [*now]:
        if key not in before:
            del now[key]
    now.update((key, value) for key, value in before.items() if now.get(key, now) is not value)


def _items(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _cut(holder: Any) -> None:
    held = holder.items() if isinstance(holder, dict) else () if isinstance(holder, set) else enumerate(holder)
    for key, item in [*held]:
        if isinstance(item, (Tensor, tuple)) and key not in _TABLES:
            cut = tree.replace(item, lambda _, x: x.detach().requires_grad_() if x.grad_fn is not None else x)
            if cut is not item:
                holder[key] = cut


def _containers(todo: list[Any]) -> list[Any]:
    """The lists, dicts, sets and deques among these, at any depth; not those in other objects, such as a trainer."""
    containers: dict[int, Any] = {}
    while todo:
        x = todo.pop()
        if id(x) in containers or not (type(x) in _CONTAINERS or isinstance(x, tuple)):
            continue
        containers[id(x)] = x
        todo += _items(x)
    return [x for x in containers.values() if not isinstance(x, tuple)]


_TABLES = frozenset(vars(nn.Module()))
_CONTAINERS = frozenset((list, dict, set, deque, defaultdict, OrderedDict, Counter))


def set_mode(model: nn.Module, training: bool) -> None:
    """Call `model.train(training)`; parts made by torch.export refuse, and keep the mode that they were exported in."""
    try:
        model.train(training)
    except NotImplementedError:
        for module in model.modules():
            if "train" not in vars(module):
                module.training = training


class _Module:
    """A module's training mode and its tables of parameters, buffers and submodules, at the time of its creation."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._training = module.training
        scripted = isinstance(module, torch.jit.ScriptModule)  # its tables never change
        tables = [] if scripted else part_tables(module)
        # PyTorch exchanges sharded parameters in the course of a run.
        sharded = any(p is not None and tree.is_sharded(p) for table in tables[:1] for p in table.values())
        self._tables = [] if sharded else [(table, dict(table)) for table in tables]
        self._attributes = dict(vars(module)) if self._tables else {}

    def put_back(self) -> None:
        """Restore both, and detach buffers that the run made part of a graph."""
        if self._module.training != self._training:
            self._module.training = self._training
        for table, before in self._tables:
            if [*table] == [*before] and all(table[name] is part for name, part in before.items()):
                continue
            names = {*table, *before}
            table.clear()
            table.update(before)
            for name in names:  # the run may have given names of plain attributes to parts
                if name in self._attributes:
                    vars(self._module)[name] = self._attributes[name]
                else:
                    vars(self._module).pop(name, None)
        for _, before in self._tables[1:2]:
            for buffer in before.values():
                if buffer is not None and buffer.grad_fn is not None and not is_view(buffer):
                    buffer.detach_()


def without_room(tensors: Iterable[Tensor]) -> set[torch.device]:
    """The accelerators without enough free memory for copies of these tensors."""
    sizes: Counter[torch.device] = Counter()
    for x in tensors:
        if x.device.type != "cpu":
            sizes[x.device] += x.numel() * x.element_size()
    scarce = set(sizes)
    for device, size in sizes.items():
        with suppress(Exception):  # not every backend says how much is free
            if torch.accelerator.get_memory_info(device)[0] >= _ROOM * size:
                scarce.remove(device)
    return scarce


class SavedValues:
    """The values of tensors at the time of its creation.

    Lazy parameters and tensors on the meta device have no values. Copies stay on a tensor's device, or go to the CPU if
    an accelerator has little memory left. A tensor whose `.data` was exchanged gets its own memory back.
    """

    def __init__(self, tensors: Iterable[Tensor | None]) -> None:
        plain = {id(part): part for x in tensors if x is not None for part in _plain(x)}
        scarce = without_room(plain.values())
        self._copies: list[tuple[Tensor, Tensor, Tensor]] = []  # tensors, their memory, copies
        for x in plain.values():
            once = _without_repeats(x.data)
            self._copies.append((x, x.data, once.to("cpu", copy=True) if x.device in scarce else once.clone()))

    def put_back(self) -> None:
        """Restore values that changed, without changing the versions that autograd checks."""
        with torch.no_grad():
            for tensor, memory, value in self._copies:
                if tensor.layout is torch.sparse_coo:  # an in-place operation gives it other memory
                    tensor.copy_(value)
                    continue
                if tensor.layout is torch.strided and not (tensor.is_mkldnn or tensor.is_nested):
                    sides = [(x.dtype, x.shape, x.stride(), x.data_ptr()) for x in (tensor, memory)]
                    if sides[0] != sides[1]:  # its `.data` was exchanged
                        tensor.data = memory
                memory = _without_repeats(memory)
                value = value.to(memory.device)
                special = memory.is_quantized or memory.is_nested or memory.is_mkldnn
                unknown = special or memory.layout is not torch.strided
                if unknown or not torch.equal(_widest(memory), _widest(value)):
                    memory.copy_(value)  # an alias made by `.data` has its own version


def copied(inputs: T) -> T:
    """The inputs with each tensor replaced by a copy, the same copy for the same tensor."""
    copies: T = tree.replace(inputs, tree.once(lambda _, x: same_layout(x.detach()).requires_grad_(x.requires_grad)))
    return copies


def same_layout(x: Tensor) -> Tensor:
    """A copy with the tensor's own strides, even if its elements overlap or have gaps between them."""
    if x.layout is not torch.strided or x.is_nested or x.is_quantized or x.is_mkldnn or type(x) is not Tensor:
        return x.clone()
    lone = _without_repeats(x)
    copy = torch.empty_strided(lone.shape, lone.stride(), dtype=x.dtype, device=x.device)
    return copy.copy_(lone).expand(x.shape) if lone is not x else copy.copy_(x)


def _plain(x: Tensor) -> Iterator[Tensor]:
    """The tensors that hold the memory: those inside a wrapper such as a DTensor; none if there are no values."""
    if is_lazy(x) or x.is_meta:
        return
    if not hasattr(x, "__tensor_flatten__"):
        yield x
        return
    for part in (getattr(x, name) for name in x.__tensor_flatten__()[0]):
        if isinstance(part, Tensor):  # a DTensor also names its mesh of devices
            yield from _plain(part)


def _without_repeats(x: Tensor) -> Tensor:
    """A view with each element of an expanded tensor once."""
    if x.layout is not torch.strided or x.is_nested or x.is_mkldnn or 0 not in x.stride():
        return x
    sizes = [1 if stride == 0 else size for size, stride in zip(x.shape, x.stride(), strict=True)]
    return x.as_strided(sizes, x.stride()) if sizes != list(x.shape) and x.numel() else x


def _widest(x: Tensor) -> Tensor:
    """The tensor as integers, as wide as possible, since 0.0 == -0.0 and NaN != NaN hide differences in bits."""
    x = bits(x)
    if x.is_contiguous() and x.numel() * x.element_size() % 8 == 0 and x.data_ptr() % 8 == 0:
        return flat(x).view(torch.int64)
    return x
