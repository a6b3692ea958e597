"""The part of fingerprints in a recorded run: digests of what each recorded step of a training begins with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import islice
from numbers import Number
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer

from hookcli.capabilities.fingerprints.lines import DIGITS, VALUE_DIGITS, Fingerprint, Values
from hookcli.hooks.events import HookEvent
from hookcli.hooks.node_hooks import metadata_of, walk
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.autograd import in_backward
from hookcli.hooks.torch_private.nodes import kept_plainly
from hookcli.record.file.record_lines import PartLine, RecordedStep
from hookcli.record.observe.parts import BegunStep, RecordedRun, RecorderPart, StepPart
from hookcli.table.names import in_words
from hookcli.tensors import tree
from hookcli.tensors.checksum import begun_checksums, fetched_checksums
from hookcli.tensors.random_state import accelerators, random_states

_TENSORS = 64  # of a batch
_NODES = 64  # of a loss
_VALUES = 1 << 14  # of a step
_MARK = "hookcli.capabilities.fingerprints"  # on the nodes that made what models return


class Sums:
    """Checksums that are begun, and may have to be waited for, with the dtypes and shapes of their tensors."""

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        self._sums: list[Tensor] = []
        self._kinds: list[str] = []
        self.add(tensors)

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Begin the checksums of those with their own memory."""
        plain = [x for x in tensors if tree.is_plain(x)]
        self._sums += begun_checksums(plain)
        self._kinds += [f"{x.dtype} {tuple(x.shape)}" for x in plain]

    def read(self, digits: int = DIGITS) -> tuple[str, str]:
        """The digest of all, and so many digits of each tensor's. Waits for an accelerator."""
        sums = fetched_checksums(self._sums)
        return digest(repr((sums, self._kinds))), "".join(f"{number % 16**digits:0{digits}x}" for number in sums)

    def __bool__(self) -> bool:
        return bool(self._kinds)


