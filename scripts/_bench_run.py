"""Training steps under the observer of `hookcli run`, and of DDP under `hookcli comm`, that scripts/bench times.

It imports torch, which the parent of the measured processes must not.
"""

from __future__ import annotations

import copy
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from _bench_work import Actions, backward, build
from torch import nn

from hookcli.commands.options import Options
from hookcli.commands.output import Output
from hookcli.commands.show_follow import export
from hookcli.record.file.record_lines import End, Header
from hookcli.record.file.tail import tail_of
from hookcli.record.file.views.query import Query
from hookcli.record.file.writer import RecordWriter
from hookcli.record.observe import recording_plan
from hookcli.record.observe.observer import Observer
from hookcli.record.observe.recording_plan import RecordingPlan
from hookcli.record.record_sink import RecordSink

COMM_STEPS = 3  # as `hookcli comm` makes by default; the first one has more to do


class ObservedStep:
    """A training step as a script has it, and before it an observer that leaves it alone or records it.

    Starting the observer is not part of the step, nor is the search for the model's name, which the model's first
    forward has to wait for; writing the record is. `ranks`: whether the model is one of a DDP. `where`: as for `build`.
    """

    def __init__(self, *, ranks: bool = False, name: str = "resnet50", **where: Any) -> None:
        self.module, self.x = build(name, train=True, **where)
        self.model = nn.parallel.DistributedDataParallel(self.module) if ranks else self.module
        self.labels = torch.randint(1000, (len(self.x),), device=self.x.device)
        # A rate at which the loss stays where it is: at a loss of 0 gradients underflow, which no training shows.
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6, momentum=0.9)
        self._observer: Observer | None = None
        self._exporter: LiveExport | None = None

    def step(self) -> None:
        nn.functional.cross_entropy(self.model(self.x), self.labels).backward()
        self.optimizer.step()

    def plain(self) -> None:
        """Nothing is on in the next step."""
        if self._observer:
            self._observer.stop()
            self._observer = None
        if self._exporter:
            self._exporter.end()
            self._exporter = None
        self.model.zero_grad(set_to_none=True)

    def watched(self, probes: Sequence[str], rules: Sequence[str] = ()) -> None:
        """An observer, which has seen the model, is on in the next step; without probes it does not record the step."""
        self.plain()
        self._observe(RecordWriter("/dev/null"), probes, rules)

    def exported(self, probes: Sequence[str], name: str) -> None:
        """An observer records the next step, during which another process exports the step before it."""
        self.plain()
        self._exporter = LiveExport(name)
        self._observe(self._exporter.writer, probes)
        self.step()
        self.model.zero_grad(set_to_none=True)

    def _observe(self, writer: RecordWriter, probes: Sequence[str], rules: Sequence[str] = ()) -> None:
        sink = RecordSink(writer.path, writer.begun, Header("bench", [], "", 1, {}), print)
        plan = RecordingPlan(
            every=1, start=0 if probes else 1, probes=probes, no_grad=0, of_parts={"rules": [*rules]} if rules else {}
        )
        self._observer = Observer(plan, sink).start()
        with torch.no_grad():
            self.model(self.x[:2])


class TinySteps:
    """Steps of a model so small that what an unrecorded step costs shows; the observer has seen the model before."""

    STEPS = 200
    TRAINING = 10_000

    def __init__(self) -> None:
        torch.manual_seed(0)
        self._model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self._x = torch.randn(4, 8)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-6)
        self._observer: Observer | None = None

    def step(self) -> None:
        self._optimizer.zero_grad()
        self._model(self._x).square().mean().backward()
        self._optimizer.step()

    def steps(self) -> None:
        for _ in range(self.STEPS):
            self.step()

    def plain(self) -> None:
        """Nothing is on in the next steps."""
        if self._observer:
            self._observer.stop()
            self._observer = None

    def training(self) -> None:
        for _ in range(self.TRAINING):
            self.step()

    def chosen(self) -> None:
        """An observer is on in the next steps, and chooses those that it records and follows."""
        self._observe(RecordingPlan())

    def observed(self) -> None:
        """An observer is on in the next steps, and records none."""
        self._observe(RecordingPlan(every=10**9, start=10**6))
        for _ in range(3):
            self.step()

    def _observe(self, plan: RecordingPlan) -> None:
        self.plain()
        writer = RecordWriter("/dev/null")
        sink = RecordSink(writer.path, writer.begun, Header("bench", [], "", 0, {}), print)
        self._observer = Observer(plan, sink).start()


