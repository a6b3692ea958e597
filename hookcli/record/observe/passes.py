"""Turns the program's forwards and backward passes into observed steps."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hookcli.errors import UsageError
from hookcli.hooks.torch_private.distributed import loss_scale
from hookcli.record.observe.models.model import ObservedModel, why_unobservable
from hookcli.record.observe.models.models import ObservedModels
from hookcli.record.observe.optimizers.optimizer_steps import Snapshot
from hookcli.record.observe.steps.open_steps import OpenSteps
from hookcli.record.observe.steps.step import MOST_FORWARDS, ObservedStep, Position, State
from hookcli.tensors import tree
from hookcli.tensors.tree import Args, Kwargs
from hookcli.tensors.weak import WeakIds


class Forwards:
    """Begins and ends the outermost forwards, one at a time in each thread."""

    def __init__(self, models: ObservedModels, steps: OpenSteps) -> None:
        self._models = models
        self._steps = steps
        self._running: dict[int, tuple[ObservedModel, ObservedStep | None]] = {}  # by thread

    def begin(self, module: nn.Module, args: Args, kwargs: Kwargs | None = None) -> bool:
        """Begin an outermost forward: a call of a module by the program, not by another module.

        Returns whether its end matters.
        """
        if self._running:
            self.fail()
        if self._steps:
            self._steps.close_abandoned()
        model = self._models.find(module)
        if model is None:
            return False
        for waiting in self._steps:
            waiting.measured.other_begins()
        grad = torch.is_grad_enabled()
        goes_on = grad and model.mid_step
        number = model.step() - goes_on
        forward = model.count_forward(grad=grad)
        if not grad:
            self._models.evaluations[model.name].add(module)
        try:
            step = self._find_step(model, number, forward, grad=grad)
        except UsageError as error:  # TorchScript
            model.hide(str(error))
            step = None
        if grad:
            self._steps.losses.note_batch(model.name, number, (*args, *(kwargs or {}).values()))
            self._follow_updates_by_hand(model, step, number)
        matters = step is not None or not (grad and model.has_optimizer)  # else the optimizer ends the step
        if matters:
            self._running[threading.get_ident()] = model, step
        (model.training if grad else model.inference).start(goes_on=goes_on)
        if step is not None:
            step.begin_forward(module, args, kwargs)
        return matters

    def _follow_updates_by_hand(self, model: ObservedModel, step: ObservedStep | None, number: int) -> None:
        """Measure what the program has changed since the model's last forward, if no optimizer updates the model."""
        before, model.before = model.before, None
        if before is not None and step is not None and not step.observed_forwards:
            step.updated_by_hand(before)
        module = model.module
        follows = model.differentiated is not False and "updates" in self._steps.plan.probes and not model.has_optimizer
        if follows and module is not None and self._steps.schedule.expects(number + 1):
            model.before = Snapshot(module.parameters())

    def _find_step(self, model: ObservedModel, number: int, forward: int, *, grad: bool) -> ObservedStep | None:
        """The step that this forward belongs to, perhaps a new one; None if the forward is not observed."""
        step = self._steps.training(model) if grad and not model.hidden else None
        if step is not None:
            if step.takes_forward(number):
                step.forwards += 1
                step.goes_on = bool(step.stepped)
                more = step.observed_forwards < MOST_FORWARDS and self._steps.schedule.goes_on()
                return step if more and step.state is State.WAITING else None
            self._steps.close_finished(step)
        position = self._position(model, number, forward, grad)
        if not self._steps.wants(position) or model.hidden:
            return None
        if reason := why_unobservable():
            model.counts.note(reason)
            return None
        return self._steps.open(model, position)

    def _position(self, model: ObservedModel, number: int, forward: int, grad: bool) -> Position:
        """The position of a forward. Forwards without gradients between training steps have their own numbers."""
        plan, schedule = self._steps.plan, self._steps.schedule
        if grad:
            return Position("train", number, None, schedule.records(number))
        if not model.has_optimizer:
            kept = schedule.records(number) and model.takes_no_grad(math.inf if plan.no_grad else 0, number)
            return Position("no_grad", number, None, kept)
        every = schedule.interval(number)
        kept = plan.covers(number) and schedule.affordable(number) and model.due(every)
        kept = kept and model.takes_no_grad(plan.no_grad, number // every)
        return Position("no_grad", number, forward, kept)

    def pop(self) -> tuple[ObservedModel | None, ObservedStep | None]:
        """Remove and return this thread's forward, which is over; None if nothing is to be done at its end."""
        return self._running.pop(threading.get_ident(), (None, None))

    def end(self, model: ObservedModel, step: ObservedStep | None, args: Any, kwargs: Any, output: object) -> None:
        """End a forward that has returned. Without gradients, or without an optimizer, it is a step by itself."""
        if step is not None:
            step.end_forward(args, kwargs, output)
            self._steps.look(step)
        grad = torch.is_grad_enabled()
        if grad and step is not None and step.state is State.WAITING:
            step.measured.watch_loss()
        if grad and model.has_optimizer:
            return
        stopwatch = model.training if grad else model.inference
        stopwatch.lap()
        if step is not None:
            step.seconds = stopwatch.take()
            if not (grad and any(x.requires_grad for _, x in tree.leaves(output))):
                self._steps.close(step)  # no gradient can come
        model.ended = None if grad else self._steps.clock.mark()

    def failing(self) -> None:
        """Remove this thread's mode when an exception passes, even if the program left other modes on top of it."""
        _, step = self._running.get(threading.get_ident(), (None, None))
        if step is not None:
            step.measured.stop_operators()

    def fail(self, thread: int | None = None) -> None:
        """Close the step of a forward that an exception ended in this thread, or another; its hooks were still on."""
        _, step = self._running.pop(threading.get_ident() if thread is None else thread, (None, None))
        if step is not None:
            step.detach()
            step.leave_unfinished(_FAILED)
            self._steps.close(step)


_FAILED = "a forward failed: the step is recorded up to there"


@dataclass(slots=True)
class _Pass:
    """A backward pass under way: its roots, their gradients, and the steps that waited when it began."""

    tensors: list[Tensor]
    gradients: list[Tensor | None]
    steps: list[tuple[ObservedStep, object, bool]]
    """Each with the gradients that had arrived, and whether the pass leaves gradients in its model."""


class _Scaled(NamedTuple):
    """A loss as it was before a GradScaler scaled it: with its graph, and with a copy of its value."""

    scaler: Any
    loss: Tensor
    value: Tensor


class BackwardPasses:
    """Follows one pass per thread. A pass goes through a model if gradients arrive in its open step."""

    def __init__(self, steps: OpenSteps) -> None:
        self._steps = steps
        self._running: dict[int, _Pass] = {}  # by thread
        self._scalers: dict[int, Any] = {}  # by thread: the scaler that was used since the last pass
        self._scaled: WeakIds[Tensor, _Scaled] = WeakIds()

    @property
    def under_way(self) -> bool:
        """True if a pass that began has not ended, in any thread."""
        return bool(self._running or self._scalers)

    def scaled(self, scaler: object, losses: Any, made: object) -> None:
        """Note that a GradScaler has scaled `losses`; `made` holds the results."""
        self._scalers[threading.get_ident()] = scaler
        for (_, loss), (_, scaled) in zip(tree.leaves(losses), tree.leaves(made), strict=False):
            self._scaled[scaled] = _Scaled(scaler, loss, loss.detach().clone())

    def losses(self, tensors: Any, gradients: Any) -> list[Tensor] | None:
        """The numbers whose sum is differentiated, without a GradScaler's scale; None if they can't be read here."""
        if type(tensors) is Tensor and gradients is None and not (self._scalers or self._scaled or tensors.is_meta):
            return [tensors] if tensors.numel() == 1 and not tensors.is_complex() else None
        roots = [x for _, x in tree.leaves(tensors)]
        if any(type(x) is not Tensor or x.is_meta for x in roots):
            return None
        unscaled, _, _ = self._unscaled(roots, self._scalers.get(threading.get_ident()))
        return _terms(unscaled, _list(gradients))

    def have_no_graph(self, tensors: Any) -> bool:
        """True if none of the tensors from which a pass begins is the result of an operation on others.

        Parameters are none either, but a pass from one reaches it.
        """
        roots = [x for _, x in tree.leaves(tensors)]
        return all(type(x) is Tensor and x.grad_fn is None for x in roots)

    def scale(self, tensors: Any) -> Tensor | None:
        """The scale of the GradScaler that has scaled these losses; None if none has. Waits for nothing."""
        if not (self._scalers or self._scaled):
            return None
        _, scaler, _ = self._unscaled([x for _, x in tree.leaves(tensors)], self._scalers.get(threading.get_ident()))
        return loss_scale(scaler).clone() if scaler is not None else None

    def _unscaled(self, roots: Sequence[Tensor], last: Any) -> tuple[list[Tensor], Any, bool]:
        """Losses without the scale of their scaler, which may be the `last` one; and whether that is only assumed."""
        known = [self._scaled.get(x) for x in roots]
        scaler = next((one.scaler for one in known if one), last)
        unsure = scaler is not None and not any(known)
        losses = [one.value if one else x.detach() for x, one in zip(roots, known, strict=True)]
        if unsure:  # made of scaled losses, such as their sum
            losses = [loss / loss_scale(scaler).to(loss.device) for loss in losses]
        return losses, scaler, unsure

    def begin(self, tensors: Any, gradients: Any, inputs: object) -> None:
        """Note that `backward()` of these tensors begins, with their `gradients`, limited to `inputs` if not None."""
        for_inputs = None if inputs is None else {id(x) for _, x in tree.leaves(inputs)}
        steps = [(s, s.arrived, s.gets_gradients(for_inputs)) for s in self._steps if s.waits_here()]
        roots = [x for _, x in tree.leaves(tensors)]
        self._running[threading.get_ident()] = _Pass(roots, _list(gradients), steps)
        losses = [one.loss if (one := self._scaled.get(x)) else x for x in roots]
        for step, _, _ in steps:
            step.begin_backward(roots, losses, goes_on=self._steps.schedule.goes_on())

    def end(self) -> None:
        """End a pass that is over, or has failed, and hand its loss to the steps that it went through."""
        thread = threading.get_ident()
        running, last = self._running.pop(thread, None), self._scalers.pop(thread, None)
        if running is None:
            return
        losses, scaler, unsure = self._unscaled(running.tensors, last)
        terms = _terms(losses, running.gradients)
        terms = None if terms is None else [term.clone() for term in terms]
        for step, arrived, counts in running.steps:
            step.detach()
            if step.arrived != arrived or not step.sees_gradients:
                if unsure:
                    step.notes[_UNSURE] = None
                step.end_backward(terms, scaler, counts=counts)
                self._steps.look(step)
                if not step.model.has_optimizer:
                    step.model.differentiated = True
                    step.measured.take_gradients()
                    self._steps.close(step)


def _terms(losses: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor] | None:
    """The numbers whose sum is differentiated; None if one of the tensors, or of their `gradients`, is not a number."""
    known = [*losses, *(x for x in gradients if x is not None)]
    if not losses or not all(isinstance(x, Tensor) and x.numel() == 1 for x in known):
        return None
    if any(x.is_complex() or x.is_meta for x in known):
        return None
    weights = [*gradients, *[None] * (len(losses) - len(gradients))]
    pairs = zip(losses, weights, strict=False)
    return [loss if weight is None else loss * weight.detach() for loss, weight in pairs]


def _list(gradients: Any) -> list[Tensor | None]:
    return list(gradients) if isinstance(gradients, Sequence) else [gradients]


_UNSURE = (
    "backward() was called on a tensor that GradScaler.scale did not return: taken for a sum of scaled losses, so its"
    " loss is divided by the scale"
)
