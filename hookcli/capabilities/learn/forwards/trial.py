"""Runs a model whose loss stays near that of guessing a few more times, to find rows that mix or a wrong backward."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from hookcli.capabilities.learn.forwards.further_run import Batch, graph_faults, put_back_after
from hookcli.checks.base import ERROR
from hookcli.checks.evaluation import BatchDependence
from hookcli.checks.measurements import Comparison, Measurements
from hookcli.engine.outputs import comparable, largest_difference
from hookcli.engine.preserve import copied
from hookcli.hooks.events import HookEvent
from hookcli.hooks.torch_private.modules import PARTS, has_forward_hooks
from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.observe.parts import BegunStep
from hookcli.system.torchrun import joined_world
from hookcli.tensors import tree

_STEP = 16  # before which a loss near guessing's says nothing
_LAST, _LEAST, _MOST = 8, 3, 0.75  # recorded steps, at most and at least, and the share of them that must be near it
_NEAR, _UNFALLEN = 0.95, 0.75  # of the loss of guessing; of the first loss, where that is not known
PLACE = (
    "the output for a row depends on its place in the batch: "
    "the model may take dimension 0, the batch, for the sequence"
)
_NONE = (
    "found none of the faults that it looks for: rows that mix or depend on their place, layers made in forward, "
    "a backward that ignores its gradient"
)
_APART = 1e-3  # of the largest output
_SIZE = 2**28  # elements of parameters that are copied


@dataclass
class Trial:
    """Runs a model on the batch of a recorded step: in eval mode beside other rows, and in another order; and with
    gradients, to look at its graph.

    It does so if that is `wanted`, as the program's code is called for it, and what that changes elsewhere stays
    changed. A model is asked once, if its last recorded losses are near the level of guessing, or near the first one
    where that level is not known, as the program is about to call it in another recorded step. The model, its inputs
    and PyTorch's, Python's and numpy's random states are then as before. Models with hooks, which may belong to the
    program's own observation, compiled or very large ones, and those of several processes are not asked.
    """

    wanted: bool
    words: str = ""
    """How the rows mix, or depend on their places, or which Function ignores its gradient; "" if nothing is known."""
    _near: deque[bool] = field(default_factory=lambda: deque(maxlen=_LAST))
    _batch: Batch | None = None
    _asks: bool = False
    _late: bool = False
    _asked: bool = False
    _items: int = 0
    """The labels of the step."""
    _guessed: bool = False
    """True if it is known what guessing gives."""
    _first: float | None = None
    """The loss of the first recorded step, where it is not known what guessing gives."""

    def note(self, step: RecordedStep, level: Mapping[str, Any]) -> None:
        """Note a recorded step, and the fields of its line from which the level of guessing follows."""
        if self._first is None:
            self._first = step.loss
        guessed = loss_of_guessing(level)
        self._guessed = guessed is not None
        high = _NEAR * guessed if guessed is not None else _UNFALLEN * (self._first or 0.0)
        self._near.append(step.loss is not None and step.loss >= high)
        self._items = level.get("items") or level.get("targets") or 0
        enough = self.wanted and len(self._near) >= _LEAST and sum(self._near) >= _MOST * len(self._near)
        self._asks, self._late = enough and not self._asked, step.step >= _STEP

    def note_on(self, model: str) -> str:
        """A note for the end of the run on a trial that has found nothing, or did not take place; "" else."""
        if not self.wanted or self.words:
            return ""
        if self._asked:
            return f"{model}: --trial has run it on one batch, and {_NONE}"
        level = "that of guessing" if self._guessed else "the first one"
        return f"{model}: --trial did not run it, as too few losses after step {_STEP} were near {level}"

    def take(self, event: HookEvent) -> None:
        """Keep a copy of what the model receives, if it is asked next."""
        if self._asks and self._batch is None:
            self._batch = copied((event.args, dict(event.kwargs)))

    def ask(self, begun: BegunStep) -> None:
        """Ask the model, if it is its turn."""
        batch, self._batch = self._batch, None
        if batch is None or not (self._asks and self._late):
            return
        self._asked, self._asks = True, False
        if may_run(begun):
            with without_cache_of_casts():
                self.words = words_on(begun, batch, self._items)


@contextmanager
def without_cache_of_casts() -> Iterator[None]:
    """Keep casts of weights that autocast makes in this block, perhaps without a graph, from the program's own runs."""
    caches = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(caches)