class WholeRun:
    """A whole training, with an observer that keeps every loss and chooses the recorded steps; and without.

    Each is in a process of its own, the plain one at one end of `turns` and the observed one at the other. They train
    in turn, some steps each, so that a machine that gets slower does so for both; the other's turns count for neither.
    A training has as many steps as fill a little more than a minute, from which on `hookcli run` keeps to a share of
    the time.
    """

    _SECONDS = 65
    _IN_TURN = 30

    def __init__(self, turns: Connection, *, observed: bool) -> None:
        self._model, _ = build("resnet18", train=True)
        self._x, self._labels = torch.randn(2, 3, 64, 64), torch.randint(1000, (2,))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-6)
        self._turns = turns
        self._waited = 0.0
        recording_plan.perf_counter = self._now
        self._number = self._wait() if observed else 0
        self._train(20)
        started = time.perf_counter()
        self._train(self._IN_TURN)
        seconds = time.perf_counter() - started
        self._number = self._number or round(self._SECONDS / seconds)
        turns.send(self._number)
        if not observed:
            self._wait()

    def plain(self) -> tuple[float, float]:
        """Train while the other process trains under the observer; return the seconds of both."""
        started = self._now()
        others: float | None = None
        for _ in range(self._number):
            self._train(self._IN_TURN)
            self._turns.send(None)
            others = self._wait()
        assert others is not None
        return self._now() - started, others

    def observed(self) -> None:
        """Train under an observer, in turn with the other process."""
        with TemporaryDirectory() as folder:
            writer = RecordWriter(Path(folder) / "bench.run.jsonl")
            sink = RecordSink(writer.path, writer.begun, Header("bench", [], "", 0, {}), print)
            self._wait()
            started = self._now()
            observer = Observer(RecordingPlan(), sink).start()
            for _ in range(self._number - 1):
                self._train(self._IN_TURN)
                self._turns.send(None)
                self._wait()
            self._train(self._IN_TURN)
            observer.stop()
            self._turns.send(self._now() - started)

    def _now(self) -> float:
        return time.perf_counter() - self._waited

    def _wait(self) -> Any:
        began = time.perf_counter()
        said = self._turns.recv()
        self._waited += time.perf_counter() - began
        return said

    def _train(self, steps: int) -> None:
        for _ in range(steps):
            self._optimizer.zero_grad()
            nn.functional.cross_entropy(self._model(self._x), self._labels).backward()
            self._optimizer.step()


class LiveExport:
    """The process beside a program under `hookcli run --live`, which exports the record in this format as it grows."""

    def __init__(self, name: str) -> None:
        self._folder = TemporaryDirectory()
        record = Path(self._folder.name) / "bench.run.jsonl"
        self.writer = RecordWriter(record)
        output = Output(Options(format=name, output=f"{self._folder.name}/runs", quiet=True))
        self._process = os.fork()
        if self._process == 0:
            try:
                os.nice(10)  # as --live does
                export(tail_of(record), Query(), output)
            finally:
                os._exit(0)

    def end(self) -> None:
        """End the record, and wait until all of it is exported."""
        self.writer.write(End(0, None, 0.0, []))
        os.waitpid(self._process, 0)
        self.writer.close()
        self._folder.cleanup()


class LoggedStep:
    """The same step, and what `wandb.watch` logs of it, offline. Starting wandb is not part of the step."""

    def __enter__(self) -> LoggedStep:
        import wandb

        self._folder = tempfile.TemporaryDirectory()
        self._run = wandb.init(mode="offline", dir=self._folder.name, settings=wandb.Settings(silent=True))
        self._trained = ObservedStep()
        self._logs = False
        return self

    def __exit__(self, *error: object) -> None:
        self._run.finish()
        self._folder.cleanup()

    def step(self) -> None:
        self._trained.step()
        if self._logs:
            self._run.log({"loss": 0.0})

    def plain(self) -> None:
        """Nothing is on in the next step."""
        if self._logs:
            self._run.unwatch(self._trained.model)
        self._logs = False
        self._trained.plain()

    def watched(self, what: str) -> None:
        """wandb watches the next step: "gradients", or "all"."""
        self.plain()
        self._run.watch(self._trained.model, log=what, log_freq=1)
        self._logs = True


@contextmanager
def rank(store: str, number: int) -> Iterator[None]:
    """One of two ranks, in their own process group; they share the threads."""
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=number, world_size=2)
    yield
    dist.destroy_process_group()


def comm(name: str) -> Actions:
    """As many steps of DDP with a hook as `hookcli comm` makes, and the same with all that it does in them."""
    from hookcli.capabilities.comm.probe import CommProbe
    from hookcli.hooks.communication.comm_hooks import find_hook
    from hookcli.hooks.communication.ddp_observer import CommObserver, ExactMeans, Payload

    hook = find_hook(name)
    model, x = build("resnet50", train=True)
    plain, observed = (nn.parallel.DistributedDataParallel(m) for m in (model, copy.deepcopy(model)))
    plain.register_comm_hook(hook.make_state(), hook.function)
    reference = dist.new_group()
    fqns = {id(p): fqn for fqn, p in observed.module.named_parameters()}
    observer = CommObserver(hook, fqns, CommProbe(), Payload(reference), ExactMeans(reference))
    observer.register(observed)

    def step(ddp: nn.Module) -> None:
        ddp.zero_grad(set_to_none=True)
        backward(ddp, x)

    def plainly() -> None:
        for _ in range(COMM_STEPS):
            step(plain)

    def under_observer() -> int:
        observer.look, observer.means = (probe := CommProbe()), ExactMeans(reference)
        for number in range(COMM_STEPS):
            observer.begin(number)
            with observer.payload.counting():
                step(observed)
        return len(probe.report("resnet50", {}).rows)

    step(plain), step(observed)  # DDP rebuilds its buckets after the first
    return {"plain DDP": plainly, "hookcli comm": under_observer}
