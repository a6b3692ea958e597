"""What a run may change and must not leave changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookcli import tree


@contextmanager
def preserved(model: nn.Module, inputs: Any, *, backward: bool, step: bool = False) -> Iterator[None]:
    """Put gradients, buffers, random number generators and, after an optimizer's step, parameters back as they were."""
    buffers = [(m, dict(m._buffers), _values(m)) for m in model.modules()]
    stepped = [p for p in model.parameters() if p.requires_grad and not is_lazy(p)] if step else []
    parameters = [(p, p.detach().clone()) for p in stepped]
    grads = [(p, p.grad) for p in model.parameters()] if backward else []
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([]))
        for device in accelerators(model, inputs):
            stack.enter_context(torch.random.fork_rng([device], device_type=device.type))
        for parameter, _ in grads:
            parameter.grad = None
        try:
            yield
        finally:
            for parameter, grad in grads:
                parameter.grad = grad
            for parameter, value in parameters:
                _put_back(parameter, value)
            for module, table, values in buffers:
                module._buffers.clear()
                module._buffers.update(table)
                for name, value in values.items():
                    _put_back(module._buffers[name], value)


def accelerators(model: nn.Module, inputs: Any) -> list[torch.device]:
    """The devices beside the CPU that a run has tensors on, and so generators of random numbers."""
    tensors = [*model.parameters(), *(t for _, t in tree.leaves(inputs))]
    return sorted({t.device for t in tensors} - {torch.device("cpu"), torch.device("meta")}, key=str)


def random_states(devices: Iterable[torch.device]) -> list[Tensor]:
    """The states of PyTorch's generators: that of the CPU, then those of these devices."""
    return [torch.get_rng_state(), *(torch.get_device_module(device).get_rng_state(device) for device in devices)]


def set_random_states(devices: Iterable[torch.device], states: Sequence[Tensor]) -> None:
    """Put back what `random_states` read."""
    torch.set_rng_state(states[0])
    for device, state in zip(devices, states[1:], strict=True):
        torch.get_device_module(device).set_rng_state(state, device)


def _values(module: nn.Module) -> dict[str, Tensor]:
    """Copies of a module's buffers; those of lazy modules have no values yet."""
    return {n: b.clone() for n, b in module._buffers.items() if b is not None and not is_lazy(b) and not b.is_meta}


def _put_back(buffer: Tensor | None, value: Tensor) -> None:
    # Batch normalization changes its buffers without a trace in their version, so the values are compared. `.data`
    # leaves no trace either: a graph of the caller's that holds the buffer can still run backward.
    if buffer is not None and not buffer.is_meta and not torch.equal(buffer, value):
        buffer.data.copy_(value)
