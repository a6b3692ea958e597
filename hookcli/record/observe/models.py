"""The models that have run: what is known of each, without keeping any alive."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from torch import nn
from torch.fx import GraphModule
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer

from hookcli.record.file.record import Ran
from hookcli.record.observe.clocks import Clocks
from hookcli.record.observe.names import plain_type, unwrapped
from hookcli.record.observe.unseen import UNSEEN, forward_called, frames_compiled, passed_by, why_never_ran
from hookcli.tensors.weak import WeakIds

if TYPE_CHECKING:
    from hookcli.record.observe.window import OpenWindow

# Scripts that build models in a loop would fill the summary: those beyond are counted under one name.
_NAMED = 16


@dataclass
class Tally:
    """What is left of a model, or of several under one name, when it is gone."""

    model: str
    parameters: int
    forwards: int = 0
    no_grad_forwards: int = 0
    steps: int = 0
    windows: int = 0
    notes: dict[str, None] = field(default_factory=dict)

    def ran(self) -> Ran:
        """As the record has it."""
        return Ran(**asdict(self) | {"notes": tuple(self.notes)})


class Stopwatch:
    """How long steps take, from the begin of their first forward; those that are looked at are left out of the mean.

    A step of a model with several optimizers is over with the last of theirs before the next forward.
    """

    def __init__(self) -> None:
        self._began: float | None = None
        self._ended: float | None = None
        self._seconds, self._count = 0.0, 0

    def start(self) -> None:
        """A forward begins: the step's first one counts."""
        self._settle()
        if self._began is None:
            self._began = perf_counter()

    def lap(self) -> None:
        """The step is over, unless there is another lap before the next start."""
        if self._began is not None:
            self._ended = perf_counter()

    def take(self) -> float | None:
        """What the step took in seconds, which is left out of the mean; None where it had no forward or no end."""
        began, ended = self._began, self._ended
        self._began = self._ended = None
        return ended - began if began is not None and ended is not None else None

    def mean(self) -> float | None:
        """The mean since it was last asked for, in seconds."""
        self._settle()
        mean = self._seconds / self._count if self._count else None
        self._seconds, self._count = 0.0, 0
        return mean

    def _settle(self) -> None:
        if self._ended is not None and (seconds := self.take()) is not None:
            self._seconds, self._count = self._seconds + seconds, self._count + 1


class Watched:
    """A model that runs: its steps, and the window that is open on it."""

    def __init__(self, module: nn.Module, tally: Tally, clocks: Clocks) -> None:
        self.tally = tally
        self.window: OpenWindow | None = None
        self.training, self.inference = Stopwatch(), Stopwatch()
        self.since_training = 0
        self.blind = ""
        self._module = weakref.ref(unwrapped(module))
        self._clocks = clocks
        self._asked = -1
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._forwards = 0
        self._due = 0
        self._steps: int | None = None
        self._stepped: set[int] = set()

    @property
    def module(self) -> nn.Module | None:
        """The model, without wrappers around it; None when it is gone."""
        return self._module()

    def optimizers(self) -> list[Optimizer]:
        """Those that have its parameters."""
        module = self.module
        if module is not None and self._asked != self._clocks.known:
            self._asked = self._clocks.known
            found = self._clocks.of(module)
            self._optimizers = [weakref.ref(optimizer) for optimizer in found]
            if found and self._steps is None:
                self._steps = max(map(self._clocks.steps, found))
                self.tally.steps += self._steps
        return [optimizer for ref in self._optimizers if (optimizer := ref()) is not None]

    @property
    def trained(self) -> bool:
        """Whether an optimizer has its parameters, or had them."""
        return bool(self.optimizers()) or self._steps is not None

    def step(self) -> int:
        """The number of the step that it is in: of its optimizers, or else of its forwards."""
        return (self._steps or 0) if self.optimizers() else self._forwards

    def step_of(self, optimizer: Optimizer) -> int:
        """The number of the step that the next one of this optimizer belongs to."""
        return self.step() - (1 if self._stepped and id(optimizer) not in self._stepped else 0)

    def stepped(self, optimizer: Optimizer) -> None:
        """It has made a step. Those of several optimizers after a forward are one, whichever of them there are."""
        step = self.step_of(optimizer)
        if step == self._steps:
            self._steps = step + 1
            self._stepped.clear()
            self.tally.steps += 1
        self._stepped.add(id(optimizer))

    def count(self, *, grad: bool) -> int:
        """A forward is over or under way. Of one without grad: how many there were since the last with."""
        self._forwards += 1
        if grad:
            self._stepped.clear()
            self.tally.forwards += 1
            self.since_training = 0
            return 0
        self.tally.no_grad_forwards += 1
        self.since_training += 1
        return self.since_training - 1

    def due(self, every: int) -> bool:
        """Whether to look at a forward without grad: where there were so many forwards since the last such."""
        if self._forwards <= self._due:
            return False
        self._due = self._forwards + every - 1
        return True

    def note(self, text: str) -> None:
        """Say something of this model, once."""
        self.tally.notes[text] = None


