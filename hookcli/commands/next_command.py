"""The command to type next, chosen by what a command found: a finding, a fault in a table, a difference, a batch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any

from hookcli.checks.base import IN_EVAL
from hookcli.checks.crash import Crash
from hookcli.commands.option_fields import as_typed
from hookcli.commands.options import BUILDING, DATA, GENERATED, Options
from hookcli.commands.run_options import StepOptions
from hookcli.diff.origin import WEIGHT, first_beyond
from hookcli.diff.verdict import weights_come_first
from hookcli.registry.capability import capabilities, load_text
from hookcli.registry.pieces import left_out, texts
from hookcli.reporters.findings import rule
from hookcli.system.torchrun import world
from hookcli.table import SEVERITIES, Finding, Report
from hookcli.table.marks import faults, with_verdict, without_gradient, worst
from hookcli.table.names import is_operator

_RUN = (*BUILDING, *GENERATED, *DATA, "train", "device", "dtype")
_BACKWARD = {"grads": ("loss", "backward_vector"), "check": ("loss",)}
_LACKS = {"shapes": ("batches",)}
"""Options that a command does not have."""
_BY_OPERATOR = ("activations", "inputs", "grads", "check")
_EVAL = ("activations", "inputs")  # commands that run in eval mode unless told otherwise
_COMMAND = re.compile(r"`hookcli (\w+) MODEL([^`]*)`")
_JUDGED = ("activations", "inputs", "grads")
_ALIKE = 0.5  # relative error of weights; other random weights differ by about 1.4
_AS_CHECKED = {one.name: one for one in capabilities() if one.as_checked}
"""The capabilities whose commands show what their checks judged, given the words of `as_checked`; by command."""


def next_command(finding: Finding, spec: str, options: Options, step: StepOptions, settings: Mapping[str, Any]) -> str:
    """The command that shows more of a finding, on the same model, input and loss; `hookcli explain` if there is none.

    `step` has the loss as typed, or the vector that the check differentiated; `settings`: the check's settings.
    """
    look = "check --debug" if finding.check == Crash.id else getattr(rule(finding.check), "look", "")
    look = "check --ops" if finding.check == "HK003" and not is_operator(finding.fqn) else look
    if not look:
        return f"hookcli explain {finding.check}"
    if look in _AS_CHECKED:
        shown = _as_checked(look, options, step, settings)
        if shown is None or any(
            word not in shown for name in DATA for word in as_typed(options, name)
        ):  # of real input
            return f"hookcli explain {finding.check}"
    ops = ["--ops"] if is_operator(finding.fqn) else []
    if finding.message.startswith(IN_EVAL) and look in _EVAL:
        options = replace(options, train=False)
    return _on_model(look, spec, options, step, settings, ops)


def _as_checked(command: str, options: Options, step: StepOptions, settings: Mapping[str, Any]) -> list[str] | None:
    """The words, options among them, with which this command of a capability shows what its checks judged.

    None if it has no such words, or if the function that gives them fails.
    """
    if one := _AS_CHECKED.get(command):
        with left_out(one, f"as_checked={one.as_checked!r}"):
            return texts(load_text(one.as_checked)(options, step, settings))
    return None


def in_advice(text: str, spec: str, options: Options, step: StepOptions, settings: Mapping[str, Any]) -> str:
    """Advice whose commands name the model, input and loss as typed, in place of MODEL."""
    return _COMMAND.sub(lambda match: f"`{_on_model(match[1] + match[2], spec, options, step, settings)}`", text)


def _on_model(
    look: str, spec: str, options: Options, step: StepOptions, settings: Mapping[str, Any], ops: Sequence[str] = ()
) -> str:
    """A command, `look`, on the model with its options as typed."""
    command, *more = look.split()
    if (shown := _as_checked(command, options, step, settings)) is not None:
        return shlex.join(["hookcli", command, spec, *shown, *more])
    names = BUILDING if command == "hooks" else _RUN
    typed = _typed(options, (name for name in names if name not in _LACKS.get(command, ())))
    typed += _typed(step, _BACKWARD.get(command, ()))
    if options.ops and command in _BY_OPERATOR and not ops and "--ops" not in more:
        typed += ["--ops"] if options.ops == "functions" else as_typed(options, "ops")
    trains = ["--train"] if command in _EVAL and options.train is None else []
    return shlex.join(["hookcli", command, spec, *typed, *ops, *trains, *more])


def _typed(settings: object, names: Iterable[str]) -> list[str]:
    return [word for name in names for word in as_typed(settings, name)]


def with_next(reports: Iterable[Report], command: str) -> list[Report]:
    """The reports, the first of which names the command to type next, if there is one."""
    return [replace(r, meta={**r.meta, "next": command}) if command and not n else r for n, r in enumerate(reports)]


def about_fault(reports: Sequence[Report], spec: str, options: Options, step: StepOptions, train: bool) -> str:
    """The command about the worst fault in the first table, of tensors, which ran in this mode; "" without one.

    A check of operators names the line where values that are not finite begin. It has no --edit, and runs alone.
    """
    judged = [with_verdict(report) for report in reports[:1] if report.probe in _JUDGED]
    of_table = [*filter(None, chain.from_iterable(map(faults, judged)))]
    if not of_table:
        return "hookcli explain HK008" if any(map(without_gradient, judged)) else ""
    fault = worst(of_table, judged[0].tree)[0]
    if fault.severity == SEVERITIES[0] and not (options.ops or options.edit or options.nproc or world().size > 1):
        typed = _typed(options, (name for name in _RUN if name != "train")) + _typed(step, _BACKWARD["check"])
        return shlex.join(["hookcli", "check", spec, *typed, "--ops", *([] if train else ["--eval"])])
    return f"hookcli explain {fault.check}" if fault.check else ""


def next_compared(report: Report, sides: Sequence[Any], own: Any, step: StepOptions, options: Options) -> Report:
    """The comparison of two models, with the next command if there is one: `--same-weights` where nobody chose the
    weights that differ first, and `--ops`, which names the line, where neither weights nor settings nor options differ.

    Weights that are alike were chosen: quantized, or trained further.
    """
    first, (a, b) = first_beyond(report.rows), sides
    if weights_come_first(report):
        alike = any(row.get("kind") == WEIGHT and 0 < (row.get("rel_l2") or 0) < _ALIKE for row in report.rows)
        chosen = alike or own.same_weights or a.options.weights or b.options.weights
        more = "" if chosen else "--same-weights"
    else:
        alike = (a.options, a.own) == (b.options, b.own)
        more = "--ops" if first and alike and not (options.ops or first.get("reset") or first.get("change")) else ""
    again = shlex.join(["hookcli", "diff", a.text, b.text, *all_typed(own, step, options), more])
    return with_next([report], again if more else "")[0]


def all_typed(*options: Any) -> list[str]:
    """All options of a command that do not have their defaults, as words."""
    return [word for each in options for item in fields(each) for word in as_typed(each, item.name)]
