"""Measures the noise scale of a prepared run, and reports it for the model and for its modules."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from hookcli.capabilities.noise_scale.estimate import FEWEST, NoiseScale, Norms, estimate, without_error
from hookcli.capabilities.noise_scale.gradients import Figures, Gradients, squares_of
from hookcli.capabilities.noise_scale.independence import require_independent, require_mean
from hookcli.capabilities.noise_scale.layout import COLUMNS
from hookcli.capabilities.noise_scale.parts import samples_of
from hookcli.capabilities.noise_scale.verdict import interrupted, verdict
from hookcli.engine.batches import Batch
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.preserve import preserved
from hookcli.engine.run_info import finished
from hookcli.errors import UsageError, kept_if_interrupted
from hookcli.hooks.parts import Select, uncompiled
from hookcli.hooks.session import HookSession
from hookcli.table import Report, Row, Skipped
from hookcli.table.formatting import counted
from hookcli.table.meta import Meta, with_notes
from hookcli.table.tree import Tree
from hookcli.tensors.tree import type_text

_ABOUT = 64  # micro-batches, where nothing says how many
_ROWS = 16  # modules, unless a depth is asked for
_SAME = 1e-4  # relative: the second pass has the gradients of the first


@dataclass(frozen=True)
class NoiseScaleRun:
    """The noise scale of a prepared run's loss.

    `micro_batch`: samples in a micro-batch. `batched`: dimension 0 of each input is the batch, else lists are. `depth`:
    of the modules that have rows; `select`: which of them have.
    """

    run: PreparedRun
    micro_batch: int | None = None
    batched: bool = True
    depth: float | None = None
    select: Select | None = None

    def report(self) -> Report:
        """Measure and report. An interrupt has the report of the gradients until then, as its `reports`.

        Raises UsageError for a loss or a model whose samples depend on each other.
        """
        run, began = self.run, perf_counter()
        require_independent(run.model)
        first = Batch(run.inputs, run.step.target)
        batch = samples_of(first, batched=self.batched)
        session = HookSession(run.model, select=lambda fqn, module: False, callers_run=True)
        gradients = Gradients(run, session, self.size_of(batch), batched=self.batched)
        measured = Measured(gradients)
        with kept_if_interrupted(lambda: [self.report_of(measured, batch, began)] if measured.averaged() else []):
            self.measure(measured, first, batch)
        return self.report_of(measured, batch, began)

    def measure(self, measured: Measured, first: Batch, batch: int) -> None:
        """Run both passes."""
        run, session = self.run, measured.gradients.session
        with run.step.mode(), uncompiled(run.model), preserved(run.model, run.inputs, parameters=False):
            with session:
                self.passes(measured, first, batch)
            session.release()

    def report_of(self, measured: Measured, batch: int, began: float) -> Report:
        """The report on what was measured."""
        run, gradients, complete = self.run, measured.gradients, measured.complete
        groups, remark = self.groups([*measured.squares])
        names = [*gradients.parameters]
        whole = measured.scale_of(names)
        rows = [self.row("", whole, names, 0)]
        rows += [self.row(fqn, measured.scale_of(of), of, n) for n, (fqn, of) in enumerate(groups.items(), 1)]
        skipped = [Skipped(name, "got no gradient") for name in names if name not in measured.squares]
        info: Meta = {**run.info, "complete": complete, "seconds": perf_counter() - began}
        meta = with_notes(finished(info), *self.remarks(measured), *filter(None, [measured.remark, remark]))
        samples = measured.first.samples
        totals = {
            "verdict": verdict(whole, samples, batch) if complete else interrupted(whole, samples),
            "samples": samples,
        }
        return Report("noise-scale", run.name, COLUMNS, rows, meta, totals, skipped, grouping="list")

    def size_of(self, batch: int) -> int:
        """The number of samples in a micro-batch. Raises UsageError if a batch has fewer."""
        data = self.run.data
        batches = (data.total or 1) if data and data.several else 1
        size = self.micro_batch or batch // min(batch, -(-_ABOUT // batches))
        if size > batch:
            raise UsageError(f"--micro-batch {size}: a batch has only {counted(batch, 'sample')}", option="micro_batch")
        return size

    def passes(self, measured: Measured, first: Batch, batch: int) -> None:
        """Measure the figures of both passes, and make a remark on the loss."""
        run, gradients, figures = self.run, measured.gradients, measured.first
        if not gradients.parameters:
            raise UsageError("no parameter requires grad, so there are no gradients")
        measured.remark = require_mean(gradients, run, first, batch)
        gradients.take(figures, "gradients")
        number = len(figures.rows)
        if number < FEWEST:
            of = f"{counted(number, 'micro-batch', 'micro-batches')} of {counted(gradients.size, 'sample')}"
            more = "give more data (--batches, --batch-size)" + ", or a smaller --micro-batch" * (gradients.size > 1)
            raise UsageError(f"only {of}: {FEWEST} are needed; {more}")
        if run.data:
            run.data.remark_if_short(figures.batches, run.feedback.remark)
        measured.averaged()
        if not all(map(math.isfinite, measured.squares.values())):
            raise UsageError("the gradients are not finite; `hookcli check` finds where that begins")
        again = measured.second
        gradients.take(again, "gradients again, for the standard error", figures.sums)
        expected = number * sum(measured.squares.values())
        if len(again.rows) != number or abs(sum(map(sum, again.rows)) - expected) > _SAME * expected:
            raise UsageError(
                "a second pass over the data had other gradients: the data or the model must repeat itself"
            )

    def row(self, fqn: str, scale: NoiseScale, of: Sequence[str], index: int) -> Row:
        """The row of a module, or of the model, with these parameters."""
        model = self.run.model
        figures = {"noise_scale": scale.value, "noise_scale_error": scale.error, "noise_scale_low": scale.low}
        figures |= {"noise_scale_high": scale.high, "grad_sq": scale.grad_sq, "grad_variance": scale.variance}
        params = sum(model.get_parameter(name).numel() for name in of)
        kind = type_text(model.get_submodule(fqn))
        return Row({"fqn": fqn, "type": kind, "params": params, **figures, "index": index})

    def groups(self, names: Sequence[str]) -> tuple[Mapping[str, list[str]], str]:
        """The parameters of each module down to the depth, or one with few modules; and a remark if some are deeper."""
        tree = Tree(self.run.info.get("containers", ()))
        owners = {name: tree[name.rpartition(".")[0]] for name in names}
        levels = sorted({node.level for node in owners.values()}, reverse=True)
        few = (d for d in levels if len({node.at(d).fqn for node in owners.values()}) <= _ROWS)
        depth = self.depth or next(few, 1)
        groups = defaultdict[str, list[str]](list)
        for name, node in owners.items():
            fqn = node.at(depth).fqn
            if fqn and (self.select is None or self.select(fqn, self.run.model.get_submodule(fqn))):
                groups[fqn].append(name)
        number = len({node.fqn for node in owners.values()})
        deeper = max(levels, default=0) > depth
        return groups, f"modules down to depth {depth:g}; --depth all shows {number}" if deeper else ""

    def remarks(self, measured: Measured) -> Iterator[str]:
        """How to read the figures."""
        size, first = measured.gradients.size, measured.first
        error = "; ±: standard error (jackknife)" if measured.complete else ""
        yield f"{len(first.rows)} micro-batches of {counted(size, 'sample')}{error}"
        yield "noise scale: tr Σ / |G|² at these weights; in training it grows as the loss falls"
        if first.left_out:
            yield f"{counted(first.left_out, 'sample')} left over, too few for a micro-batch"
        if self.run.data is None and "fill" in self.run.info:
            yield "the input is random, and so is its noise scale: --data gives real samples"


@dataclass
class Measured:
    """The figures of both passes; `squares` is |ḡ|² by parameter, of those that got a gradient."""

    gradients: Gradients
    first: Figures = field(default_factory=Figures)
    second: Figures = field(default_factory=Figures)
    squares: Mapping[str, float] = field(default_factory=dict)
    remark: str = ""

    @property
    def complete(self) -> bool:
        """True if the second pass saw all that the first one did, so that errors are known."""
        return len(self.second.rows) == len(self.first.rows)

    def averaged(self) -> bool:
        """Make the mean of the first pass's gradients from their sums, once; False if they are too few."""
        if not self.squares and self.first.summed and len(self.first.rows) >= FEWEST:
            for x in self.first.sums.values():
                x.div_(len(self.first.rows))
            self.squares = squares_of(self.first.sums)
        return bool(self.squares)

    def scale_of(self, names: Sequence[str]) -> NoiseScale:
        """The noise scale of the gradient of these parameters alone."""
        order = {name: index for index, name in enumerate(self.gradients.parameters)}
        at = [order[name] for name in names]
        squares, products = ([sum(row[i] for i in at) for row in part.rows] for part in (self.first, self.second))
        norms = Norms(self.gradients.size, squares, products, sum(self.squares.get(n, 0.0) for n in names))
        return estimate(norms) if self.complete else without_error(norms)