class Models:
    """All of them, by the module that is called."""

    def __init__(self, clocks: Clocks, only: Callable[[nn.Module], bool] | None = None) -> None:
        self.tallies: dict[str, Tally] = {}
        self.others: Counter[str] = Counter()
        self.notes: dict[str, None] = {}
        self._clocks = clocks
        self.narrowed = only is not None
        self._only = only
        self._watched: WeakIds[nn.Module, Watched] = WeakIds()
        self._built: Counter[str] = Counter()
        self._alone: WeakIds[Optimizer, nn.Module] = WeakIds()
        self._compiled = frames_compiled()

    def find(self, module: nn.Module) -> Watched | None:
        """The model that is called; None for a module that is none: one without parameters, such as a loss."""
        found = self._watched.get(module)
        if found is not None:
            return found
        if self._only and not self._only(module):
            return None
        if next(module.parameters(), None) is None:
            if not isinstance(module, GraphModule):  # what torch.compile makes of parts
                self.others[plain_type(module)] += 1
            return None
        if (owner := passed_by(module)) is not None:
            self.notes[f"{forward_called(owner)}; its parts are shown as models of their own"] = None
        return self._add(module, plain_type(module))

    def _add(self, module: nn.Module, kind: str) -> Watched:
        parameters = sum(p.numel() for p in module.parameters() if not is_lazy(p))
        self._absorb(module)
        found = self._watched[module] = Watched(module, self._tally(kind, parameters), self._clocks)
        return found

    def compiled(self, module: nn.Module) -> None:
        """No hook sees its calls any more. Of a part of another model the windows on that say so."""
        models = [model for watched in self.alive() if (model := watched.module) is not None and model is not module]
        if any(module is part for model in models for part in model.modules()):
            return
        if (found := self.find(module)) is not None:
            found.blind = UNSEEN
            found.note(UNSEEN)

    def _absorb(self, model: nn.Module) -> None:
        """Parts of this model that were compiled before it ran are no models of their own."""
        parts = {id(part) for part in model.modules()}
        for part, watched in self._watched.items():
            if watched.blind == UNSEEN and id(part) in parts:
                del self._watched[part]
                self.tallies.pop(watched.tally.model, None)
                self._built[plain_type(part)] -= 1

    def blind(self, optimizer: Optimizer) -> list[Watched]:
        """Those with parameters in it whose forward no hook sees; its parameters alone, where it has no others."""
        found = self.of(optimizer)
        if not found and not self.narrowed:
            why = why_never_ran(optimizer, self._compiled)
            alone = self._alone[optimizer] = _of_its_own(optimizer)
            found = [self._add(alone, f"parameters of {type(optimizer).__name__}")]
            found[0].blind = why
            found[0].note(why)
        return [watched for watched in found if watched.blind]

    def alive(self) -> Iterator[Watched]:
        """Those that there still are."""
        yield from (watched for _, watched in self._watched.items())

    def of(self, optimizer: Optimizer) -> list[Watched]:
        """Those that have parameters in it."""
        return [watched for watched in self.alive() if any(optimizer is other for other in watched.optimizers())]

    def _tally(self, kind: str, parameters: int) -> Tally:
        self._built[kind] += 1
        number = self._built[kind]
        name = kind if number == 1 else f"{kind} #{number}" if number <= _NAMED else f"{kind} (further ones)"
        return self.tallies.setdefault(name, Tally(name, parameters))


def _of_its_own(optimizer: Optimizer) -> nn.Module:
    """Its parameters as a module: themselves, where a ParameterList would make others of tensors that are none."""
    alone = nn.ParameterList()
    held = (p for group in optimizer.param_groups for p in group["params"])
    alone._parameters.update({str(number): p for number, p in enumerate(held)})
    return alone
