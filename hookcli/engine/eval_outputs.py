"""Looks for values that are not finite in what a model returns in eval mode, without gradients and with them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from torch import nn

from hookcli.checks.measurements import EvalOutputs, HiddenValues
from hookcli.engine.capture import capture
from hookcli.engine.eval_mode import Arguments, EvalRuns, eval_runs, in_eval, warnings_left_out
from hookcli.engine.inputs import Call
from hookcli.engine.outputs import Output
from hookcli.engine.preserve import preserved_with_attributes
from hookcli.engine.step import Step
from hookcli.errors import ModelError, NoGradientsError, NoLossError
from hookcli.probes.activations import ActivationsProbe
from hookcli.probes.grads import GradsProbe
from hookcli.probes.inventory import InventoryProbe
from hookcli.table import Row
from hookcli.table.marks import MEANT, is_lost
from hookcli.table.names import is_operator
from hookcli.tensors import tree
from hookcli.tensors.containers import hidden_tensors
from hookcli.tensors.stats import measure, resolve


def judged_outputs(
    model: nn.Module, inputs: Arguments, runs: EvalRuns, ops: str | None, number: int | None = None
) -> EvalOutputs:
    """The first output with a value that is not finite, of `runs` and of another with gradients.

    The rows name the batch by its `number`, if it is one of several.
    """
    ways = [runs]
    if not runs.gradients:  # nobody need be able to differentiate a model in eval mode: one that fails is let off
        with suppress(ModelError), preserved_with_attributes(model, inputs):
            ways.append(eval_runs(model, inputs, 1, True))
    for one in ways:
        outputs = _traced(model, inputs, one, ops)
        if outputs.activations:
            rows = [Row({**row.values, "bad_batch": number}, row.stats) for row in outputs.activations]
            outputs = outputs if number is None else replace(outputs, activations=rows)
            return replace(outputs, gradients=runs.gradients, with_alone=one.gradients and not runs.gradients)
    return EvalOutputs(gradients=runs.gradients, unseen=not (runs.outputs[0] or runs.hidden[0]))


_FAILS = (ModelError, NoLossError, NoGradientsError)  # nobody need be able to differentiate the model


def hidden_values(model: nn.Module, inputs: Arguments) -> HiddenValues:
    """Values that are not finite on the way to an output that is, if modules return them or a gradient shows them."""
    step, call = Step(otherwise="randn"), Call(*inputs)
    with suppress(*_FAILS), preserved_with_attributes(model, inputs), in_eval(model), warnings_left_out():
        activations, grads = capture(model, call, probes=[ActivationsProbe(), GradsProbe()], step=step)
        gradient = next((row.fqn for row in grads.rows if is_lost(row)), "")
        if any(map(is_lost, activations.rows)) or gradient:
            probes = [InventoryProbe(backward=False), ActivationsProbe()]
            inventory, activations = capture(model, call, probes=probes, step=Step(gradients=True), ops="functions")
            return HiddenValues(activations.rows, inventory.rows, gradient)
    return HiddenValues()


def _traced(model: nn.Module, inputs: Arguments, runs: EvalRuns, ops: str | None) -> EvalOutputs:
    """The first of these runs' outputs with a value that is not finite, and the modules in which they begin.

    The run that shows most is had without PyTorch's fused attention; values that are finite there come from that path.
    """
    returned = next(filter(None, map(_lost, runs.outputs)), [])
    hidden = next(filter(None, map(_lost, runs.hidden)), [])
    if not (returned or hidden):
        return EvalOutputs()
    call, step = Call(*inputs), Step(gradients=runs.gradients)
    with in_eval(model):
        probes = [InventoryProbe(backward=False), ActivationsProbe()]
        inventory, activations = capture(model, call, probes=probes, step=step, ops=ops)
        if any(is_lost(row) and not is_operator(row.fqn) for row in activations.rows):
            return EvalOutputs(activations.rows, inventory.rows)
        as_run = capture(model, call, probes=ActivationsProbe(), step=step).rows
        if any(map(is_lost, as_run)):
            return EvalOutputs(as_run, fused=True)
        if hidden and not returned:
            as_run = capture(_Shown(model), call, probes=ActivationsProbe(), step=step).rows
    of_model = [row for row in as_run if not row.fqn]
    masked = any(row.get("scores") in MEANT for row in of_model) and not any(map(is_lost, of_model))
    return EvalOutputs() if masked else EvalOutputs(returned or hidden)


def _lost(output: Output) -> list[Row]:
    """The rows of an output, if it has values that are not finite."""
    measured = resolve([measure(x) for x in output if x is not None])
    rows = [Row({"fqn": "", "call": 0}, stats) for stats in measured]
    return rows if any(map(is_lost, rows)) else []


class _Shown(nn.Module):
    """A model that returns the tensors in the objects that it returns, so that probes see them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.training = model, False

    def forward(self, *args: object, **kwargs: object) -> object:
        unseen: tree.Unseen = []
        output = self.model(*args, **kwargs)
        seen = [x for _, x in tree.leaves(output, unseen=unseen)]
        return [*seen, *hidden_tensors(*(x for _, x in unseen))]
