"""The command lines of `hookcli memory` that others name as the next one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hookcli.capabilities.memory.check_options import OPTIMIZER
from hookcli.commands.next_command import all_typed
from hookcli.commands.option_fields import as_typed
from hookcli.commands.options import BUILDING, GENERATED, SHOWING, Options
from hookcli.commands.run_options import StepOptions


def as_checked(options: Options, step: StepOptions, settings: Mapping[str, Any]) -> list[str]:
    """The options with which `hookcli memory` takes the step that a check judged. It takes no real input."""
    typed = [word for name in (*BUILDING, *GENERATED, "train", "dtype") for word in as_typed(options, name)]
    typed += as_typed(step, "loss")
    typed += ["--device", "cuda"] if options.device.startswith("cuda") else []
    if not settings.get("backward", True):
        return [*typed, "--inference", *(["--train"] if options.train is None else [])]
    optimizer = settings.get("optimizer", OPTIMIZER)
    return [*typed, *(["--optimizer", optimizer] if optimizer != OPTIMIZER else [])]


def at_batch(batch: int | None, spec: str, own: Any, step: StepOptions, options: Options) -> str:
    """`hookcli memory --fits` as it was typed, but with this batch, whose memory it then shows in full."""
    plain = {name: getattr(Options(), name) for name in SHOWING}  # its table has other columns
    alone = replace(own, fits=None, reserve=None, device=own.device if own.device != "cpu" else None)
    typed = all_typed(alone, step, replace(options, batch_size=batch, **plain))
    return shlex.join(["hookcli", "memory", spec, *typed])
