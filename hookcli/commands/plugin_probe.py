"""The command of a probe from another distribution."""

from __future__ import annotations

from collections.abc import Callable

from hookcli import registry
from hookcli.commands.options import DEFAULT_MODEL, Model, Options
from hookcli.commands.probe_command import inspect_model


def probe_command(name: str) -> Callable[..., int]:
    """A command that runs this probe on a model."""

    def command(model: Model = DEFAULT_MODEL, *, options: Options) -> int:
        return inspect_model(model, registry.load("probes", name), options)

    return command
