"""The part of learn in a recorded run: what a training does with its gradients, batches, outputs and graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from hookcli.capabilities.learn.course import Course
from hookcli.capabilities.learn.forwards.batch_first import TimeFirst
from hookcli.capabilities.learn.forwards.batches import Batches, Loaders, Taken, words_on_sampler
from hookcli.capabilities.learn.forwards.crossed import Crossed
from hookcli.capabilities.learn.forwards.future import STEPS as FUTURE_STEPS
from hookcli.capabilities.learn.forwards.future import Future
from hookcli.capabilities.learn.forwards.graphless import Graphless
from hookcli.capabilities.learn.forwards.last_states import LastStates
from hookcli.capabilities.learn.forwards.linear import STEPS as LINEAR_STEPS
from hookcli.capabilities.learn.forwards.linear import linear_layers
from hookcli.capabilities.learn.forwards.lost_batches import STEPS as LOST_STEPS
from hookcli.capabilities.learn.forwards.lost_batches import LostBatches
from hookcli.capabilities.learn.forwards.order import first_row
from hookcli.capabilities.learn.forwards.outputs import Alike, FirstInput
from hookcli.capabilities.learn.forwards.padding import PaddingMasks, words_on_mask
from hookcli.capabilities.learn.forwards.states import States
from hookcli.capabilities.learn.forwards.trial import Trial
from hookcli.capabilities.learn.graphs import Mark, in_use
from hookcli.capabilities.learn.lines import PASSLESS, UNSTEPPED, Learning, Untrained
from hookcli.capabilities.learn.losses.loss_facts import LabelRange, LossFacts
from hookcli.capabilities.learn.losses.lost_head import LastLayer
from hookcli.capabilities.learn.weights.copies import StepOfCopy
from hookcli.capabilities.learn.weights.frozen_norms import of_last_batch
from hookcli.capabilities.learn.weights.loaded import LoadedStates
from hookcli.capabilities.learn.weights.overwritten import Values
from hookcli.capabilities.learn.weights.reach import reach
from hookcli.capabilities.learn.weights.shares import Shares
from hookcli.capabilities.learn.weights.still import some_values
from hookcli.capabilities.learn.weights.updates import GradientsBefore, Settings, gradients_for
from hookcli.capabilities.learn.weights.wiring import SeenParts
from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.autograd import in_backward
from hookcli.probes.shared.unregistered import unregistered
from hookcli.record.file.record_lines import PartLine, RecordedStep
from hookcli.record.observe.models.model import ObservedModel
from hookcli.record.observe.parts import BegunStep, RecordedRun, RecorderPart, StepPart
from hookcli.record.observe.steps.losses import Gradients, Held, HeldGradients, looked_at
from hookcli.tensors import tree

_TENSORS = 16  # of a step, whose checksums are compared
_OFTEN = 0.5  # recorded forwards without gradients for each recorded step
_MASKS = 3  # recorded steps
_WEIGHTS, _TWO = 2, 2  # dimensions of a parameter; classes of a binary cross-entropy
_PASSES = 5  # backward passes, after which an optimizer should have made a step


class Recorder(RecorderPart):
    """Knows the recorded steps of each model."""

    def __init__(self, *, trial: bool = False) -> None:
        self.trial = trial
        self.scale: Tensor | None = None
        """The scale of the GradScaler that has scaled the last loss, if any has."""
        self._trained = self._evaluated = 0
        self._loaders = Loaders()
        self.loaded = LoadedStates()
        self._courses: dict[str, Course] = {}
        self._root: ref[Tensor] | None = None  # of the backward pass that began last
        self._through: set[str] = set()  # the models that it went through
        self._together: set[frozenset[str]] = set()  # the models of each pass before it
        self._graphless = Graphless()

    def batch_taken(self, iterator: object) -> None:
        if torch.is_grad_enabled():
            self._loaders.take(iterator)

    def state_loaded(self, module: nn.Module, state: object, keys: object) -> None:
        self.loaded.note(module, state, keys)

    def begin_run(self, run: RecordedRun) -> None:
        self._write = run.write

    def backward_without_graph(self, models: Iterable[ObservedModel]) -> None:
        self._graphless.note_no_graph(models)

    def backward_begins(self, scale: Callable[[], Tensor | None]) -> None:
        self.scale = scale()
        self._graphless.note_pass()
        for name, course in self._courses.items():
            if (module := course.module()) is not None:
                course.wiring.note_pass(name, module)
                course.overwritten.note_pass(module)
                course.after.pass_begins()

    def begin_step(self, step: BegunStep) -> StepPart:
        self._trained += step.training
        self._evaluated += not step.training
        if not step.training:
            return StepOfCopy(step, filter(None, (course.module() for course in self._courses.values())))
        new = Course(Batches(self._loaders), ref(step.module), Trial(self.trial))
        course = self._courses.setdefault(step.model, new)
        course.trial.ask(step)
        return StepOfLearning(self, course, step)

    def notes(self) -> Sequence[str]:
        return [note for name, course in self._courses.items() if (note := course.trial.note_on(name))]

    def run_ends(self) -> None:
        for name, course in self._courses.items():
            if line := course.wiring.at_end(alone=len(self._courses) == 1):
                self._write(line)
            if (module := course.module()) is not None:
                for line in course.wiring.taken_back(name, module):
                    self._write(line)
        for line in self._graphless.at_end():
            self._write(line)

    @property
    def targets_of_models(self) -> bool:
        """True if models run without gradients about as often as they are trained: targets may be what they return."""
        return self._evaluated > _OFTEN * self._trained

    def pass_begins(self, roots: Sequence[Tensor]) -> None:
        """A backward pass begins from these tensors, which each open step tells."""
        if roots and (self._root is None or self._root() is not roots[0]):
            self._root = ref(roots[0])
            self._together.add(frozenset(self._through))
            self._through = set()

    def passed(self, model: str) -> None:
        """The backward pass went through this model."""
        self._through.add(model)

    @property
    def alone(self) -> bool:
        """True if all backward passes went through the same models: adversaries' do not."""
        return len({*self._together, frozenset(self._through)} - {frozenset()}) == 1