def words_on(begun: BegunStep, batch: Batch, items: int) -> str:
    """Words on the first fault found by running the model again on this batch of so many labels; "" for none."""
    rows = compared_rows(begun.module, batch)
    if rows and is_fault("", rows):
        place = f", from {begun.name(rows.fqn)} on" * bool(rows.fqn)
        why = f": {rows.reason}" * bool(rows.reason)
        return f"the output for a row also depends on other rows of its batch{place}{why}"
    if rows and not rows.value and depends_on_place(begun.module, batch, items):
        return PLACE
    return graph_faults(begun.module, batch)


def loss_of_guessing(level: Mapping[str, Any]) -> float | None:
    """About the loss that guessing has, from the fields of a line; None if that is not known."""
    if level.get("classes"):
        return float(level["scaled"]) * math.log(level["classes"])
    times = level.get("times") or 1.0
    if level.get("spread"):
        return float(times * level["spread"])
    share = level.get("ones") or 0.0
    return -float(times * (share * math.log(share) + (1 - share) * math.log(1 - share))) if 0 < share < 1 else None


def may_run(begun: BegunStep) -> bool:
    """True if running this model again disturbs nothing else, costs little and compiles nothing."""
    modules = [*begun.module.modules()]
    size = sum(p.numel() for p in begun.module.parameters())
    alone = joined_world().size == 1 and not (begun.compiled or any(map(has_forward_hooks, modules)))
    return alone and size <= _SIZE


def compared_rows(module: nn.Module, batch: Batch) -> Comparison | None:
    """The outputs for one row beside other ones, as HK020 compares them; None if they can't be.

    Not of a model that receives a matrix of all pairs of rows, as of a graph's nodes, which it is to bring together.
    """
    from hookcli.engine.eval_runs import EvalOfBatch, batch_size  # which few runs need, and which takes long to import

    rows = batch_size(batch)
    if any(tree.shape_of(x)[:2] == [rows, rows] for x in tree.tensors(batch)):
        return None
    measured = put_back_after(
        module, batch, lambda: EvalOfBatch(module, batch, {"companions"}, is_fault, None, None).measured()["companions"]
    )
    return measured if isinstance(measured, Comparison) else None


def depends_on_place(module: nn.Module, batch: Batch, items: int) -> bool:
    """True if rows in another order have other outputs, though there is a label for each, and they do not mix."""
    from hookcli.engine.eval_mode import run_in_eval
    from hookcli.engine.eval_runs import batch_size

    if batch_size(batch) != items or keeps_rows(module, items):
        return False
    rolled: Batch = tree.replace(batch, lambda _, x: x.roll(1, 0))
    runs = put_back_after(module, batch, lambda: [run_in_eval(module, one) for one in (batch, rolled)])
    if runs is None:  # it failed, as where lengths must be sorted
        return False
    pairs = [(a.roll(1, 0), b) for a, b in comparable(*(run.outputs[0] for run in runs))]
    rows = [(a, b) for a, b in pairs if a.dim() and a.shape == b.shape and len(a) == items]
    return not any(run.drew for run in runs) and largest_difference(rows) > _APART


def keeps_rows(module: nn.Module, items: int) -> bool:
    """True if a module keeps a tensor with so many rows, as a state for each row of a batch."""
    attributes = (item for one in module.modules() for item in vars(one).items())
    kept = tree.tensors([value for name, value in attributes if name not in PARTS])
    return any(items in tree.shape_of(x)[:2] for x in (*kept, *module.buffers()) if x.dim() > 1)


def is_fault(_: str, measured: object) -> bool:
    """True if HK020 finds an error in this comparison."""
    if not isinstance(measured, Comparison):
        return False
    compared: Any = Measurements(companions=measured)
    return any(finding.severity == ERROR for finding in BatchDependence().judge(compared))
