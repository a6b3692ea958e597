"""Guards the parts of the observation: one that fails is left out from then on, by name, and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from hookcli import registry
from hookcli.errors import class_name, in_brief
from hookcli.hooks.clock import ProgramClock
from hookcli.hooks.compilations import CompilationLog
from hookcli.hooks.events import Callback, HookEvent
from hookcli.hooks.session import HookSession
from hookcli.probes.base import StatsProbe
from hookcli.record.file.record_lines import NonFinite, PartLine, RecordedStep
from hookcli.record.observe.inside import Inside
from hookcli.record.observe.models.model import ObservedModel
from hookcli.record.observe.recording_plan import RecordingPlan
from hookcli.registry.capability import capabilities, load_text
from hookcli.registry.pieces import left_out, passes_guards
from hookcli.table import Report, Row
from hookcli.table.meta import Meta
from hookcli.tensors.chunks import PendingFigures
from hookcli.tensors.stats import Reducer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BegunStep:
    """A step of a model that is observed, before its first forward.

    `module` is the model, and `name` turns its names for parts into the record's. `probes`: the run's probes;
    `gradients`: gradients of parameters and of what modules return are measured; `operators`: so is what operators
    return. `reduce` measures a tensor; what is measured anyway is not measured again. `stale` tells, once the step is
    over, of an optimizer whose parameters no module has any more: "SGD has 2 parameters ..."; "" if there is none.
    `compiled`: the modules that no hook sees run, with the reason.
    """

    model: str
    module: nn.Module
    name: Callable[[str], str]
    training: bool
    probes: Sequence[str]
    gradients: bool
    operators: bool
    reduce: Reducer
    stale: Callable[[], str] = str
    compiled: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one sort in a step, in their order: values of rows, and figures that may yet be read.

    `what` is "output", "gradient" (of an output) or "parameter gradient".
    """

    what: str
    probe: StatsProbe
    seen: Sequence[tuple[dict[str, object], PendingFigures]]


