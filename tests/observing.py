"""Programs that are run twice, alone and observed: both must come out the same, and nothing may stay behind."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import torch
from support import equal, hooks_on
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

from hookcli.hooks.torch_private.exchange import DataLoaderIterator
from hookcli.record.file.parsing import parsed
from hookcli.record.file.record_lines import ModelRun, ModelSettings, NonFinite, PartLine, RecordedStep, StepLosses
from hookcli.record.observe.observer import Observer
from hookcli.record.observe.recording_plan import RecordingPlan, given_options
from hookcli.registry.capability import recorder_options
from hookcli.table import Report, Row

HERE = Path("record")
WRAPPED = (
    (torch.autograd, "backward"),
    (torch_optimizer.Optimizer, "add_param_group"),
    (nn.Module, "compile"),
    (BaseProcess, "start"),
    (torch.amp.GradScaler, "scale"),
    (torch.amp.GradScaler, "step"),
    (DataLoaderIterator, "__next__"),
    (torch_module, "_has_any_global_hook"),
)


class Steps(list[RecordedStep]):
    """Recorded steps, each read from its line at the first look, which takes a quarter of a short test's time."""

    def add(self, line: dict[str, Any]) -> None:
        self.append(cast(RecordedStep, line))
        if len(self) == 1:  # of every test, one is read in any case
            self[0]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        step: Any = super().__getitem__(index)
        if isinstance(step, dict):
            step = self[index] = cast(RecordedStep, parsed(step, HERE))
        return step

    def __iter__(self) -> Iterator[RecordedStep]:
        return (self[number] for number in range(len(self)))

    def __reversed__(self) -> Iterator[RecordedStep]:
        return (self[number] for number in reversed(range(len(self))))


@dataclass
class Seen:
    """A Sink, and what is known at the end."""

    recorded: Steps = field(default_factory=Steps)
    non_finites: list[NonFinite] = field(default_factory=list)
    of_parts: list[PartLine] = field(default_factory=list)
    every_loss: dict[str, dict[int, float | None]] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list)
    ran: dict[str, ModelRun] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    skipped: list[tuple[str, int]] = field(default_factory=list)
    short: list[int] = field(default_factory=list)
    path: Path = HERE

    def step(self, step: RecordedStep) -> None:
        self.recorded.add(step.to_dict())

    def losses(self, losses: StepLosses) -> None:
        read = cast(StepLosses, parsed(losses.to_dict(), HERE))
        self.short += read.short
        if read.taken:
            self.every_loss.setdefault(read.model, {}).update(enumerate(read.values, read.first))
        else:
            self.skipped.append((read.model, read.first))

    def non_finite(self, found: NonFinite) -> None:
        self.non_finites.append(cast(NonFinite, parsed(found.to_dict(), HERE)))

    def of_part(self, line: PartLine) -> None:
        self.of_parts.append(cast(PartLine, parsed(line.to_dict(), HERE)))

    def settings(self, settings: ModelSettings) -> None:
        parsed(settings.to_dict(), HERE)

    def begin_step(self) -> None:
        pass

    def part_failed(self, line: str, error: Exception) -> None:
        self.errors.append(error)

    def gave_up(self, error: Exception) -> None:
        self.errors.append(error)

    def of(self, model: str | None = None, phase: str = "train") -> list[RecordedStep]:
        return [w for w in self.recorded if w.phase == phase and model in (None, w.model)]

    def steps(self, model: str | None = None, phase: str = "train") -> list[int]:
        return [w.step for w in self.of(model, phase)]

    @property
    def only(self) -> RecordedStep:
        (recorded,) = self.recorded
        return recorded


def report(recorded: RecordedStep, probe: str) -> Report:
    return next(r for r in recorded.reports if r.probe == probe)


def rows(recorded: RecordedStep, probe: str, kind: str | None = None) -> dict[str, Row]:
    """By fqn; where there are more of one, fqn and path."""
    found = [row for row in report(recorded, probe).rows if kind in (None, row.get("kind"))]
    keys = [row.fqn + (row.get("path") or "") for row in found]
    assert len(set(keys)) == len(keys), "a place has two rows"
    return dict(zip(keys, found, strict=True))


def skipped(recorded: RecordedStep, probe: str) -> dict[str, str]:
    return {s.fqn: s.reason for s in report(recorded, probe).skipped}


def global_state() -> dict[str, Any]:
    tables = {
        name: len(t) for name, t in vars(torch_module).items() if name.startswith("_global_") and hasattr(t, "__len__")
    }
    steps = {
        name: len(getattr(torch_optimizer, name))
        for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
    }
    return {**tables, **steps, **{name: getattr(owner, name) for owner, name in WRAPPED}}


@contextmanager
def observing(only: Callable[[nn.Module], bool] | None = None, **plan: Any) -> Iterator[Seen]:
    """Every step is recorded, unless the plan says otherwise."""
    seen, before = Seen(), global_state()
    of_parts = {name: plan.pop(name) for name in recorder_options() if name in plan}
    observer = Observer(RecordingPlan(**({"every": 1} | plan), of_parts=given_options(of_parts)), seen, only).start()
    try:
        yield seen
    finally:
        observer.stop()
        seen.ran = dict(observer.models.counts)
        seen.others = dict(observer.models.others)
        seen.notes = observer.notes()
        assert global_state() == before


def _run(program: Callable[[], Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    random.seed(0)
    result = program()
    return {"result": _plain(result), "rng": torch.get_rng_state(), "random": random.getstate()}


def _plain(x: Any) -> Any:
    """Models by their tensors, buffers, gradients and hooks."""
    if isinstance(x, nn.Module):
        grads = {name: p.grad for name, p in x.named_parameters() if p.grad is not None}
        own = {name: number for name, number in hooks_on(x).items() if not name.startswith("_global_")}
        return dict(x.state_dict()), grads, own
    if isinstance(x, (list, tuple)):
        return [_plain(item) for item in x]
    return x.detach().clone() if isinstance(x, Tensor) else x


def observed(program: Callable[[], Any], **plan: Any) -> Seen:
    """What was seen of the program, whose result is the same bit for bit as without."""
    alone = _run(program)
    with observing(**plan) as seen:
        result = _run(program)
    for key in alone:
        assert equal(alone[key], result[key]), f"{key} is not as without hookcli"
    assert not seen.errors, seen.errors
    return seen
