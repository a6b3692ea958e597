"""Parts of the inventory, each of which gathers rows of one or a few kinds, call by call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import ref

from torch import Tensor

from hookcli.hooks.events import HookEvent
from hookcli.hooks.node_hooks import walk
from hookcli.hooks.operators.calls import is_whole
from hookcli.hooks.session import HookSession
from hookcli.hooks.tensor_origins import CONSTANT, TensorOrigins, version_of
from hookcli.hooks.torch_private.autograd import next_sequence_number, sequence_number
from hookcli.probes.shared.doubled import doubled
from hookcli.tensors import tree
from hookcli.tensors.checksum import checksum
from hookcli.tensors.chunks import fetched


class InventoryPart:
    """Sees each call of a module, and of an operator where operators are watched, as it begins and as it ends."""

    def __init__(self, session: HookSession) -> None:
        self.session = session

    def enter(self, event: HookEvent) -> None:
        """Take in what a module is called with."""

    def leave(self, event: HookEvent) -> None:
        """Take in what a module or operator returned."""

    def batch_ended(self) -> None:
        """Reduce what the batch has shown."""

    def rows(self) -> list[dict[str, object]]:
        """The rows, whose values are read back here."""
        raise NotImplementedError


def numbers_of(counts: Sequence[Tensor]) -> list[int]:
    """Single integers that may live on an accelerator, from each device in one copy."""
    return [number for (number,) in fetched([count.reshape(1) for count in counts])]


@dataclass(slots=True)
class _Input:
    """An input while the model runs; `total` is the checksum that it came with, None where it has no plain memory."""

    path: str
    tensor: ref[Tensor]
    version: int
    total: Tensor | None


class ChangedInputs(InventoryPart):
    """Rows of kind `changed`: an input, and the module or operator that first wrote into it.

    PyTorch counts changes, which tells the place; those past the counter (through `.data`, or numpy) only change the
    bits, and are the model's.
    """

    def __init__(self, session: HookSession) -> None:
        super().__init__(session)
        self._inputs: list[_Input] = []
        self._writers: dict[str, str] = {}  # of each input, by its path
        self._totals: list[tuple[str, Tensor, Tensor]] = []

    def enter(self, event: HookEvent) -> None:
        """Take in the inputs as the model's first call begins; later, look whether the code around a call wrote."""
        if event.fqn == "" and event.call == 0:
            self._inputs = [
                _Input(path, ref(x), version_of(x), checksum(x) if tree.is_plain(x) else None)
                for path, x in tree.arguments(event.args, event.kwargs)
            ]
        elif self._inputs:
            caller = self.session.calls.caller()
            self._look(caller.hooked.fqn if caller else "")

    def leave(self, event: HookEvent) -> None:
        if self._inputs:
            self._look(event.fqn)
        if event.fqn == "" and event.call == 0:
            for one in self._inputs:
                x = one.tensor()
                if one.total is not None and x is not None:
                    self._totals.append((one.path, one.total, checksum(x)))
            self._inputs = []

    def _look(self, fqn: str) -> None:
        for one in self._inputs:
            x = one.tensor()
            if x is not None and version_of(x) != one.version:
                one.version = version_of(x)
                self._writers.setdefault(one.path, fqn)

    def batch_ended(self) -> None:
        """Read the checksums back."""
        totals = iter(numbers_of([total for _, *both in self._totals for total in both]))
        for path, *_ in self._totals:
            if next(totals) != next(totals):
                self._writers.setdefault(path, "")
        self._totals.clear()

    def rows(self) -> list[dict[str, object]]:
        self.batch_ended()
        named = ((tree.keyword(path) or path, fqn) for path, fqn in self._writers.items())
        return [{"kind": "changed", "fqn": fqn, "name": name} for name, fqn in named]


class TensorSources(InventoryPart):
    """A row of kind `made` for each call of an operator or module: `made_from` lists the calls, by fqn and number, that
    made the tensors that it received.

    A module in which operators or other modules run makes nothing itself: its row lists the calls that made its output.
    """

    def __init__(self, session: HookSession) -> None:
        super().__init__(session)
        model = session.model
        self._origins = TensorOrigins([*model.parameters(), *model.buffers()])
        self._places: list[tuple[str, int]] = []
        self._rows: dict[tuple[str, int], dict[str, object]] = {}

    def leave(self, event: HookEvent) -> None:
        if self.session.batch_number:
            return
        received = tree.received(event.args, event.kwargs)
        made = tree.tensors(event.output)
        makes = event.operator is not None or (event.module is not None and is_whole(event.module))
        numbers = dict.fromkeys(self._origins.of(x) for x in (received if makes else made))
        makers = [self._places[number] for number in numbers if number is not None and number != CONSTANT]
        self._rows[event.fqn, event.call] = {
            "kind": "made",
            "fqn": event.fqn,
            "call": event.call,
            "made_from": makers,
            "source": event.operator.source if event.operator else None,
        }
        if makes:
            self._places.append((event.fqn, event.call))
            for x in made:
                note = self._origins.written if any(x is y for y in received) else self._origins.made
                note(x, len(self._places) - 1)

    def rows(self) -> list[dict[str, object]]:
        return [*self._rows.values()]


class DoubledActivations(InventoryPart):
    """Rows of kind `doubled`: `fqn` is the module that called the softmax or sigmoid, by the numbers of its nodes."""

    def __init__(self, session: HookSession) -> None:
        super().__init__(session)
        session.before_backward(self._search)
        self._began: dict[tuple[str, int], int] = {}
        self._calls: list[tuple[int, int, str]] = []
        self._rows: dict[tuple[str, str], dict[str, object]] = {}

    def enter(self, event: HookEvent) -> None:
        self._began[event.fqn, event.call] = next_sequence_number()

    def leave(self, event: HookEvent) -> None:
        if event.operator is not None:
            return
        began = self._began.pop((event.fqn, event.call), None)
        if began is not None and began < (end := next_sequence_number()):
            self._calls.append((began, end, event.fqn))

    def _search(self, roots: Sequence[Tensor]) -> None:
        for one in doubled(walk(x.grad_fn for x in roots if x.grad_fn is not None)):
            number = sequence_number(one.node)
            inside = [(began, fqn) for began, end, fqn in self._calls if began <= number < end]
            fqn = max(inside)[1] if inside else ""
            self._rows[fqn, one.name] = {"kind": "doubled", "fqn": fqn, "type": one.name, "loss": one.goes_into}

    def batch_ended(self) -> None:
        """Forget where the nodes of a graph that is gone were made."""
        self._calls.clear()

    def rows(self) -> list[dict[str, object]]:
        return [*self._rows.values()]
