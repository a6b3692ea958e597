"""The work of a recorded step: its samples, tokens and operations, and the rates at which the program does it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from hookcli.capabilities.speed.columns import DECLARED
from hookcli.capabilities.speed.peaks import peak_of
from hookcli.hooks.clock import ProgramClock
from hookcli.hooks.events import HookEvent
from hookcli.hooks.node_hooks import walk
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.autograd import in_backward
from hookcli.hooks.torch_private.graph_work import GraphWork, work_of
from hookcli.record.observe.parts import BegunStep, StepPart
from hookcli.table import Report, Row, columns_named
from hookcli.table.columns import names
from hookcli.table.meta import Meta
from hookcli.tensors import tree

_GRAPHS = 8  # graphs that are counted, of inputs of different shapes


@dataclass
class Done:
    """The recorded steps of a model: the last one, when it ended, and the work of its graphs by its inputs' shapes."""

    clock: ProgramClock
    peak_flops: float | None
    step: int = -1
    at: float = 0.0
    graphs: dict[Hashable, GraphWork] = field(default_factory=dict)
    peaks: dict[torch.dtype, float | None] = field(default_factory=dict)

    def seconds(self, step: int) -> float | None:
        """The mean seconds of the steps since the last recorded one, with what the program did between them."""
        now, before, last = self.clock.now(), self.at, self.step
        self.step, self.at = step, now
        return (now - before) / (step - last) if 0 <= last < step and now > before else None

    def peak(self, module: nn.Module, dtype: torch.dtype) -> float | None:
        """The operations per second of the model's device at its peak; None if that is not known."""
        if self.peak_flops:
            return self.peak_flops
        if dtype not in self.peaks:
            device = next((p.device for p in module.parameters()), torch.device("cpu"))
            self.peaks[dtype] = peak_of(device, dtype)
        return self.peaks[dtype]


class StepOfWork(StepPart):
    """Counts what the model receives, and the products in the graphs of its losses."""

    inside_compiled = True

    def __init__(self, begun: BegunStep, done: Done) -> None:
        self._begun, self._done = begun, done
        self._samples = self._tokens = 0
        self._shapes: list[tuple[int, ...]] = []
        self._flops: Counter[torch.dtype] = Counter()
        self._unknown = ""

    def attach(self, session: HookSession) -> None:
        session.forward_pre(self.enter)

    def enter(self, event: HookEvent) -> None:
        """Count the rows of what the model receives; not again in a recomputation."""
        if event.fqn or in_backward() or not torch.is_grad_enabled():
            return
        received = tree.received(event.args, event.kwargs)
        self._shapes += [tuple(x.shape) for x in received]
        first = next((x for x in received if x.dim()), None)
        if first is not None:
            self._samples += len(first)
            is_text = first.dim() == 2 and not first.is_floating_point() and not first.is_complex()
            self._tokens += first.numel() if is_text else 0

    def backward_begins(self, roots: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> None:
        nodes = [root.grad_fn for root in roots if root.grad_fn is not None]
        known, key = self._done.graphs, (*self._shapes, len(nodes))
        if key not in known and len(known) < _GRAPHS:
            known[key] = work_of(walk(nodes))
        if (work := known.get(key)) is None:
            self._unknown = "inputs of many different shapes"
            return
        self._shapes = []
        self._unknown = self._unknown or work.hidden
        for dtype, macs in (work.forward + work.backward).items():
            self._flops[dtype] += 2 * macs

    def report(self, meta: Meta, group: Sequence[int]) -> Report | None:
        """A row of the model itself, once the step is complete."""
        if not meta["complete"] or not self._samples:
            return None
        counts = {"samples": self._samples, "tokens": self._tokens or None}
        flops = None if self._unknown else sum(self._flops.values()) or None
        values: dict[str, object] = {"fqn": "", "step_flops": flops}
        values |= {f"step_{name}": count for name, count in counts.items()}
        seconds = self._done.seconds(meta["step"])
        if seconds:
            values |= {f"{name}_per_second": count / seconds for name, count in counts.items() if count}
        if seconds and flops:
            values["flops_per_second"] = round(flops / seconds)
            dtype = max(self._flops, key=self._flops.__getitem__)
            if peak := self._done.peak(self._begun.module, dtype):
                values |= {"peak_flops": round(peak), "peak_share": flops / seconds / peak}
        return Report("speed", self._begun.model, columns_named("fqn", *names(DECLARED)), [Row(values)], meta)
