"""Runs a model on its input: once, or on one batch of real input after the other."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from hookcli.engine import failure
from hookcli.engine.inputs import arguments
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.preserve import SavedValues
from hookcli.engine.probing import Probing
from hookcli.errors import UserCode
from hookcli.hooks.session import HookSession
from hookcli.sources import losses
from hookcli.tensors import tree


def run_batches(run: PreparedRun, session: HookSession, probing: Probing, *, merges: bool) -> None:
    """Run the model on its input; of several batches on all, after each of which the probes reduce what they saw.

    Gradients begin at zero for each batch. The loss that `info` has is the mean over batches. Unless `merges`, that
    is if the probes' rows merge over batches, only the first is run.
    """
    if run.data is None or not run.data.several or not merges:
        _run(run, session, probing, run.inputs)
        _note_target(run)
        if run.data and merges:
            run.data.remark_if_short(1, run.feedback.remark)
        return
    info, total = run.info, 0.0
    info["batches"] = 0
    for number, batch in enumerate(run.data.each()):
        session.begin_batch(number, run.data.total)
        with ExitStack() as stack:  # a batch may be a view of a data set, and the model write into it
            stack.callback(SavedValues(x for _, x in tree.leaves(batch.inputs)).put_back)
            one = replace(run, step=replace(run.step, target=batch.target))
            _run(one, session, probing, batch.inputs, place=f"batch {number + 1}: ")
        _note_target(one)
        probing.batch_ended()
        for parameter in run.model.parameters():
            parameter.grad = None
        info["batches"] += 1
        if isinstance(value := info.get("loss_value"), float):
            total += value
            info["loss_value"] = total / info["batches"]
    run.data.remark_if_short(info["batches"], run.feedback.remark)


def _run(run: PreparedRun, session: HookSession, probing: Probing, inputs: Any, place: str = "") -> None:
    args, kwargs = arguments(inputs)
    probing.begin(args, kwargs, run.step.target)
    with UserCode(partial(failure.crashed, run.model, run.info, place=place)):
        run.step.run(session, args, kwargs, run.info)
        device = next((p.device for p in run.model.parameters()), torch.device("cpu"))
        if device.type not in ("cpu", "meta"):
            torch.accelerator.synchronize(device)  # once, after the run, so that the time is the run's


def _note_target(run: PreparedRun) -> None:
    """Note in `info`, after the first batch, who got its target; remark on a target that the loss does not take."""
    if run.step.target is None or "target" in run.info:
        return
    shapes = ", ".join(tree.shape_text(x) for _, x in tree.leaves(run.step.target)) or type(run.step.target).__name__
    loss = run.info.get("loss")
    function = losses.NAMED.get(loss or "") if isinstance(run.step.loss, str) else run.step.loss
    used = run.step.backward and loss is not None and function is not None and losses.takes_target(function)
    run.info["target"] = f"{shapes}, for the loss" if used else f"{shapes}, not used"
    if run.step.backward and loss is not None and not used:
        other = "--loss cross-entropy does, or file.py:fn from output and target to scalar"
        run.feedback.remark(f"the loss ({loss}) does not use the batches' targets; {other}")
