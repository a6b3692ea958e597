"""Looks for values that are not finite in what a model returns in eval mode, without gradients and with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from torch import nn

from hookcli.checks.measurements import EvalOutputs
from hookcli.engine.capture import capture
from hookcli.engine.eval_mode import Arguments, EvalRuns, eval_runs, in_eval, run_in_eval
from hookcli.engine.inputs import Call
from hookcli.engine.outputs import Output
from hookcli.engine.step import Step
from hookcli.errors import ModelError
from hookcli.probes.activations import ActivationsProbe
from hookcli.probes.inventory import InventoryProbe
from hookcli.table import Row
from hookcli.table.marks import MASK, WRITTEN, is_lost
from hookcli.tensors.stats import measure, resolve


def judged_outputs(
    model: nn.Module, batches: Iterable[Arguments], first: EvalRuns, ops: str | None, several: bool = False
) -> EvalOutputs:
    """The first output with a value that is not finite, of all batches. `first` are the runs on the first of them.

    One batch is held at a time; of `several` the rows name theirs. Raises ModelError if the model fails on one.
    """
    number = 0
    for number, inputs in enumerate(batches, 1):
        place = f"batch {number}: " if several else ""
        runs = first if number == 1 else run_in_eval(model, inputs, place=place)
        for gradients, outputs in _in_both_ways(model, inputs, runs):
            found = _traced(model, inputs, outputs, ops, gradients)
            if found.activations:
                rows = [Row({**row.values, "bad_batch": number}, row.stats) for row in found.activations]
                found = replace(found, activations=rows) if several else found
                with_alone = gradients and not runs.gradients
                return replace(found, gradients=runs.gradients, with_alone=with_alone, batches=number)
    return EvalOutputs(gradients=first.gradients, batches=number)


def _in_both_ways(model: nn.Module, inputs: Arguments, runs: EvalRuns) -> Iterator[tuple[bool, Sequence[Output]]]:
    """Whether gradients were on, and the outputs: of these runs, then of one with gradients if they had none.

    Nobody need be able to differentiate a model in eval mode: one that fails with gradients is judged without.
    """
    yield runs.gradients, runs.outputs
    if not runs.gradients:
        with suppress(ModelError):
            yield True, eval_runs(model, inputs, 1, True).outputs


def _traced(
    model: nn.Module, inputs: Arguments, outputs: Sequence[Output], ops: str | None, gradients: bool
) -> EvalOutputs:
    """The first of these outputs with a value that is not finite, and the modules in which they begin.

    The run that shows most is had without PyTorch's fused attention; values that are finite there come from that path.
    """
    of_runs = (resolve([measure(x) for x in output if x is not None]) for output in outputs)
    tables = ([Row({"fqn": "", "call": 0}, stats) for stats in measured] for measured in of_runs)
    returned = next((rows for rows in tables if any(map(is_lost, rows))), None)
    if returned is None:
        return EvalOutputs()
    call, step = Call(*inputs), Step(gradients=gradients)
    with in_eval(model):
        probes = [InventoryProbe(backward=False), ActivationsProbe()]
        inventory, activations = capture(model, call, probes=probes, step=step, ops=ops)
        if any(map(is_lost, activations.rows)):
            return EvalOutputs(activations.rows, inventory.rows)
        as_run = capture(model, call, probes=ActivationsProbe(), step=step).rows
    if any(map(is_lost, as_run)):
        return EvalOutputs(as_run, fused=True)
    masked = any(row.get("scores") in (MASK, WRITTEN) for row in as_run if not row.fqn)
    return EvalOutputs() if masked else EvalOutputs(returned)
