"""The command to type after `hookcli check`, about its first finding."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import MISSING, fields

from hookcli.checks.crash import Crash
from hookcli.commands.options import Options
from hookcli.report import Finding
from hookcli.reporters.rules import rule

_BUILD = ("arg", "weights", "strict", "seed")
_RUN = ("input", "batch_size", "fill", "train", "device", "dtype")
_EVAL = ("activations", "inputs")  # commands that run in eval mode unless told otherwise


def next_command(finding: Finding, spec: str, options: Options) -> str:
    """The command that shows more of a finding, on the same model and input; `hookcli explain` if there is none."""
    look = "check --debug" if finding.check == Crash.id else getattr(rule(finding.check), "look", "")
    if not look:
        return f"hookcli explain {finding.check}"
    command, *more = look.split()
    names = _BUILD if command == "hooks" else (*_BUILD, *_RUN)
    typed = [word for name in names for word in _typed(name, options)]
    trains = ["--train"] if command in _EVAL and options.train is None else []
    return shlex.join(["hookcli", command, spec, *typed, *trains, *more])


def _typed(name: str, options: Options) -> Iterator[str]:
    """An option as it is typed; nothing if it has its default."""
    declared = next(field for field in fields(Options) if field.name == name)
    default = [] if declared.default is MISSING else declared.default
    value = getattr(options, name)
    if value == default:
        return
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        yield {"train": "--train" if value else "--eval"}.get(name, flag if value else f"--no-{name}")
        return
    for item in value if isinstance(value, list) else [value]:
        yield from (flag, str(item))
