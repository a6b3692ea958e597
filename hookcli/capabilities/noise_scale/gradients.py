"""Runs micro-batches forward and backward, twice, and takes the figures of their gradients.

The first pass adds the gradients up, the second multiplies each with their mean: one copy of all gradients is enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from hookcli.capabilities.noise_scale.parts import micro_batches, samples_of
from hookcli.engine import failure
from hookcli.engine.batches import Batch
from hookcli.engine.inputs import arguments
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.preserve import SavedValues, copied
from hookcli.errors import UserCode
from hookcli.hooks.session import HookSession
from hookcli.table.meta import Meta
from hookcli.tensors.devices.launch import wide
from hookcli.tensors.random_state import accelerators, random_states, set_random_states


@dataclass
class Figures:
    """The figures of the gradients of each micro-batch by parameter: |g_i|² or, in the second pass, g_i · ḡ.

    `sums`: the sums of the gradients, of parameters that got some; `summed` is False while gradients are added to them.
    `samples` were in micro-batches, others `left_out`.
    """

    rows: list[list[float]] = field(default_factory=list)
    sums: dict[str, Tensor] = field(default_factory=dict)
    summed: bool = True
    batches: int = 0
    samples: int = 0
    left_out: int = 0


class Gradients:
    """The gradients of the micro-batches of a run, of `size` samples each.

    `batched`: dimension 0 of each input is the batch, else lists are. `parameters`: those that require grad.
    """

    def __init__(self, run: PreparedRun, session: HookSession, size: int, *, batched: bool) -> None:
        self.parameters = {name: p for name, p in run.model.named_parameters() if p.requires_grad}
        self.size, self.batched = size, batched
        self._run, self.session = run, session
        self._devices = accelerators(run.model, run.inputs)
        self._states = random_states(self._devices)
        self._buffers = SavedValues(run.model.buffers())

    def each(self) -> Iterator[Batch]:
        """The run's batches, in the same order each time."""
        data = self._run.data
        if data is None or not data.several:
            yield Batch(self._run.inputs, self._run.step.target)
        else:
            yield from data.each()

    def take(self, figures: Figures, stage: str, mean: Mapping[str, Tensor] | None = None) -> None:
        """Run all micro-batches, and add to the figures; with the same random numbers and buffers each time.

        `mean`: multiply the gradients with it, instead of adding them up. Raises ModelError.
        """
        set_random_states(self._devices, self._states)
        self._buffers.put_back()
        for batch in self.each():
            samples = samples_of(batch, batched=self.batched)
            for micro in micro_batches(batch, samples, self.size):
                place = f"micro-batch {len(figures.rows) + 1}"
                self._run.feedback.stage(f"{stage}: {place}")
                roots = self.loss(micro, f"{place}: ")
                with UserCode(partial(failure.crashed, self._run.model, {}, place=f"{place}: ")):
                    torch.autograd.backward(roots)
                del roots
                figures.summed = False
                figures.rows.append(self.reduced(figures.sums, mean))
                figures.samples += self.size
                figures.summed = True
            figures.batches += 1
            figures.left_out += samples % self.size

    def reduced(self, sums: dict[str, Tensor], mean: Mapping[str, Tensor] | None) -> list[float]:
        """The figures of the gradients that a backward pass has left, by parameter; the gradients are gone then."""
        figures = []
        for name, parameter in self.parameters.items():
            figure = torch.zeros((), dtype=wide(parameter.device), device=parameter.device)
            if parameter.grad is not None:
                grad = in_float32(parameter.grad)
                if mean is None:
                    sums[name] = sums[name].add_(grad) if name in sums else grad.clone()
                factor = grad if mean is None else mean[name]
                figure = (grad * factor).sum(dtype=wide(grad.device))
            parameter.grad = None
            figures.append(figure)
        return [float(x) for x in torch.stack([figure.cpu() for figure in figures])] if figures else []

    def loss(self, part: Batch, place: str = "") -> list[Tensor]:
        """The loss of a part of a batch, as a list of one. Raises ModelError, at this `place`, and UsageError."""
        run, info = self._run, Meta()
        with UserCode(partial(failure.crashed, run.model, {}, place=place)):
            args, kwargs = arguments(copied(part.inputs))
            step = replace(run.step, target=part.target)
            roots, _ = step.start(self.session, run.model(*args, **kwargs), info)
        run.info["loss"] = info["loss"]
        return roots


def in_float32(grad: Tensor) -> Tensor:
    """A gradient as a dense tensor of real numbers, in float32 or wider."""
    grad = grad.detach().to_dense() if grad.layout is not torch.strided else grad.detach()
    grad = torch.view_as_real(grad.resolve_conj()) if grad.is_complex() else grad
    return grad.to(torch.promote_types(grad.dtype, torch.float32))


def squares_of(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """The squared norm of each tensor."""
    return {name: float(x.square().sum(dtype=wide(x.device))) for name, x in tensors.items()}
