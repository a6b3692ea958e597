"""Actions when a rule fires: keep weights and gradients, run a command; the program is ended elsewhere."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hookcli.capabilities.rules.lines import ENDS, RuleFired
from hookcli.errors import UsageError, unknown
from hookcli.record.observe.recording_plan import RecordingPlan
from hookcli.system.files import relative
from hookcli.system.torchrun import joined_world

if TYPE_CHECKING:  # `hookcli run` itself does without torch
    from torch import nn

_WORDS = ("report", "dump", "stop")
_BESIDE = '{ "$@" >&2 || printf "%s (exit code %s)\\n" "$0" $? >&2; } &'
"""Runs a command as no child of the program, which may wait for all of its children."""


class Then(NamedTuple):
    """The actions of `--then`, besides lines on stderr and in the record. `command`: the words of the one to run."""

    dump: bool
    stop: bool
    command: list[str]


def parse_then(text: str) -> Then:
    """Parse `dump,stop,exec:CMD`, of which exec comes last: its command may have commas. Raises UsageError."""
    before, has, command = text.partition("exec:")
    words = [word for part in before.split(",") if (word := part.strip())]
    for word in words:
        if word not in _WORDS:
            raise UsageError(unknown("--then", word, (*_WORDS, "exec:CMD")))
    typed: list[str] = []
    with suppress(ValueError):  # a quote that is not closed
        typed = shlex.split(command)
    if has and not typed:
        raise UsageError(f"--then exec:{command}: give a command, with its quotes closed: exec:notify-send spike")
    return Then("dump" in words, "stop" in words, typed)


def check_then(text: str, plan: RecordingPlan) -> None:
    """Raises UsageError for actions without a rule, or unknown ones."""
    parse_then(text)
    if text and not plan.of_parts.get("rules"):
        raise UsageError("--then: is for rules; add one, as in --rule 'grad_norm > 5 * median(50)'")


def located(text: str) -> str:
    """The text of `--then` with the full path of its command: the program may change its folder. Raises UsageError."""
    if not (words := parse_then(text).command):
        return text
    if not (path := shutil.which(words[0])):
        raise UsageError(f"--then exec: no such command: {words[0]}; a line for the shell is exec:sh -c '...'")
    return f"{text.partition('exec:')[0]}exec:{shlex.join([str(Path(path).absolute()), *words[1:]])}"


def act(then: Then, fired: RuleFired, model: nn.Module | None, record: Path) -> str:
    """Do what was asked for; returns what was done. Never raises. A command is started, and not waited for."""
    did, whole = [], record.parent if joined_world().size > 1 else record
    try:
        if then.dump and model is not None:
            did.append(f"weights and gradients are in {relative(_dump(model, fired, record))}")
        if then.command:
            environment = {
                name: value for name, value in os.environ.items() if name != "HOOKCLI_RUN"
            }  # or it is recorded
            environment |= {"HOOKCLI_RULE": fired.rule, "HOOKCLI_STEP": str(fired.step)}
            environment["HOOKCLI_VALUE"] = repr(float([*fired.values, 0.0][0]))
            environment["HOOKCLI_RECORD"] = str(whole)
            line = ["/bin/sh", "-c", _BESIDE, f"hookcli: warning: --then exec failed after rule {fired.rule}"]
            subprocess.run([*line, *then.command], env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    except Exception as error:  # a full disk, a tensor of a kind that can't be saved
        did.append(f"--then failed ({type(error).__name__}: {error})")
    return "; ".join([*did, *[ENDS] * then.stop])


def _dump(model: nn.Module, fired: RuleFired, record: Path) -> Path:
    """Write the weights and gradients that this process holds to a folder beside the record."""
    import torch

    from hookcli.tensors import tree

    # Named after the rule and the step; numbered where another has the name, since rules may become alike in a file's
    # name, and several models may fire one rule in one step.
    short = re.sub(r"[^\w.-]+", "_", fired.rule).encode()[:80].decode(errors="ignore")
    name = f"{short.strip('_.-') or 'rule'}-step{fired.step}"
    all_folders = record.with_name(f"{record.name.removesuffix('.jsonl').removesuffix('.run')}.rules")
    all_folders.mkdir(parents=True, exist_ok=True)
    folder, number, is_new = all_folders / name, 1, False
    while not is_new:
        try:
            folder.mkdir()
            is_new = True
        except FileExistsError:
            number += 1
            folder = all_folders / f"{name}-{number}"
    held = dict([*model.named_parameters(), *model.named_buffers()])
    torch.save({name: tree.local(x) for name, x in held.items()}, folder / "weights.pt")
    gradients = {name: grad for name, x in held.items() if (grad := tree.gradient(x)) is not None}
    torch.save({name: tree.local(grad) for name, grad in gradients.items()}, folder / "gradients.pt")
    return folder
