"""The part of fingerprints in a recorded run: digests of what each recorded step of a training begins with."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from numbers import Number
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer

from hookcli.capabilities.fingerprints.lines import DIGITS, Fingerprint
from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.autograd import in_backward
from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.observe.parts import BegunStep, RecordedRun, RecorderPart, StepPart
from hookcli.tensors import tree
from hookcli.tensors.checksum import begun_checksums, fetched_checksums
from hookcli.tensors.random_state import accelerators, random_states

_TENSORS = 64  # of a batch


class Sums:
    """Checksums that are begun, and may have to be waited for, with the dtypes and shapes of their tensors."""

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        self._sums: list[Tensor] = []
        self._kinds: list[str] = []
        self.add(tensors)

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Begin the checksums of those with memory of their own."""
        plain = [x for x in tensors if tree.is_plain(x)]
        self._sums += begun_checksums(plain)
        self._kinds += [f"{x.dtype} {tuple(x.shape)}" for x in plain]

    def read(self) -> tuple[str, str]:
        """The digest of all, and a few digits of each tensor's. Waits for an accelerator."""
        sums = fetched_checksums(self._sums)
        return digest(repr((sums, self._kinds))), "".join(f"{number % 16**DIGITS:0{DIGITS}x}" for number in sums)


def digest(text: str | bytes) -> str:
    """A digest of 16 hexadecimal digits."""
    data = text if isinstance(text, bytes) else text.encode()
    return blake2b(data, digest_size=8).hexdigest()


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers with memory of their own."""
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

    def begin_run(self, run: RecordedRun) -> None:
        self._run = run

    def begin_step(self, step: BegunStep) -> StepPart | None:
        return StepOfFingerprints(self, step) if step.training and step.gradients else None

    def run_ends(self) -> None:
        for line in self.after.values():
            self._run.write(line)


class StepOfFingerprints(StepPart):
    """Takes the digests as a step begins, and of optimizers as they are about to step."""

    def __init__(self, recorder: Recorder, begun: BegunStep) -> None:
        self._recorder, self._begun = recorder, begun
        self._weights: Sums | None = None
        self._batch, self._state = Sums(), Sums()
        self._settings: list[str] = []
        self._optimizers: list[Optimizer] = []
        self._random: dict[str, Any] = {}
        self._received = 0

    def attach(self, session: HookSession) -> None:
        weights = weights_of(self._begun.module)
        self._weights, self._names = Sums(weights.values()), [self._begun.name(fqn) for fqn in weights]
        self._random = random_of(self._begun.module)
        session.forward_pre(self._enter)

    def _enter(self, event: HookEvent) -> None:
        if event.fqn or in_backward() or self._received >= _TENSORS:
            return
        received = tree.received(event.args, event.kwargs)
        self._received += len(received)
        self._batch.add(received)

    def optimizer_takes(self, optimizer: Optimizer) -> None:
        self._state.add(state_of(optimizer))
        self._settings.append(settings_of(optimizer))
        self._optimizers.append(optimizer)

    def lines(self, step: RecordedStep, *, scaled: bool) -> list[Fingerprint]:
        """The line of this step. Waits for an accelerator."""
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
        return [
            Fingerprint(
                step.model,
                step.step,
                weights=weights,
                kept=state,
                settings=digest("".join(self._settings)),
                received=self._batch.read()[0] if self._received else "",
                each=each,
                names=self._names if first else (),
                **self._random,
            )
        ]