class NamedSums:
    """The checksums of tensors in the order in which they came, each with its name."""

    def __init__(self) -> None:
        self.sums, self.names = Sums(), list[str]()

    def add(self, name: str, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Begin the checksums of tensors, given with their paths in what has this name."""
        for path, x in tensors:
            if tree.is_plain(x) and len(self.names) < _VALUES:
                self.names.append(f"{name}{path}")
                self.sums.add([x])


def digest(text: str | bytes) -> str:
    """A digest of 16 hexadecimal digits."""
    data = text if isinstance(text, bytes) else text.encode()
    return blake2b(data, digest_size=8).hexdigest()


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers with their own memory."""
    named = (*module.named_parameters(), *module.named_buffers())
    return {fqn: x for fqn, x in named if not is_lazy(x) and tree.is_plain(x)}


def state_of(optimizer: Optimizer) -> list[Tensor]:
    """The tensors that an optimizer keeps for its parameters."""
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return [x for p in parameters for x in tree.tensors(optimizer.state.get(p, {}))]


def settings_of(optimizer: Optimizer) -> str:
    """The numbers and words of an optimizer's groups. Waits for an accelerator if a learning rate is on one."""
    texts = [type(optimizer).__name__]
    for group in optimizer.param_groups:
        values = {name: x.tolist() if isinstance(x, Tensor) else x for name, x in group.items() if name != "params"}
        kept = {name: x for name, x in values.items() if x is None or isinstance(x, Number | str | list | tuple)}
        texts.append(repr(sorted(kept.items())))
    return "\n".join(texts)


def random_of(module: nn.Module) -> dict[str, Any]:
    """The states of random number generators: PyTorch's, Python's, and numpy's where it is imported."""
    states = random_states(accelerators(module, ()))
    own = digest(b"".join(x.cpu().numpy().tobytes() for x in states.torch))
    return {"random": own, "python": digest(repr(states.python)), "numpy": digest(states.numpy) if states.numpy else ""}


class Recorder(RecorderPart):
    """Keeps the state after the last recorded step of each model, with which a run that goes on from there begins."""

    def __init__(self) -> None:
        self.after: dict[str, Fingerprint] = {}
        self.names: dict[str, tuple[Sequence[str], Sequence[str]]] = {}
        """The names of outputs and of gradients in the last line with them, by model."""

    def begin_run(self, run: RecordedRun) -> None:
        self._run = run

    def begin_step(self, step: BegunStep) -> StepPart | None:
        return StepOfFingerprints(self, step) if step.training and step.gradients else None

    def run_ends(self) -> None:
        for line in self.after.values():
            self._run.write(line)


class StepOfFingerprints(StepPart):
    """Takes the digests as a step begins, of optimizers as they are about to step, and of values on the way."""

    operators = True

    def __init__(self, recorder: Recorder, begun: BegunStep) -> None:
        self._recorder, self._begun = recorder, begun
        self._weights: Sums | None = None
        self._batch, self._state, self._returned = Sums(), Sums(), Sums()
        self._targets, self._loss = Sums(), Sums()
        self._outputs, self._gradients = NamedSums(), NamedSums()
        self._settings: list[str] = []
        self._optimizers: list[Optimizer] = []
        self._random: dict[str, Any] = {}
        self._received = 0

    def attach(self, session: HookSession) -> None:
        weights = weights_of(self._begun.module)
        self._weights, self._names = Sums(weights.values()), [self._begun.name(fqn) for fqn in weights]
        self._random = random_of(self._begun.module)
        session.forward_pre(self._enter)
        session.forward(self.leave)
        if self._begun.operators:
            session.output_grad(self.arrive)

    def _enter(self, event: HookEvent) -> None:
        if event.fqn or in_backward() or self._received >= _TENSORS:
            return
        received = tree.received(event.args, event.kwargs)
        self._received += len(received)
        self._batch.add(received)

    def leave(self, event: HookEvent) -> None:
        if in_backward():  # checkpointing runs a part again
            return
        if self._begun.operators:
            self._outputs.add(self.place_of(event), tree.leaves(event.output))
        if not event.fqn:
            returned = tree.tensors(event.output)[:_TENSORS]
            self._returned.add(returned)
            for node in (x.grad_fn for x in returned if x.grad_fn is not None):
                metadata_of(node)[_MARK] = True

    def arrive(self, event: HookEvent) -> None:
        if event.grad is not None and not event.inner:
            self._gradients.add(self.place_of(event), [(event.path, event.grad)])

    def place_of(self, event: HookEvent) -> str:
        """The name of what an event is about, in words; an operator with its line in the program."""
        line = f" at {event.operator.source}" if event.operator and event.operator.source else ""
        return f"{in_words(self._begun.name(event.fqn))}{f' (call {event.call + 1})' if event.call else ''}{line}"

    def backward_begins(self, roots: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> None:
        """Begin the checksums of what the loss keeps, up to what models returned: of its targets, among others."""
        nodes = [root.grad_fn for root in roots if root.grad_fn is not None]
        of_loss = islice(walk(nodes, lambda node: _MARK not in metadata_of(node)), _NODES)
        kept = [(name, x) for node in of_loss for name, x in kept_plainly(node)]
        self._targets.add(x for name, x in kept if name == "target")
        self._loss.add({(x.data_ptr(), x.shape): x for _, x in kept if tree.is_plain(x)}.values())

    def optimizer_takes(self, optimizer: Optimizer) -> None:
        self._state.add(state_of(optimizer))
        self._settings.append(settings_of(optimizer))
        self._optimizers.append(optimizer)
        if self._begun.operators:
            held = {id(p) for group in optimizer.param_groups for p in group["params"]}
            for fqn, p in self._begun.module.named_parameters():
                if id(p) in held and p.grad is not None:
                    self._gradients.add(self._begun.name(fqn), [("", p.grad)])

    def lines(self, step: RecordedStep, *, scaled: bool) -> list[PartLine]:
        """The lines of this step. Waits for an accelerator."""
        if self._weights is None or not step.complete:
            return []
        weights, each = self._weights.read()
        state, kept = self._state.read()[0], Sums(x for one in self._optimizers for x in state_of(one)).read()[0]
        first = step.model not in self._recorder.after
        self._recorder.after[step.model] = Fingerprint(
            step.model,
            step.step + 1,
            weights=Sums(weights_of(self._begun.module).values()).read()[0],
            kept=kept,
            after=True,
        )
        line = Fingerprint(
            step.model,
            step.step,
            weights=weights,
            kept=state,
            settings=digest("".join(self._settings)),
            received=self._batch.read()[0] if self._received else "",
            returned=self._returned.read()[0] if self._returned else "",
            targets=self._targets.read()[0] if self._targets else "",
            loss=self._loss.read()[0] if self._loss else "",
            each=each,
            names=self._names if first else (),
            **self._random,
        )
        return [line, *self.values_line(step)]

    def values_line(self, step: RecordedStep) -> list[Values]:
        """The line on the values of this step, if operators are recorded."""
        if not self._begun.operators:
            return []
        names = self._outputs.names, self._gradients.names
        as_before = self._recorder.names.get(step.model) == names
        self._recorder.names[step.model] = names
        of_outputs, of_gradients = ((), ()) if as_before else names
        outputs, gradients = (one.sums.read(VALUE_DIGITS)[1] for one in (self._outputs, self._gradients))
        return [Values(step.model, step.step, outputs, of_outputs, gradients, of_gradients)]
