"""Runs two models side by side on the same input and compares what their modules return, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from time import perf_counter

from hookcli.diff.tolerance import Tolerance
from hookcli.engine.lockstep.comparison import Comparison
from hookcli.engine.lockstep.further import Further
from hookcli.engine.lockstep.lockstep import A, B
from hookcli.engine.lockstep.side import BatchOfBoth, Side, error_to_raise
from hookcli.engine.preserve import copied
from hookcli.engine.setting import Feedback
from hookcli.engine.step import Step
from hookcli.errors import HookcliError, carry
from hookcli.hooks.edits.base import check_applied
from hookcli.hooks.parts import Select
from hookcli.sources.base import copy_model
from hookcli.table import Report
from hookcli.table.meta import Meta


def compare(
    a: Side,
    b: Side,
    *,
    tolerance: Tolerance = Tolerance(),
    step: Step = Step(),
    select: Select | None = None,
    seed: int = 0,
    info: Meta | None = None,
    feedback: Feedback = Feedback(),
    batches: Iterable[BatchOfBoth] | None = None,
    total: int | None = None,
    ops: str | None = None,
    time: bool = False,
    float64: bool = False,
    isolate: bool = False,
) -> Report:
    """Run both models once, module by module in step, and return how far apart their tensors are.

    A row compares a tensor that a module of A returned with its counterpart's in B (`hookcli.diff.align`); if the
    step runs backward there are rows for the gradients of outputs and parameters, too. Tensors are kept only until they
    are compared. Parameters and buffers are compared before the run: those that differ have rows below their module's,
    which are `aside` if they are within tolerance, or many. `select` narrows by A's modules. Both sides draw the same
    random numbers, from `seed`. Models, buffers and random states are afterwards as before. If the models share modules
    or parameters, B is a copy.

    `batches` are several inputs, of which the sides have the first: the figures are taken over all, concatenated.
    `total` is their number, if it is known. `ops`: compare operators, too (see Hooking); a forward of each side before
    finds them, so that both sides' are paired in their order. Without `ops` and `select`, operators are looked at in
    one more forward if modules differ first in what they received. `time`: both are timed afterwards, in turns.
    `float64`: where the sides differ in how they compute alone, both are compared with a run in float64. `isolate`:
    each module of B also runs on A's input, which separates the error that it makes from the one that it inherits.

    Raises ModelError if a side fails; its `reports`, like a KeyboardInterrupt's, hold what was compared until
    then.
    """
    started = perf_counter()
    parts = [{id(part) for part in (*side.model.modules(), *side.model.parameters())} for side in (a, b)]
    if parts[A] & parts[B]:
        b = replace(b, model=copy_model(b.model))  # else hooks could not tell their runs apart
    b = replace(b, inputs=copied(b.inputs))  # a side that writes into its inputs must not change the other's
    run = Comparison((a, b), step, select, ops, time=time)
    run.tells_looks = True
    several = batches is not None
    if batches is None:
        batches, total = [(a.inputs, b.inputs, step.target)], 1
    run.total = total
    origin, precision = None, None
    try:
        error = error_to_raise(run.execute(seed, feedback, batches), run.sides)
    except HookcliError as failed:  # the next batch could not be made
        error = failed
    if error is None:
        again = partial(Comparison, step=step, select=select, ops=ops)
        further = Further(again, (a, b), step.target, seed, feedback)
        try:
            origin = further.origin(run, tolerance) if not ops and select is None else None
            precision = further.precision(run, float64=float64, isolate=isolate)
        except KeyboardInterrupt as interrupt:
            error = interrupt
    seconds = perf_counter() - started
    info = {**(info or {}), "seconds": seconds, "hookcli_seconds": run.clock.own, "complete": error is None}
    if several:
        info["batches"] = run.batches
    if isinstance(error, HookcliError):
        info["error"] = str(error).partition("\n")[0]
    report = run.report(tolerance, info, origin)
    if precision:
        report = precision.added_to(report)
    if error is not None:
        carry(error, [report])
        raise error
    check_applied([*run.edits[A], *run.edits[B]], [report])
    return report
