"""The effect of communication hooks on gradients, bucket by bucket."""

from __future__ import annotations

import math
import threading

from torch import Tensor

from hookcli.capabilities.comm.buckets import bucket_row, totals
from hookcli.capabilities.comm.layout import COLUMNS
from hookcli.hooks.communication.comm_payload import Exchange
from hookcli.table import Report, Row, Skipped, TensorStats
from hookcli.table.discrepancy import Discrepancy
from hookcli.table.meta import Meta
from hookcli.table.stats import RULES
from hookcli.tensors import distance
from hookcli.tensors.chunks import PendingFigures
from hookcli.tensors.stats import measure, resolve

# Gradients that differ by more are not from the same step again, which on GPUs may differ by rounding.
_SAME = 1e-3


class CommProbe:
    """A row per hook, step and bucket: bytes, time, the gradients before and after the hook, and the error.

    Not a `Probe`: it looks at DDP's runs, one for each hook, rather than at one run of a model. A `CommObserver` shows
    it tensors, on any thread, and it reduces them at once.
    """

    name = "comm"
    columns = COLUMNS

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: dict[Exchange, PendingFigures] = {}
        self._after: dict[Exchange, PendingFigures] = {}
        self._errors: dict[Exchange, PendingFigures] = {}
        self._skipped: dict[Skipped, None] = {}

    def ready(self, exchange: Exchange, before: Tensor) -> None:
        """Take in a bucket before its hook runs."""
        pending = measure(before)
        with self._lock:
            self._before[exchange] = pending

    def done(self, exchange: Exchange, after: Tensor, exact: Tensor) -> None:
        """Take in the hook's result, and the exact mean to compare it with."""
        pending = measure(after)
        error = None if after is exact else distance.compare(exact, after)
        with self._lock:
            self._after[exchange] = pending
            if error is not None:
                self._errors[exchange] = error

    def skip(self, fqn: str, reason: str) -> None:
        """Note once that something could not be measured."""
        self._skipped[Skipped(fqn, reason)] = None

    def report(self, model: str, meta: Meta) -> Report:
        """The report, also of a run that failed: the buckets that were done by then."""
        whole = sorted(self._after, key=lambda e: (e.step, e.bucket))  # hooks beside each other, in their order
        before = resolve([self._before[e] for e in whole])
        after = resolve([self._after[e] for e in whole])
        errors = dict(zip(self._errors, distance.resolve(list(self._errors.values())), strict=True))
        rows = [self._row(e, b, a, errors.get(e)) for e, b, a in zip(whole, before, after, strict=True)]
        # The exact means, with which all results are compared, are of the first step's gradients.
        of_exchange = dict(zip(whole, before, strict=True))
        steps: dict[tuple[str, int], list[TensorStats]] = {}
        for exchange in self._after:  # in their order
            steps.setdefault((exchange.hook, exchange.step), []).append(of_exchange[exchange])
        of_steps = {key: TensorStats.merge(parts) for key, parts in steps.items()}
        first = next(iter(of_steps.values()), TensorStats())
        for (hook, step), stats in of_steps.items():
            pairs = [(getattr(stats, key), getattr(first, key)) for key in RULES]
            if stats.numel == first.numel and not all(math.isclose(*pair, rel_tol=_SAME) for pair in pairs):
                which = f"step {step} under {hook}"
                self.skip("", f"{which}: gradients differ from the first step's, which gave the exact mean")
        sums = totals(rows) if rows else {}
        return Report(self.name, model, self.columns, rows, meta, sums, list(self._skipped), grouping="steps")

    def _row(self, exchange: Exchange, before: TensorStats, after: TensorStats, error: Discrepancy | None) -> Row:
        if exchange.uncounted:
            self.skip(exchange.fqns[0], f"bytes that {exchange.hook} hands over: {exchange.uncounted}")
        where = {
            "hook": exchange.hook,
            "step": exchange.step,
            "bucket": exchange.bucket,
            "order": exchange.order,
            "params": len(exchange.fqns),
            "fqns": list(exchange.fqns),
            "elements": exchange.elements,
            "bytes_before": exchange.size,
            "seconds": exchange.seconds(),
        }
        errors = (after.l2, 0.0, 0.0)
        if error:
            far = (math.inf, math.inf) if error.nonfinite else (error.error_l2, error.max_abs)
            errors = (error.a_l2, *far)
        return bucket_row(where, None if exchange.uncounted else exchange.payload, before, after, errors)
