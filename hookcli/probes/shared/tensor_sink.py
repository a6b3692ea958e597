"""The interface of what receives the tensors themselves that a probe sees: a dump, or a comparison with one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from hookcli.hooks.session import HookSession
from hookcli.table import Skipped
from hookcli.table.meta import Meta


class TensorSink(Protocol):
    """Receives the live tensors of one run.

    A run that is made again, because PyTorch refused a probe's hooks, begins again with its first batch. `take` must
    neither keep a tensor nor change it.
    """

    def begin(
        self, session: HookSession, args: tuple[object, ...], kwargs: Mapping[str, object], target: object
    ) -> None:
        """Begin `session.batch_number`: the model is about to run on these arguments, and the loss on this target."""

    def take(self, values: Mapping[str, object], tensor: Tensor) -> None:
        """Take a tensor, whose place is in `values`: `kind` (see `hookcli.table.dump.KINDS`), `fqn`, `batch` ..."""

    def finish(self, model: str, meta: Meta, skipped: Sequence[Skipped]) -> None:
        """End: the run is over, or has failed, as the report's `meta` and `skipped` say."""