class StepOfLearning(StepPart):
    """Looks at the batch, the modules that run, the gradients as each backward pass begins and the optimizer takes."""

    def __init__(self, recorder: Recorder, course: Course, begun: BegunStep) -> None:
        self._recorder, self._course, self._begun = recorder, course, begun
        self._before = GradientsBefore()
        self._looked_at: dict[int, list[Tensor]] = {}
        self._held: Held = {}  # by these, as the last backward pass began
        self._reached = False  # by any pass: master copies of the weights get their gradients from the program
        self._taken: Gradients | None = None
        self._settings = Settings()
        self._several = False
        self._names: list[str] = []
        self._values: list[Tensor] = []
        self._began: Values = {}  # of weights, and as the optimizer was about to step
        self._stepping: Values = {}
        self._losses = LossFacts()
        self._batch: list[Taken] = []
        self._parts = SeenParts()
        self._alike, self._first = Alike(), FirstInput()
        self._time_first = TimeFirst()
        self._last = LastLayer()
        self._masks = PaddingMasks()
        self._states = States(LastStates(self._masks.padding))
        self._shares = Shares()
        self._future = Future(len(course.future) < FUTURE_STEPS, self._time_first)
        self._crossed = Crossed()
        self._lost = LostBatches(course.batches.loaders)
        self._norms: set[str] = set()
        self._marks: list[ref[Mark]] = []

    def attach(self, session: HookSession) -> None:
        parameters = dict(self._begun.module.named_parameters())
        self._values = [*some_values(parameters).values()]
        self._began = some_values(parameters, _WEIGHTS)
        self._parts.unregistered = partial(unregistered, session)
        session.forward_pre(self.enter)
        session.forward(self.leave)

    def enter(self, event: HookEvent) -> None:
        """Look at what the model receives, and at the modes of its modules; not again in a recomputation."""
        self._time_first.enter(event)
        self._course.norms.enter(event, self._norms)
        if not in_backward():
            for part in (self._first, self._last, self._states, self._masks, self._future, self._crossed, self._shares):
                part.enter(event)
        if event.fqn or in_backward():
            return
        self._lost.enter()
        self._course.trial.take(event)
        unseen: tree.Unseen = []
        batches, received = self._course.batches, tree.received(event.args, event.kwargs, unseen)
        self._alike.unknown |= bool(unseen or received[_TENSORS:]) or not all(map(tree.is_plain, received))
        for x in filter(tree.is_plain, islice(received, _TENSORS)):
            self._alike.receive(x)
            self._losses.receive(x)
            self._time_first.sliced |= first_row(x) is not None
            batches.take(x, self._batch)
        self._parts.look(self._begun.module)

    def leave(self, event: HookEvent) -> None:
        """Note a module that ran, and look at what the model returns."""
        self._parts.note_run(event.fqn)
        self._states.leave(event)
        self._time_first.leave(event)
        if not in_backward():
            self._future.leave(event)
        if not event.fqn:
            outputs = tree.tensors(event.output)
            self._lost.leave(outputs)
            self._losses.returned.hold(outputs)
            self._marks += map(Mark.on, [x.grad_fn for x in outputs if x.grad_fn is not None][:1])
            self._alike.returned(outputs)
            if len(self._course.linear) < LINEAR_STEPS:
                self._course.linear.append(linear_layers(outputs))
            if self._course.wiring.asked:
                self._parts.trace(outputs)

    def backward_begins(self, roots: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> None:
        self._several = self._several or len(optimizers) > 1
        self._before.pass_begins(self._begun.module, optimizers)
        self._looked_at = looked_at(optimizers)
        self._held = HeldGradients(self._looked_at).held
        self._names = [type(one).__name__ for one in optimizers]
        self._parts.hold(optimizers)
        self._parts.graph = self._parts.graph or any(root.grad_fn is not None for root in roots)
        self._lost.backward_begins(self._losses.add(roots))
        self._losses.scale = self._recorder.scale
        self._last.look(self._losses.choices[-1])
        self._future.look(roots, self._losses.choices[-1])
        self._crossed.look(self._losses.choices[-1])
        if self._course.zeroed.asks:
            self._course.zeroed.look(roots, self._begun.module)
        self._recorder.pass_begins(roots)
        self._marks += [Mark.on(root.grad_fn) for root in roots if root.grad_fn is not None]

    def backward_over(self) -> None:
        self._reached = self._reached or bool(HeldGradients(self._looked_at).changed_since(self._held))
        self._parts.reach(self._begun.module)
        self._lost.backward_over(chain(*self._looked_at.values()))
        self._recorder.passed(self._begun.model)

    def optimizer_takes(self, optimizer: Optimizer) -> None:
        self._several = self._several or self._taken is not None
        self._parts.took.add(id(optimizer))
        self._taken = gradients_for(optimizer)
        self._lost.optimizer_takes(chain(*self._looked_at.values()))
        self._stepping = some_values(dict(self._begun.module.named_parameters()), _WEIGHTS)
        self._course.overwritten.note_optimizer(optimizer)
        self._course.after.take(optimizer)
        self._settings.note(optimizer)

    def lines(self, step: RecordedStep, *, scaled: bool) -> list[PartLine]:
        """The lines of this step, if there was a backward pass. Waits for an accelerator."""
        if not self._losses.choices:
            return self.without_pass(step)
        course, begun = self._course, self._begun
        course.stepped = course.stepped or self._taken is not None
        if not step.complete:
            return [] if scaled else self.unstepped(step)
        parameters = self._parts.parameters = dict(begun.module.named_parameters())
        reached, by_hand = reach(step), self._before.by_hand
        course.note_gradients(self.began_with_old(moves=bool(reached.get("reach"))) if step.step else None)
        course.batches.add(step.step, self._batch)
        course.graphs.add(step.step, self._marks)
        course.cleared = course.cleared + 1 if self.took_none(step) else 0
        labels = self._losses.label_range()
        in_rows = (self.hidden(), self.sees_next(), self._crossed.words(), self.lost_batches(len(step.losses)))
        self._losses.misused = self._losses.misused or self.lost_head(labels) or next(filter(None, in_rows), "")
        level, of_losses = self._losses.level(len(step.losses), labels), self.of_losses(len(step.losses))
        course.classes = course.classes or level.get("classes", _TWO * ("ones" in of_losses))
        course.trial.note(step, level | of_losses)
        fields: dict[str, Any] = {
            "left": course.left,
            "judged": course.judged,
            **course.note_level(level),
            "alike": course.note_alike(self._alike.judge()),
            **self._alike.fields(self._begun.module) | self._first.fields(),
            "in_use": in_use(step),
            "cleared": course.cleared,
            **of_losses,
            "tried": course.trial.words,
            "unloaded": self._recorder.loaded.words(begun.module),
            "few_weights": words_on_sampler(*course.batches.loaders.sampler, course.classes),
            **self._time_first.fields(self._losses.shape, begun.name),
            **self._states.fields(begun.name),
            "alone": self._recorder.alone,
            **course.labels.fields(labels, step.step),
            "of_layers": self._losses.of_layers,
            **course.class_shares.fields(self._losses.counts() if level else []),
            **course.batches.fields() | course.graphs.fields(),
            **course.still.fields(step, begun.module, self._values, reached.get("gradient"), by_hand=by_hand),
            **course.overwritten.fields(step.step, self._began, self._stepping, some_values(parameters, _WEIGHTS)),
            **course.norms.fields(step.step, self._begun, self._norms),
            **course.clones.fields(begun.module, begun.name),
            **self._shares.fields(parameters.values(), begun.name),
            **course.zeroed.fields(step),
            "linear": course.linear[0] if len({*course.linear}) == 1 else 0,
            "momentum": of_last_batch(begun.module, begun.name),
            **self._settings.fields(),
            **reached,
        }
        return [*course.wiring.add(begun, step.step, self._parts), Learning(step.model, step.step, **fields)]

    def without_pass(self, step: RecordedStep) -> list[PartLine]:
        """The line on an optimizer that makes steps without any gradient, once enough of them began no pass."""
        now = some_values(dict(self._begun.module.named_parameters()), _WEIGHTS)
        moved = any(not torch.equal(x, now[fqn]) for fqn, x in self._began.items() if fqn in now)
        idle = step.complete and self._taken is not None and not self._taken.number and not moved
        self._course.without_pass += idle
        enough = self._course.without_pass >= _PASSES
        return [Untrained(step.model, step.step, PASSLESS, [""], self._course.without_pass)] if enough else []

    def of_losses(self, passes: int) -> dict[str, Any]:
        """The fields of a line on the losses of so many backward passes. Waits for an accelerator."""
        return self._losses.fields(passes, targets_of_models=self._recorder.targets_of_models, several=self._several)

    def lost_head(self, labels: LabelRange | None) -> str:
        """Words on a loss that gets what the last layer receives; "" if it does not."""
        reached = self._course.wiring.reached | self._parts.reached
        return self._course.lost_head.words(self._last, labels, reached, self._begun.name)

    def hidden(self) -> str:
        """Words on an inverted mask, once enough steps have shown it; "" if none is."""
        found = next(self._masks.inverted(), None)
        self._course.hidden = self._course.hidden + 1 if found else 0
        return words_on_mask(found, self._begun.name) if found and self._course.hidden >= _MASKS else ""

    def sees_next(self) -> str:
        """Words on attention to tokens, or on labels, once the first steps have shown the same fault; "" if none is."""
        future = self._course.future
        if self._future.asked:
            future.append(self._future.words(self._begun.name))
        return future[0] if len(future) == FUTURE_STEPS and len({*future}) == 1 else ""

    def lost_batches(self, passes: int) -> str:
        """Words on batches that train nothing, once enough steps have shown them; "" if there are none."""
        words = self._lost.words(passes)
        self._course.lost.append(bool(words))
        return words if all(self._course.lost) and len(self._course.lost) >= LOST_STEPS else ""

    def took_none(self, step: RecordedStep) -> bool:
        """True if backward passes left gradients, and the optimizer found none, or zeros."""
        if self._taken is None or not self._parts.reached:
            return False
        had = any(row.get("unclipped_grad") for row in step.rows("optimizer"))
        return not self._taken.number or (had and not any(map(bool, self._taken.filled)))

    def unstepped(self, step: RecordedStep) -> list[PartLine]:
        """The line on optimizers that have made no step, after so many backward passes in the first one."""
        if self._course.stepped or len(self._losses.choices) < _PASSES or not self._names:
            return []
        return [Untrained(step.model, step.step, UNSTEPPED, [self._names[0]], len(self._losses.choices))]

    def began_with_old(self, *, moves: bool) -> bool | None:
        """True if the gradients that the optimizer took, or else those that are there, include the step before's.

        None: that is not known, as the program `moves` no weight itself, or writes gradients itself.
        """
        if self._before.by_hand and self._taken is None:
            return self._before.left_by_hand(self._begun.module, moves=moves)
        if self._taken is None or not (self._reached and self._before.each and self._taken.filled):
            return None
        return None if self._several or self._course.after.written() else self._before.are_in(self._taken)