class StepView(Protocol):
    """A step of a model that is open, to be read. Places are named as in the session."""

    @property
    def phase(self) -> str:
        """The step's phase in the record: "train", or "no_grad"."""

    @property
    def number(self) -> int:
        """The step's number in the record."""

    @property
    def forwards(self) -> int:
        """The number of its forwards so far."""

    @property
    def observed_forwards(self) -> int:
        """The number of these with hooks on."""

    @property
    def sees_operators(self) -> bool:
        """True if all operators are watched, and no part of the model is compiled."""

    def keep(self) -> None:
        """Record the step, whatever the schedule says."""

    def losses(self, begin: int) -> list[float]:
        """The losses of its backward passes from this one on, counted from 0. Waits for an accelerator."""

    def measured(self) -> list[Measured]:
        """What was measured so far, but for gradients that a GradScaler has scaled."""

    def groups(self) -> list[Row]:
        """A row per parameter group that has stepped. Waits for an accelerator."""

    def with_masks(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows of outputs, with what is known by now of infinities that are meant."""

    def told(self, fqn: str, value: NonFinite) -> NonFinite:
        """The value, at this place, with what parts say of it in `found`."""


class StepPart:
    """The base of a recorder's part in one step of a model."""

    inside_compiled = False
    """True if it needs of a module only what it receives and returns, so that it can look inside compiled parts."""

    operators = False
    """True to get the events of operators, too, in a run that records them."""

    digest = ""
    """The `weights` of the step in the record, by which its ranks are compared; only one part may have it."""

    notes: Sequence[str] = ()
    """Notes on the step in the record, known by the time of its report."""

    def attach(self, session: HookSession) -> None:
        """Ask for hooks, as the step's first forward begins; not called where no hook sees the model's forward."""

    def backward_begins(self, roots: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> None:
        """A backward pass begins from these tensors, perhaps through the model, whose optimizers are these.

        A loss that a GradScaler has scaled is given as it was before.
        """

    def backward_over(self) -> None:
        """A backward pass through the model is over."""

    def optimizer_takes(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step by the gradients; after its step, if a closure makes them."""

    def look(self, step: StepView, *, over: bool) -> NonFinite | None:
        """More of the step was measured; `over`: it has ended. Returns the run's first value that is not finite, once.

        The step of that value is recorded.
        """
        return None

    def report(self, meta: Meta, group: Sequence[int]) -> Report | None:
        """The report of this step, which is over. `group`: the ranks that a wrapper keeps alike, if any does."""
        return None

    def lines(self, step: RecordedStep, *, scaled: bool) -> Sequence[PartLine]:
        """The lines to write before this step, which is over; `scaled`: a GradScaler handles overflows."""
        return ()

    def found(self, fqn: str, value: NonFinite) -> str:
        """A search has found the run's first non-finite value, in this step and at this place of the session.

        Returns how to reproduce it, or why that can't be told; "" to say nothing.
        """
        return ""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The run as a part sees it: `write` adds a line to the record at any time, and `record` returns the path.

    `end_program` ends the program with exit code 1, as soon as its main thread is in hookcli. `compilations`: the work
    of torch.compile so far, without hookcli's own.
    """

    write: Callable[[PartLine], None]
    record: Callable[[], Path]
    clock: ProgramClock
    end_program: Callable[[], None]
    compilations: CompilationLog


class RecorderPart:
    """The base of a part in a program that is recorded; made anew for each run.

    A part hears only of the events for which it defines a method. If one hears of the steps of optimizers or of their
    losses, wants steps or has them see inside compiled parts, every step of the run is followed.
    """

    def wants(self, step: int) -> bool:
        """True to observe the step of this number although it is not recorded, whatever time that takes."""
        return False

    def begin_step(self, step: BegunStep) -> StepPart | None:
        """A step of a model begins that is observed; None to have no part in it."""
        return None

    def begin_run(self, run: RecordedRun) -> None:
        """The recording begins."""

    def inside(self) -> Inside | None:
        """The recording has begun. Returns how steps are to see inside compiled parts; of several parts one has it."""
        return None

    def batch_taken(self, iterator: object) -> None:
        """The iterator of a DataLoader has yielded a batch in this thread, or has no more, or has raised."""

    def state_loaded(self, module: nn.Module, state: object, keys: object) -> None:
        """`module.load_state_dict(state)` has returned these keys, of which PyTorch's docs tell."""

    def backward_begins(self, scale: Callable[[], Tensor | None]) -> None:
        """A backward pass that leaves gradients in parameters begins in this thread; its loss was scaled by `scale`."""

    def backward_without_graph(self, models: Iterable[ObservedModel]) -> None:
        """A backward pass is about to begin from tensors without a graph, so that it reaches none of these models."""

    def backward_over(self, models: Iterable[ObservedModel]) -> None:
        """Such a pass is over, and all gradients of these models are as it has left them."""

    def optimizer_stepped(self, models: Mapping[ObservedModel, int], optimizer: Optimizer) -> None:
        """An optimizer has made this step of each of its models, recorded or not."""

    def loss_read(self, model: str, step: int, loss: float | None) -> None:
        """The loss of a step is read, recorded or not; on an accelerator some steps later."""

    def step_recorded(self, step: RecordedStep) -> None:
        """A step has gone into the record."""

    def run_ends(self) -> None:
        """The program ends, or hookcli stops to observe it."""

    def notes(self) -> Sequence[str]:
        """Notes on the whole run, for its end."""
        return ()


_ANSWERS: Mapping[str, type | tuple[type, ...]] = {
    "begin_step": StepPart,
    "look": NonFinite,
    "report": Report,
    "lines": (list, tuple),
    "found": str,
    "notes": (list, tuple),
}
"""The types of answers to events; None is always one."""


def require_answer(event: str, answer: object) -> None:
    """Raise TypeError for an answer to an event that has another type than the base class declares."""
    kinds = _ANSWERS.get(event, object)
    if answer is not None and not isinstance(answer, kinds):
        raise TypeError(f"{event}() returned {class_name(answer)}")
    if event == "lines" and isinstance(answer, (list, tuple)):
        for line in answer:
            if not isinstance(line, PartLine):
                raise TypeError(f"lines() returned {class_name(line)} among its lines")


def make_recorders(plan: RecordingPlan) -> dict[str, RecorderPart]:
    """The parts of capabilities in a recording with this plan, each named as messages name it."""
    made: dict[str, RecorderPart] = {}
    for one in capabilities():
        given = {option.name: plan.of_parts.get(option.name, option.default) for option in one.options}
        asked = any(given[option.name] != option.default for option in one.options)
        if one.recorder and (asked or not one.recorded_if_asked):
            with left_out(one, f"recorder={one.recorder!r}"):
                part = load_text(one.recorder)(**given)
                if not isinstance(part, RecorderPart):
                    raise TypeError(f"it makes {class_name(part)}, not a RecorderPart")
                made[one.name.replace("_", "-")] = part
    return made


class Parts:
    """Knows which parts of the observation of which models have failed. `tell` gets the model, a line, and the error.

    A part is named as the user knows it: by its probe ("updates"), or its capability.
    """

    def __init__(self, tell: Callable[[str, str, Exception], None], recorders: Mapping[str, RecorderPart]) -> None:
        self._tell = tell
        self.recorders = recorders
        """The parts of recorders, by name."""
        self._off: set[tuple[str, str]] = set()
        self._listeners = {
            event: [(name, part) for name, part in recorders.items() if getattr(type(part), event) is not nothing]
            for event, nothing in vars(RecorderPart).items()
            if not event.startswith("_")
        }

    def hear(self, *events: str) -> bool:
        """True if a recorder's part hears of one of these events."""
        return any(self._listeners[event] for event in events)

    def tell(self, event: str, model: str, *told: object) -> list[Any]:
        """Tell those who hear of an event, of this model or of none (""). Returns what they say."""
        said = (self.ask(model, name, part, event, *told) for name, part in self._listeners[event])
        return [one for one in said if one is not None]

    def ask(self, model: str, name: str, part: object, event: str, *told: object, **named: object) -> Any:
        """The answer of a part, or of its `StepPart`, to an event; None if it fails now, or has failed before."""

        def answer() -> Any:  # which looks the method up: another value may stand in its place
            value = getattr(part, event)(*told, **named)
            require_answer(event, value)
            return value

        return self.run(model, name, answer, None)

    def works(self, model: str, part: str) -> bool:
        """True unless the part has failed, for this model or for no model in particular."""
        return not self._off or self._off.isdisjoint([(model, part), ("", part)])

    def run(self, model: str, part: str, do: Callable[[], T], otherwise: T) -> T:
        """What `do` returns; `otherwise` if the part fails now, or has failed before."""
        if not self.works(model, part):
            return otherwise
        try:
            return do()
        except Exception as error:
            if passes_guards(error):
                raise
            self._off.add((model, part))
            owner = registry.other_owner(part)
            named = f"{part} (from {owner})" if owner else part
            why = f"{'it' if owner else 'hookcli'} failed ({in_brief(error)})"
            why += "" if owner else ", which is a bug in hookcli"
            self._tell(model, f"{named}: left out from here on, since {why}; the rest is recorded", error)
            return otherwise

    def guarded(self, model: str, part: str, callback: Callback) -> Callback:
        """Wrap a callback of a session."""

        def call(event: HookEvent) -> None:
            self.run(model, part, lambda: callback(event), None)

        return call
