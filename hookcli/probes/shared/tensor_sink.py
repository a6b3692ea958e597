"""The interface of what receives the tensors themselves that a probe sees: a dump, or a comparison with one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from hookcli.hooks.session import HookSession
from hookcli.report import Skipped


class TensorSink(Protocol):
    """Receives the live tensors of one run.

    A run that is made again, because PyTorch refused a probe's hooks, begins again. `take` must not keep a tensor, nor
    change it.
    """

    def begin(self, session: HookSession, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Begin: the model is about to run on these arguments, and takes further hooks."""

    def take(self, values: Mapping[str, Any], tensor: Tensor) -> None:
        """Take a tensor, whose place is in `values`: `kind` (see `hookcli.report.dump.KINDS`), `fqn`, `call` ..."""

    def finish(self, model: str, meta: Mapping[str, Any], skipped: Sequence[Skipped]) -> None:
        """End: the run is over, or has failed, as the report's `meta` and `skipped` say."""
