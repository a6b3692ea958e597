"""The command to type next: about the first finding of `hookcli check`, or a comparison's first difference."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from hookcli.checks.crash import Crash
from hookcli.commands.option_fields import as_typed
from hookcli.commands.options import BUILDING, DATA, GENERATED, Options
from hookcli.commands.run_options import StepOptions
from hookcli.reporters.rules import rule
from hookcli.table import Finding
from hookcli.table.names import is_operator

_RUN = (*BUILDING, *GENERATED, *DATA, "train", "device", "dtype")
_BACKWARD = {"grads": ("loss", "backward_vector"), "memory": ("loss",), "check": ("loss",)}
_LACKS = {"shapes": ("batches",), "memory": ("weights", "strict", "device")}
"""Options that a command does not have."""
_EVAL = ("activations", "inputs")  # commands that run in eval mode unless told otherwise


def next_command(finding: Finding, spec: str, options: Options, step: StepOptions, memory: Sequence[str] = ()) -> str:
    """The command that shows more of a finding, on the same model, input and loss; `hookcli explain` if there is none.

    `step` has the loss as typed, or the vector that the check differentiated; `memory` are options of `hookcli memory`
    that make it the step of the check.
    """
    look = "check --debug" if finding.check == Crash.id else getattr(rule(finding.check), "look", "")
    of_data = look == "memory" and any(word for name in DATA for word in as_typed(options, name))
    if not look or of_data:  # `hookcli memory` takes no real input
        return f"hookcli explain {finding.check}"
    command, *more = look.split()
    names = BUILDING if command == "hooks" else _RUN
    typed = [word for name in names if name not in _LACKS.get(command, ()) for word in as_typed(options, name)]
    typed += [word for name in _BACKWARD.get(command, ()) for word in as_typed(step, name)]
    typed += memory if command == "memory" else ()
    typed += ["--ops"] if is_operator(finding.fqn) else []
    trains = ["--train"] if command in _EVAL and options.train is None else []
    return shlex.join(["hookcli", command, spec, *typed, *trains, *more])


def with_same_weights(sides: Sequence[str], own: Any, step: StepOptions, options: Options) -> str:
    """The comparison of `hookcli diff` as it was typed, with A's weights in both models."""
    typed = [word for each in (own, step, options) for item in fields(each) for word in as_typed(each, item.name)]
    return shlex.join(["hookcli", "diff", *sides, *typed, "--same-weights"])
